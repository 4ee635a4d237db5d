// One request to the public API, as a body and a stream of steps: chat completions, responses, messages.
const TOOL_NEUTRAL = fn => ({ name: fn.name, description: fn.description, parameters: fn.parameters });

// Pictures come before the text. A prompt without any stays a string.
function content(q, makePicture, textType = "text") {
  if (!q.pictures.length) return q.prompt;
  return [...q.pictures.map(makePicture), { type: textType, text: q.prompt }];
}

function source(url) {
  const [, mediaType, data] = url.match(/^data:([^;]*);base64,(.*)$/);
  return { type: "base64", media_type: mediaType, data };
}

function chat(q) {
  const body = { model: q.model, messages: [], max_tokens: q.tokens, stream: true, stream_options: { include_usage: true } };
  if (q.system) body.messages.push({ role: "system", content: q.system });
  body.messages.push({ role: "user", content: content(q, url => ({ type: "image_url", image_url: { url } })) });
  if (q.tools.length) body.tools = q.tools;
  if (q.schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: q.schema } };
  if (q.effort) body.reasoning_effort = q.effort;
  return body;
}

function responses(q) {
  const parts = content(q, url => ({ type: "input_image", image_url: url }), "input_text");
  const input = q.pictures.length ? [{ role: "user", content: parts }] : parts;
  const body = { model: q.model, input, max_output_tokens: q.tokens, stream: true, store: false };
  if (q.system) body.instructions = q.system;
  if (q.tools.length) body.tools = q.tools.map(t => ({ type: "function", ...TOOL_NEUTRAL(t.function || t) }));
  if (q.schema) body.text = { format: { type: "json_schema", name: "answer", strict: true, schema: q.schema } };
  if (q.effort) body.reasoning = { effort: q.effort };
  return body;
}

function messages(q) {
  const parts = content(q, url => ({ type: "image", source: source(url) }));
  const body = { model: q.model, max_tokens: q.tokens, messages: [{ role: "user", content: parts }], stream: true };
  if (q.system) body.system = q.system;
  if (q.tools.length) body.tools = q.tools.map(t => {
    const { parameters, ...rest } = TOOL_NEUTRAL(t.function || t);
    return { ...rest, input_schema: parameters || { type: "object" } };
  });
  if (q.schema) body.output_config = { format: { type: "json_schema", schema: q.schema } };
  if (q.effort) body.thinking = q.effort === "none" ? { type: "disabled" } : { type: "enabled", budget_tokens: 1024 };
  return body;
}

export const APIS = {
  chat: { path: "v1/chat/completions", make: chat },
  responses: { path: "v1/responses", make: responses },
  messages: { path: "v1/messages", make: messages },
};

export function makeBody(q) {
  const body = APIS[q.api].make(q);
  if (q.temperature !== null) body.temperature = q.temperature;
  if (q.seed !== null && q.api !== "messages") body.seed = q.seed;
  if (q.depth !== null) body.num_speculative_tokens = q.depth;
  body.return_steps = true;
  return body;
}

// Calls told(kind, value): steps, reasoning, content, call (its name), arguments, timings, finish.
function read(data, told) {
  if (data.error) throw new Error(data.error.message || "the stream ended with an error");
  if (data.type === "error") throw new Error(data.message || "the stream ended with an error");
  if (data.choices) readChunk(data, told);
  else if (data.type) readEvent(data, told);
  if (data.timings) told("timings", data.timings);
}

function readChunk(chunk, told) {
  for (const choice of chunk.choices) {
    const delta = choice.delta || {};
    if (choice.steps) told("steps", choice.steps);
    const reasoning = delta.reasoning || delta.reasoning_content;
    if (reasoning) told("reasoning", reasoning);
    if (delta.content) told("content", delta.content);
    for (const call of delta.tool_calls || []) {
      if (call.function.name) told("call", call.function.name);
      if (call.function.arguments) told("arguments", call.function.arguments);
    }
    if (choice.finish_reason) told("finish", choice.finish_reason);
  }
}

function readEvent(event, told) {
  const delta = event.delta;
  switch (event.type) {
    case "steps": case "response.steps": return told("steps", event.steps);
    case "response.output_text.delta": return told("content", delta);
    case "response.reasoning_text.delta": case "response.reasoning_summary_text.delta": return told("reasoning", delta);
    case "response.function_call_arguments.delta": return told("arguments", delta);
    case "response.output_item.added": return event.item.type === "function_call" && told("call", event.item.name);
    case "response.completed": case "response.incomplete": case "response.failed":
      if (event.response.timings) told("timings", event.response.timings);
      return told("finish", event.response.status);
    case "content_block_start": return event.content_block.type === "tool_use" && told("call", event.content_block.name);
    case "content_block_delta":
      if (delta.text) told("content", delta.text);
      if (delta.thinking) told("reasoning", delta.thinking);
      if (delta.partial_json) told("arguments", delta.partial_json);
      return undefined;
    case "message_delta": return told("finish", delta.stop_reason);
    default: return undefined;
  }
}

export async function ask(q, key, signal, told) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = "Bearer " + key;
  const answer = await fetch(APIS[q.api].path, { method: "POST", headers, signal, body: JSON.stringify(makeBody(q)) });
  if (!answer.ok) throw new Error(await explainRefusal(answer));
  const decoder = new TextDecoder(), reader = answer.body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") read(JSON.parse(line.slice(6)), told);
    }
  }
}

async function explainRefusal(answer) {
  const text = await answer.text();
  if (answer.status === 401) return "This gateway needs an API key: enter it above.";
  try {
    const body = JSON.parse(text);
    return `${answer.status}: ${body.error.message}`;
  } catch {
    return `${answer.status}: ${text.slice(0, 300)}`;
  }
}

const quote = text => "'" + text.replaceAll("'", "'\\''") + "'";

export function asCurl(q, needsKey) {
  const url = new URL(APIS[q.api].path, document.baseURI).href;
  const key = needsKey ? " \\\n  -H \"authorization: Bearer $EAGLEGATE_API_KEY\"" : "";
  const head = `curl -N ${quote(url)} \\\n  -H 'content-type: application/json'${key} \\\n  -d `, body = JSON.stringify(makeBody(q), null, 2);
  if (!q.pictures.length) return `${head}${quote(body)}\n`;
  return `${head}@- <<'EOF'\n${body}\nEOF\n`; // pictures are longer than an argument may be
}

function literal(value, indent = "") {
  const inner = indent + "    ";
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return value.length ? `[\n${value.map(v => inner + literal(v, inner)).join(",\n")},\n${indent}]` : "[]";
  if (typeof value === "object") {
    const rows = Object.entries(value).filter(([, v]) => v !== undefined).map(([k, v]) => `${inner}${JSON.stringify(k)}: ${literal(v, inner)}`);
    return rows.length ? `{\n${rows.join(",\n")},\n${indent}}` : "{}";
  }
  return JSON.stringify(value);
}

export function asPython(q, needsKey) {
  const url = new URL(APIS[q.api].path, document.baseURI).href;
  const imports = needsKey ? "import json\nimport os" : "import json";
  const headers = needsKey ? "{\"authorization\": \"Bearer \" + os.environ[\"EAGLEGATE_API_KEY\"]}" : "{}";
  return `${imports}

import httpx

body = ${literal(makeBody(q))}
headers = ${headers}
with httpx.stream("POST", ${JSON.stringify(url)}, json=body, headers=headers, timeout=600) as answer:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            print(json.loads(line[6:]))
`;
}
