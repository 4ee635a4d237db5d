// OpenAI Agents for JavaScript: a tool loop and a handoff on one API. Driven by test_node_agents.py.
//   node openai_agents.mjs chat_completions|responses URL
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";

const [api, url] = process.argv.slice(2);
setTracingDisabled(true);
const useResponses = api === "responses";
const modelProvider = new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "none", useResponses });
const runner = new Runner({ modelProvider, tracingDisabled: true });
const cities = [];
const weather = tool({
  name: "weather",
  description: "Weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => (cities.push(city), "rain"),
});
const agent = new Agent({ name: "forecaster", instructions: "be brief", model: "demo", tools: [weather] });
const found = {};

const whole = await runner.run(agent, "play:weather Weather?");
found.whole = whole.finalOutput;
const streamed = await runner.run(agent, "play:weather Weather?", { stream: true });
found.streamed = "";
for await (const piece of streamed.toTextStream()) found.streamed += piece;
await streamed.completed;
found.second = (
  await runner.run(agent, [...whole.history, { role: "user", content: "play:thanks Thanks." }])
).finalOutput;

const report = z.object({ city: z.string(), degrees: z.number() });
const typed = new Agent({ name: "typed", model: "demo", outputType: report });
found.typed = (await runner.run(typed, "play:text A report.")).finalOutput;

const desk = Agent.create({ name: "desk", model: "demo", handoffs: [agent] });
const handed = await runner.run(desk, "play:handoff Weather?");
found.handed = [handed.lastAgent.name, handed.finalOutput];
found.cities = cities;
console.log(JSON.stringify(found));
