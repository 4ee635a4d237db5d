// One AI SDK provider through a tool loop, streamed and whole, and an object. Driven by test_ai_sdk.py.
//   node ai_sdk.mjs PROVIDER URL
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [kind, url] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const models = {
  openai: () => openai("demo"),
  "openai-chat": () => openai.chat("demo"),
  anthropic: () => createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })("demo"),
  compatible: () =>
    createOpenAICompatible({ name: "local", baseURL: `${url}/v1`, apiKey: "none", includeUsage: true })("demo"),
};
const model = models[kind]();
const cities = [];
const tools = {
  weather: ai.tool({
    description: "Weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (cities.push(city), "rain"),
  }),
};
const stopWhen = ai.stepCountIs(4);
const found = {};
// Reasoning comes as a summary, which is asked for; the SDK asks only for models it takes to reason.
const providerOptions = { openai: { reasoningSummary: "auto", forceReasoning: true } };

const whole = await ai.generateText({ model, tools, stopWhen, providerOptions, maxRetries: 0, prompt: "play:weather Weather?" });
found.whole = whole.text;
found.reasoning = whole.steps[0].reasoningText;
found.steps = whole.steps.length;
found.tokens = whole.usage.outputTokens > 0;

const streamed = ai.streamText({
  model, tools, stopWhen, providerOptions, maxRetries: 0, prompt: "play:weather Weather?",
  onError: ({ error }) => { throw error; },
});
found.streamed = "";
for await (const piece of streamed.textStream) found.streamed += piece;
found.finish = await streamed.finishReason;
found.cities = cities;

// A second turn carries what the first one said, as an app's chat does.
const messages = [
  { role: "user", content: "play:weather Weather?" },
  ...(await streamed.response).messages,
  { role: "user", content: "play:thanks Thanks." },
];
found.second = (await ai.generateText({ model, tools, stopWhen, providerOptions, maxRetries: 0, messages })).text;

const schema = z.object({ city: z.string(), degrees: z.number() });
if (ai.Output?.object) {
  const made = await ai.generateText({
    model, maxRetries: 0, prompt: "play:object An object.", output: ai.Output.object({ schema }),
  });
  found.object = made.output ?? made.experimental_output;
}
console.log(JSON.stringify(found));
