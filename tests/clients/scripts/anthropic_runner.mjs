// Anthropic's tool runner for JavaScript. Driven by test_tool_runners.py.
//   node anthropic_runner.mjs URL [stream]
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [url, streams] = process.argv.slice(2);
const cities = [];
const weather = betaTool({
  name: "weather",
  description: "Weather of a city.",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: ({ city }) => (cities.push(city), "rain"),
});
const runner = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 }).beta.messages.toolRunner({
  model: "demo", max_tokens: 400, tools: [weather], system: "Be brief.", stream: streams === "stream",
  messages: [{ role: "user", content: "play:weather How is it in Oslo?" }],
});
let last;
for await (const turn of runner) last = streams === "stream" ? await turn.finalMessage() : turn;
console.log(JSON.stringify({ cities, text: last.content.at(-1).text }));
