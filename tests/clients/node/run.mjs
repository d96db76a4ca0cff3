// Plays one scenario with the OpenAI SDK for Node.js and prints what came of it as JSON.
//
//     node run.mjs URL SCENARIO
import OpenAI from "openai";

const [url, scenario] = process.argv.slice(2);
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
