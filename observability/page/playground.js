// The playground: asks the public API for an answer with its steps, and shows the origin of every token.
import { $, el, fixed } from "./dom.js";
import { asCurl, asPython, ask } from "./ask.js";
import { listPictures, watchPictures } from "./pictures.js";

const WEATHER = [{ type: "function", function: {
  name: "get_weather", description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" }, unit: { enum: ["celsius", "fahrenheit"] } }, required: ["city"] },
} }];
const PERSON = {
  type: "object", additionalProperties: false, required: ["name", "age"],
  properties: { name: { type: "string" }, age: { type: "integer" } },
};
const EXAMPLES = {
  "chat": { prompt: "Why is the sky blue? Answer in three sentences." },
  "tool call": { system: "Use the tools.", prompt: "What is the weather in Paris?", tools: WEATHER },
  "structured output": { prompt: "Ada is 36 years old. Give her name and age as JSON.", schema: PERSON },
  "reasoning": { prompt: "What is 17 times 23? Think step by step.", effort: "medium" },
  "repetition": { prompt: "Count from 1 to 40, separated by commas." },
};
const HUES = 7;
const KEY = "eaglegate-key";
let running = null;

// Characters that would move, hide or restyle text are shown as their codes.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const visible = text => text.replace(UNSEEN, c => "⟨" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "⟩");

class Panel {
  constructor(title, q) {
    this.q = q;
    this.steps = [];
    this.spans = [];
    this.parts = { reasoning: "", content: "" };
    this.calls = [];
    this.timings = null;
    this.verified = this.accepted = this.tokens = 0;
    this.first = this.last = null;
    this.at = null;
    this.box = el("section", undefined, "card panel");
    this.head = el("div", undefined, "head");
    this.clock = el("span", "0.00 s", "clock");
    this.head.append(el("h2", title), this.clock);
    this.numbers = el("div", "", "numbers");
    this.written = el("div", undefined, "written");
    this.written.tabIndex = 0;
    this.stepper = this.makeStepper();
    this.detail = el("div", "", "detail dim");
    this.answer = el("div", undefined, "answer");
    this.answer.hidden = true;
    this.box.append(this.head, this.numbers, this.written, this.stepper, this.detail, this.answer);
    for (const event of ["mouseover", "click"]) {
      this.written.addEventListener(event, e => e.target.dataset.step && this.describe(Number(e.target.dataset.step)));
    }
  }

  makeStepper() {
    const bar = el("div", undefined, "stepper");
    this.range = el("input");
    Object.assign(this.range, { type: "range", min: 0, max: 0, value: 0 });
    this.range.setAttribute("aria-label", "step");
    this.range.oninput = () => this.goTo(Number(this.range.value));
    this.place = el("span", "no steps", "dim");
    const back = el("button", "‹"), on = el("button", "›");
    for (const [button, way, name] of [[back, -1, "step back"], [on, 1, "step on"]]) {
      button.type = "button";
      button.setAttribute("aria-label", name);
      button.onclick = () => this.goTo((this.at ?? (way < 0 ? this.steps.length : -1)) + way);
    }
    bar.append(back, this.range, on, this.place);
    return bar;
  }

  goTo(at) {
    if (!this.steps.length) return;
    this.at = Math.max(0, Math.min(this.steps.length - 1, at));
    this.range.value = this.at;
    this.place.textContent = `step ${this.at + 1} of ${this.steps.length}`;
    this.spans.forEach((spans, step) => spans.forEach(span => {
      span.classList.toggle("later", step > this.at);
      span.classList.toggle("now", step === this.at);
    }));
    this.describe(this.at);
  }

  describe(at) {
    const step = this.steps[at], said = [`step ${at + 1}: ${step.kind}${step.reason ? " (" + step.reason + ")" : ""}, ${fixed(step.ms, 1)} ms, ${step.tokens.length} token${step.tokens.length === 1 ? "" : "s"}`];
    if (step.drafted) said.push(`${step.accepted} of ${step.drafted} ${step.drafter ? "looked-up tokens" : "drafts"} accepted`);
    if (step.cut) said.push(`${step.cut} accepted and cut`);
    if (step.planned) said.push("planned: " + step.planned);
    if (step.rates) said.push(`expected tok/s by depth: ${step.rates.map((rate, depth) => `${depth}: ${rate ? fixed(rate, 0) : "not open"}`).join(", ")} · a draft pays above survival ${fixed(step.token_price)}`);
    const lost = describeRejected(step);
    if (lost) said.push("rejected: " + lost);
    this.detail.textContent = visible(said.join(" · "));
  }

  told(kind, value) {
    if (kind === "steps") this.addSteps(value);
    else if (kind === "call") this.calls.push({ name: value, arguments: "" });
    else if (kind === "arguments" && this.calls.length) this.calls.at(-1).arguments += value;
    else if (kind === "timings") this.timings = value;
    else if (kind === "finish") this.finish = value;
    else if (kind in this.parts) this.parts[kind] += value;
  }

  addSteps(steps) {
    const fragment = document.createDocumentFragment();
    this.last = performance.now();
    this.first ??= this.last;
    for (const step of steps) {
      const at = this.steps.push(step) - 1;
      this.verified += step.drafted > 0;
      this.accepted += step.accepted;
      this.tokens += step.tokens.length;
      this.spans.push(step.tokens.map(token => {
        const from = token.draft_position, span = el("span", visible(token.text));
        if (from) span.className = step.drafter || "d" + Math.min(from, HUES);
        span.dataset.draft = from || 0;
        span.dataset.step = at;
        span.title = from ? `${step.drafter || "draft"} at position ${from}` : step.kind === "unknown" ? "origin unknown" : "target";
        return span;
      }));
      const end = this.spans[at].at(-1), lost = describeRejected(step);
      if (end && lost) {
        end.classList.add("lost");
        end.title += "\nrejected: " + visible(lost);
      }
      fragment.append(...this.spans[at]);
    }
    const follows = this.written.scrollTop + this.written.clientHeight > this.written.scrollHeight - 40;
    this.written.append(fragment);
    if (follows) this.written.scrollTop = this.written.scrollHeight;
    if (this.at === null) {
      this.range.max = this.range.value = this.steps.length - 1;
      this.place.textContent = `${this.steps.length} steps`;
    }
    this.count();
  }

  count() {
    const said = [`${this.tokens} tokens`, `${this.steps.length} steps`];
    const speed = this.timings?.predicted_per_second ?? (this.last > this.first ? 1000 * (this.tokens - 1) / (this.last - this.first) : null);
    if (speed) said.push(`${fixed(speed, 0)} tok/s`);
    if (this.verified) said.push(`acceptance length ${fixed(1 + this.accepted / this.verified)}`);
    this.numbers.textContent = said.join(" · ");
  }

  async run(key, signal) {
    const began = performance.now();
    const tick = () => { this.clock.textContent = fixed((performance.now() - began) / 1000) + " s"; };
    const ticking = setInterval(tick, 50);
    this.box.dataset.state = "running";
    try {
      await ask(this.q, key, signal, (kind, value) => this.told(kind, value));
      this.box.dataset.state = "done";
    } catch (error) {
      this.box.dataset.state = "failed";
      this.detail.textContent = visible(signal.aborted ? "stopped" : error.message);
      this.detail.classList.toggle("bad", !signal.aborted);
    } finally {
      clearInterval(ticking);
      tick();
      this.count();
      this.range.max = this.range.value = Math.max(0, this.steps.length - 1);
      this.showAnswer();
    }
  }

  showAnswer() {
    const rows = [["reasoning", this.parts.reasoning], ["content", this.parts.content],
      ...this.calls.map(call => ["call of " + call.name, call.arguments])].filter(([, text]) => text);
    this.answer.hidden = !rows.length;
    this.answer.replaceChildren(...rows.flatMap(([name, text]) => [el("div", visible(name), "dim"), el("pre", visible(text))]));
    if (this.finish) this.answer.append(el("div", "ended by " + this.finish, "dim"));
  }
}

function describeRejected(step) {
  return step.rejected.map(t => `${t.draft_position}: ${t.text === null ? "unknown" : JSON.stringify(t.text)}`).join(", ");
}

function readJson(id, what) {
  const text = $(id).value.trim();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    $("more").open = true;
    throw new Error(`${what} must be JSON: ${error.message}`);
  }
}

const number = id => $(id).value === "" ? null : Number($(id).value);

function question() {
  const tools = readJson("tools", "Tools") || [];
  if (!Array.isArray(tools)) throw new Error("Tools must be a list");
  return {
    api: $("api").value, model: $("model").value, depth: readDepth($("depth").value), system: $("system").value,
    prompt: $("prompt").value, pictures: listPictures(), tools, schema: readJson("schema", "The schema"), effort: $("effort").value,
    temperature: number("temperature"), seed: number("seed"), tokens: number("tokens") || 200,
  };
}

const readDepth = text => text === "auto" ? null : Number(text);
const nameDepth = depth => depth === null ? "depth auto" : depth === 0 ? "no speculation" : "depth " + depth;

function questions() {
  const first = question(), beside = $("beside").value;
  const asked = [[`${first.model}, ${nameDepth(first.depth)}`, first]];
  if (beside.startsWith("depth:")) {
    const depth = readDepth(beside.slice(6));
    asked.push([`${first.model}, ${nameDepth(depth)}`, { ...first, depth }]);
  } else if (beside.startsWith("model:")) {
    const model = beside.slice(6);
    asked.push([`${model}, ${nameDepth(first.depth)}`, { ...first, model }]);
  }
  return asked;
}

function say(text, bad = false) {
  $("said").textContent = visible(text);
  $("said").classList.toggle("bad", bad);
}

async function run() {
  let asked;
  try {
    asked = questions();
  } catch (error) {
    say(error.message, true);
    return;
  }
  say("");
  running = new AbortController();
  $("run").disabled = true;
  $("stop").disabled = false;
  const panels = asked.map(([title, q]) => new Panel(title, q)), key = $("key").value, signal = running.signal;
  $("panels").replaceChildren(...panels.map(panel => panel.box));
  $("panels").classList.toggle("one", panels.length === 1);
  try {
    if ($("order").value === "together") await Promise.all(panels.map(panel => panel.run(key, signal)));
    else for (const panel of panels) if (!signal.aborted) await panel.run(key, signal);
    if (panels.length === 2) compare(...panels);
  } finally {
    running = null;
    $("run").disabled = false;
    $("stop").disabled = true;
    $("panels").dataset.done = String(Number($("panels").dataset.done || 0) + 1);
  }
}

function compare(one, other) {
  if (one.box.dataset.state !== "done" || other.box.dataset.state !== "done") return;
  const text = panel => panel.steps.flatMap(step => step.tokens.map(token => token.id)).join();
  const same = text(one) === text(other) ? "the same tokens" : "other tokens";
  const speeds = [one, other].map(panel => panel.timings?.predicted_per_second);
  say(speeds[0] && speeds[1] ? `${same} · ${fixed(speeds[0] / speeds[1])}x the speed of the other` : same);
}

async function copy(make) {
  try {
    const text = make(question(), Boolean($("key").value));
    $("copied").value = text;
    $("copied").hidden = false;
    await navigator.clipboard.writeText(text);
    say("copied");
  } catch (error) {
    say($("copied").value ? "select the text below" : error.message, true);
  }
}

function choose(name) {
  const example = EXAMPLES[name];
  for (const id of ["system", "prompt"]) $(id).value = example[id] || "";
  for (const id of ["tools", "schema"]) $(id).value = example[id] ? JSON.stringify(example[id], null, 2) : "";
  $("effort").value = example.effort || "";
  $("more").open = Boolean(example.tools || example.schema);
}

function option(value, text = value) {
  const made = el("option", text);
  made.value = value;
  return made;
}

function legend(depth, lookup) {
  const mark = (name, cls) => {
    const box = el("span"), dot = el("i", undefined, cls);
    box.append(dot, name);
    return box;
  };
  const marks = [mark("target", "")];
  for (let at = 1; at <= Math.min(depth, HUES); at++) marks.push(mark(`draft ${at}${at === HUES && depth > HUES ? "+" : ""}`, "d" + at));
  if (lookup) marks.push(mark("lookup", "lookup"));
  const lost = el("span", "dotted: drafts after it were rejected");
  $("legend").replaceChildren(...marks, lost);
}

async function learn() {
  const ready = await fetch("ready", { cache: "no-store" }), state = await ready.json();
  if (!ready.ok) throw new Error("the engine is " + state.status);
  const depth = state.engine.num_speculative_tokens, depths = ["auto", ...Array(depth + 1).keys()].map(String);
  $("depth").replaceChildren(...depths.map(d => option(d, d)));
  legend(depth, state.engine.lookup);
  const key = $("key").value, headers = key ? { authorization: "Bearer " + key } : {};
  const answer = await fetch("v1/models", { headers, cache: "no-store" });
  if (answer.status === 404) throw new Error("this port serves no API: open /playground at the API's address");
  const models = answer.ok ? (await answer.json()).data.map(card => card.id) : [state.engine.model];
  $("model").replaceChildren(...models.map(name => option(name)));
  $("beside").replaceChildren(option("", "nothing"), ...depths.map(d => option("depth:" + d, d === "0" ? "no speculation" : "depth " + d)),
    ...models.slice(1).map(name => option("model:" + name, "model " + name)));
  if (answer.status === 401) say("This gateway needs an API key.", true);
  else say("");
  document.body.dataset.playground = "1";
}

async function open() {
  try {
    await learn();
  } catch (error) {
    say(error.message, true);
    setTimeout(open, 3000);
  }
}

let opened = false;
const alone = location.pathname.endsWith("/playground");

function view() {
  const play = alone || location.hash === "#playground";
  $("operate").hidden = play;
  $("playground").hidden = !play;
  $("views").hidden = alone;
  for (const id of ["engine", "drafts", "state"]) $(id).hidden = play;
  for (const link of $("views").children) {
    if ((link.hash === "#playground") === play) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (play && !opened) {
    opened = true;
    open();
  }
}

$("example").replaceChildren(...Object.keys(EXAMPLES).map(name => option(name)));
$("example").onchange = () => choose($("example").value);
$("key").value = sessionStorage.getItem(KEY) || "";
$("key").onchange = () => {
  sessionStorage.setItem(KEY, $("key").value);
  open();
};
$("ask").onsubmit = event => {
  event.preventDefault();
  if (!running) run();
};
$("stop").onclick = () => running?.abort();
$("curl").onclick = () => copy(asCurl);
$("python").onclick = () => copy(asPython);
$("api").onchange = () => { $("seed").disabled = $("api").value === "messages"; };
watchPictures(say);
addEventListener("hashchange", view);
choose("chat");
view();
