// Plays one scenario with the OpenAI SDK for Node.js and prints what came of it as JSON.
//
//     node run.mjs URL SCENARIO [TEXT...]
import OpenAI from "openai";

const [url, scenario, ...texts] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "not-needed", maxRetries: 0 });

const request = (input, more = {}) => ({ model: "local", input, ...more });

// What an error of the SDK tells a program.
const told = ({ name, status, code, param, type, requestID, constructor }) => ({
  name: constructor.name ?? name,
  status: status ?? null,
  code: code ?? null,
  param: param ?? null,
  type: type ?? null,
  requestId: requestID ?? null,
});

async function refused(promise) {
  try {
    await promise;
  } catch (error) {
    return told(error);
  }
  throw new Error("it was not refused");
}

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

// All items of a list that the SDK gets page by page, as texts.
async function texted(pages) {
  return (await collect(await pages)).map((item) => item.content[0].text);
}

const scenarios = {
  create: async () => {
    const response = await client.responses.create(request("hi"));
    return { text: response.output_text, response };
  },

  createStream: async () => ({
    events: await collect(await client.responses.create(request("think", { stream: true }))),
  }),

  stream: async () => {
    const stream = client.responses.stream(request("think"));
    const snapshots = [];
    stream.on("response.output_text.delta", (event) => snapshots.push(event.snapshot));
    const final = await stream.finalResponse();
    return { snapshots, text: final.output_text, final };
  },

  streamOfEvents: async () => ({ events: await collect(client.responses.stream(request("slow"))) }),

  failedStream: async () => ({
    events: await collect(await client.responses.create(request("break", { stream: true }))),
  }),

  replay: async () => {
    const first = await client.responses.create(request("think"));
    const turns = [{ role: "user", content: "think" }, ...first.output, { role: "user", content: "hi" }];
    return { text: (await client.responses.create(request(turns))).output_text };
  },

  errors: async () => ({
    badRequest: await refused(client.responses.create(request("hi", { temperature: 3 }))),
    badStream: await refused(client.responses.create(request([], { stream: true }))),
    badModel: await refused(client.responses.create({ model: "gpt-5", input: "hi" })),
    failure: await refused(client.responses.create(request("break"))),
    notFound: await refused(client.models.retrieve("gpt-5")),
    timeout: await refused(client.responses.create(request("endless"), { timeout: 300 })),
  }),

  models: async () => ({
    listed: (await collect(await client.models.list())).map((model) => model.id),
    retrieved: (await client.models.retrieve("scripted")).id,
  }),

  stored: async () => {
    const many = Array.from({ length: 25 }, (_, number) => ({ role: "user", content: `item ${number}` }));
    const created = await client.responses.create(request(many));
    const retrieved = await client.responses.retrieve(created.id);
    const cancelled = await client.responses.cancel(created.id);
    const oldestFirst = await texted(client.responses.inputItems.list(created.id, { order: "asc", limit: 10 }));
    const newestFirst = await texted(client.responses.inputItems.list(created.id));
    const streamedAgain = await refused(client.responses.retrieve(created.id, { stream: true }));
    const { input_tokens: counted } = await client.responses.inputTokens.count({ input: many });
    await client.responses.delete(created.id);
    const gone = await refused(client.responses.retrieve(created.id));
    return { created, retrieved, cancelled, oldestFirst, newestFirst, streamedAgain, counted, gone };
  },

  cancel: async () => {
    const events = [];
    let cancelled = null;
    for await (const event of await client.responses.create(request("endless", { stream: true }))) {
      events.push(event);
      if (event.type === "response.output_text.delta") {
        cancelled ??= await client.responses.cancel(events[0].response.id);
      }
    }
    return { events, cancelled };
  },

  chain: async () => {
    const answers = [];
    let previous;
    for (const text of texts) {
      const more = { previous_response_id: previous?.id };
      previous = answers.length % 2
        ? await client.responses.stream(request(text, more)).finalResponse()
        : await client.responses.create(request(text, more));
      answers.push(previous.output_text);
    }
    const orphan = await refused(client.responses.create(request("hi", { previous_response_id: "resp_1" })));
    return { answers, orphan };
  },

  conversation: async () => {
    const { id } = await client.conversations.create({ metadata: { topic: "boats" } });
    const answers = [];
    for (const text of texts) {
      const response = await client.responses.create(request(text, { conversation: id }));
      answers.push(response.output_text);
    }
    const items = await collect(await client.conversations.items.list(id, { order: "asc", limit: 2 }));
    const first = await client.conversations.items.retrieve(items[0].id, { conversation_id: id });
    await client.conversations.items.delete(first.id, { conversation_id: id });
    const left = (await collect(await client.conversations.items.list(id))).length;
    const { metadata } = await client.conversations.update(id, { metadata: { topic: "ships" } });
    await client.conversations.delete(id);
    const gone = await refused(client.conversations.retrieve(id));
    return { answers, types: items.map((item) => item.type), left, metadata, gone };
  },

  abort: async () => {
    const controller = new AbortController();
    const pending = client.responses.create(request("endless"), { signal: controller.signal });
    setTimeout(() => controller.abort(), 300);
    const json = await refused(pending);

    const stream = await client.responses.create(request("endless", { stream: true }));
    let deltas = 0;
    for await (const event of stream) {
      deltas += event.type === "response.output_text.delta";
      if (deltas === 3) stream.controller.abort();
    }

    const events = client.responses.stream(request("endless"));
    events.on("response.output_text.delta", () => events.abort());
    return { json, deltas, stream: await refused(events.finalResponse()) };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
