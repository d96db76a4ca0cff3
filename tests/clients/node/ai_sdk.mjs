// Leads a dialogue with the AI SDK of Vercel and prints the answers as JSON.
//
//     node ai_sdk.mjs URL SCENARIO TEXT...
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;

const [url, scenario, ...texts] = process.argv.slice(2);
const model = createOpenAI({ baseURL: `${url}/v1`, apiKey: "not-needed" })("local");

const generate = (request, options) => generateText({ model, ...request, providerOptions: { openai: options } });

async function stream(request, options) {
  const streamed = streamText({ model, ...request, providerOptions: { openai: options } });
  const deltas = [];
  for await (const delta of streamed.textStream) deltas.push(delta);
  const text = await streamed.text;
  if (deltas.join("") !== text) throw new Error(`deltas ${deltas}, text ${text}`);
  return { text, response: await streamed.response, providerMetadata: await streamed.providerMetadata };
}

// The client keeps the history and sends all of it each time.
async function withHistory(ask, options) {
  const messages = [];
  const answers = [];
  for (const text of texts) {
    messages.push({ role: "user", content: text });
    const result = await ask({ instructions: "Be brief.", messages }, options);
    answers.push(result.text);
    messages.push(...result.response.messages);
  }
  return answers;
}

// The server keeps it.
async function withServer(ask, optionsAfter) {
  const answers = [];
  let last;
  for (const prompt of texts) {
    last = await ask({ prompt }, optionsAfter(last));
    answers.push(last.text);
  }
  return answers;
}

const chained = (last) => ({
  instructions: "Be brief.",
  previousResponseId: last?.providerMetadata.openai.responseId,
});

const scenarios = {
  store: () => withHistory(generate, { store: true }),
  storeStream: () => withHistory(stream, { store: true }),
  noStore: () => withHistory(generate, { store: false }),
  noStoreStream: () => withHistory(stream, { store: false }),
  chain: () => withServer(generate, chained),
  chainStream: () => withServer(stream, chained),
  conversation: () => withServer(generate, () => ({ conversation: "chat-1" })),
};

console.log(JSON.stringify(await scenarios[scenario]()));
