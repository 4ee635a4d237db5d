// Anthropic's client tools through the AI SDK. Driven by test_ai_sdk.py.
//   node anthropic_tools.mjs URL
import { createAnthropic } from "@ai-sdk/anthropic";
import * as ai from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;
const anthropic = createAnthropic({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const calls = [];
const execute = async (input) => (calls.push(input), "done");
const tools = {
  bash: anthropic.tools.bash_20250124({ execute }),
  str_replace_based_edit_tool: anthropic.tools.textEditor_20250728({ execute }),
  computer: anthropic.tools.computer_20250124({ displayWidthPx: 800, displayHeightPx: 600, execute }),
};
const made = await ai.generateText({
  model: anthropic("demo"), tools, stopWhen: ai.stepCountIs(6), maxRetries: 0, maxOutputTokens: 400,
  prompt: "play:tools Use the tools.",
});
console.log(JSON.stringify({ calls, text: made.text }));
