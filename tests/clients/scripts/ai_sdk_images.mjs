// A picture through one provider of the AI SDK, as bytes. Driven by test_images.py.
//   node ai_sdk_images.mjs PROVIDER URL FILE
import { readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [kind, url, file] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const models = {
  openai: () => openai("demo"),
  "openai-chat": () => openai.chat("demo"),
  anthropic: () => createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })("demo"),
  compatible: () => createOpenAICompatible({ name: "local", baseURL: `${url}/v1`, apiKey: "none" })("demo"),
};
const data = readFileSync(file);
const content = [
  { type: "text", text: "What is this?" },
  { type: "file", mediaType: "image/png", data },
];
const answer = await ai.generateText({ model: models[kind](), maxRetries: 0, messages: [{ role: "user", content }] });
console.log(JSON.stringify({ text: answer.text, tokens: answer.usage.inputTokens }));
