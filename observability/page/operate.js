// The operator's view: what the gateway does now, from /debug.
import { $, bar, count, el, fill, fixed, millis, none, percent, spark } from "./dom.js";
import { choose, query, showDay, showRoom, slice, watchSlice } from "./day.js";

const POLL_MS = 2000;
const SLOW_POLLS = 10; // the day changes slowly
let kind = "workload";
let last = null;

function drift(ratio) {
  if (none(ratio)) return ["no baseline yet", ""];
  const change = Math.round(100 * (ratio - 1));
  const cls = change <= -20 ? "bad" : change <= -8 ? "warn" : change >= 0 ? "good" : "";
  return [(change > 0 ? "+" : change < 0 ? "−" : "±") + Math.abs(change) + " % vs baseline", cls];
}

const MEANING = {
  "Acceptance length": "Tokens per verify step: 1 + accepted draft tokens / verify steps. 1 means that every draft token is rejected.",
  "Fallback ratio": "Share of decode steps that ran at the target's own speed, because every draft token was rejected or there was none.",
  "Time per token": "TPOT: time from the first to the last token / tokens after the first.",
  "Throughput": "Output tokens per second, over all requests.",
  "Time to first token": "TTFT: from the arrival of a request to its first token, queueing included. Mean.",
  "Gain over no speculation": "Estimated by the depth planner since the start: time that the tokens would have taken without drafts / planned time. Unknown without a planner; `eaglegate bench` measures it.",
};

function tile(what, value, note, cls, history, field, span, floor = 0) {
  const box = el("div", undefined, "card tile");
  box.title = MEANING[what];
  box.append(el("span", what, "what"), el("b", value), el("div", note, "note " + cls));
  if (field) {
    box.append(spark(history.map(h => ({ age: h.age_s, y: h[field] })), span, floor));
    const axis = el("div", undefined, "axis");
    axis.append(el("span", `−${Math.round(span / 60)} min`), el("span", "now"));
    box.append(axis);
  }
  return box;
}

function gain(data) {
  const value = data.planner && data.planner.gain;
  if (none(value)) return tile("Gain over no speculation", "–", "no depth planner runs", "", [], null, 0);
  const cls = value < 0.97 ? "bad" : value > 1.03 ? "good" : "";
  return tile("Gain over no speculation", fixed(value) + "x", `estimated, last draft ${data.planner.steps_since_draft} steps ago`, cls, [], null, 0);
}

function problem(data) {
  $("problem").hidden = data.problems.length === 0;
  $("problem").replaceChildren(...data.problems.map(text => el("div", text)));
}

function tiles(data) {
  const all = data.all, span = data.window_s, past = data.history;
  const [note, cls] = drift(all.against_baseline);
  const acceptance = tile("Acceptance length", fixed(all.acceptance_length), none(all.acceptance_length) ? "no draft verified" : note, none(all.acceptance_length) ? "" : cls, past, "acceptance_length", span, 1);
  acceptance.classList.toggle("alarm", !none(all.problem));
  const failed = all.failed ? `${all.failed} failed` : "none failed";
  $("tiles").replaceChildren(
    acceptance,
    gain(data),
    tile("Fallback ratio", percent(all.fallback_ratio), "of decode steps", "", past, "fallback_ratio", span),
    tile("Time per token", millis(all.tpot_s), all.tpot_s ? fixed(1 / all.tpot_s, 0) + " tok/s per reader" : "", "", past, "tpot_s", span),
    tile("Time to first token", millis(all.ttft_s), `${count(all.requests)} requests, ${failed}`, all.failed ? "bad" : "", past, "ttft_s", span),
    tile("Throughput", data.tokens_per_s.toFixed(data.tokens_per_s < 10 ? 1 : 0) + " tok/s", data.running + " running", "", past, "tokens_per_s", span));
}

function bars(data) {
  const all = data.all, rows = all.conditional_acceptance.map((c, i) => bar("position " + (i + 1), c));
  $("positions").replaceChildren(...(rows.length ? rows : [el("div", "No draft was verified.", "empty")]));
  const reasons = Object.entries(all.fallback_by_reason);
  $("reasons").replaceChildren(...(reasons.length ? reasons.map(([r, x]) => bar(r, x, r)) : [el("div", "No decode step yet.", "empty")]));
}

const COLUMNS = [
  ["requests", r => [count(r.requests)]],
  ["tokens", r => [count(r.tokens)]],
  ["acceptance", r => [fixed(r.acceptance_length), r.problem ? "bad" : ""]],
  ["vs baseline", r => { const [t, c] = drift(r.against_baseline); return [none(r.against_baseline) ? "–" : t.replace(" vs baseline", ""), c]; }],
  ["depth", r => [fixed(r.mean_depth)]],
  ["wasted", r => [percent(r.drafted_tokens ? r.wasted_tokens / r.drafted_tokens : null)]],
  ["fallback", r => [percent(r.fallback_ratio)]],
  ["TPOT", r => [millis(r.tpot_s)]],
  ["TTFT", r => [millis(r.ttft_s)]],
  ["failed", r => [count(r.failed), r.failed ? "bad" : ""]],
];

const PLANNED = [
  ["requests x steps", s => [count(s.requests_by_depth.reduce((a, b) => a + b, 0))]],
  ["mean depth", s => {
    const all = s.requests_by_depth.reduce((a, b) => a + b, 0);
    return [fixed(all ? s.requests_by_depth.reduce((a, b, d) => a + b * d, 0) / all : null)];
  }],
  ["acceptance by position", s => [s.accepted.map(share => fixed(share)).join(" ")]],
];

function planner(data) {
  const p = data.planner;
  $("planner").hidden = none(p);
  if (none(p)) return;
  $("depths").replaceChildren(...p.share_by_depth.map((share, depth) => bar("depth " + depth, share)));
  const reasons = Object.entries(p.steps_by_reason).filter(([, n]) => n).map(([r, n]) => `${r} ${count(n)}`);
  $("beliefs").textContent = [
    none(p.frozen) ? "choosing" : `held at depth ${p.frozen}`,
    "steps by reason: " + reasons.join(", "),
    `expected / real: tokens ${fixed(p.token_calibration)}, time ${fixed(p.time_calibration)}`,
    `estimated regret against the best fixed depth ${none(p.regret) ? "–" : (100 * p.regret).toFixed(1) + " %"}`,
    `planning ${fixed(p.planning_ms)} ms a step`,
  ].join(" · ");
  fill(document.querySelector("#planner table"), "traffic", PLANNED, p.traffic.map(s => [s.traffic, s]));
}

const WORKER = [
  ["version", w => [w.version || "unknown"]],
  ["state", w => [w.state, w.findings.length ? "bad" : w.state === "serving" ? "good" : w.state === "open" ? "bad" : "warn"]],
  ["running", w => [count(w.running)]],
  ["tokens before it", w => [count(w.outstanding_tokens)]],
  ["requests", w => [count(Object.values(w.requests).reduce((a, b) => a + b, 0))]],
  ["by affinity", w => {
    const all = Object.values(w.requests).reduce((a, b) => a + b, 0);
    return [percent(all ? (w.requests.session + w.requests.prefix) / all : null)];
  }],
  ["moved away", w => [count(w.retried + w.continued)]],
  ["acceptance", w => [fixed(w.acceptance_length), w.problem ? "bad" : ""]],
];

function workers(data) {
  $("fleet").hidden = data.workers.length === 0;
  fill($("workers"), "worker", WORKER, data.workers.map(w => [w.name, w]));
  for (const [at, worker] of data.workers.entries()) $("workers").tBodies[0].rows[at].title = worker.reason || worker.findings.map(f => f.text).join("\n");
}

function table(data) {
  const named = Object.keys(data.slices.key || {}).length > 0;
  const kinds = Object.keys(data.slices).filter(name => name !== "key" || named || name === kind);
  $("kinds").replaceChildren(...kinds.map(name => {
    const button = el("button", name);
    button.setAttribute("aria-pressed", String(name === kind));
    button.onclick = () => { kind = name; table(last); };
    return button;
  }));
  const rows = Object.entries(data.slices[kind]).filter(([, r]) => r.requests || r.tokens);
  rows.sort((a, b) => b[1].tokens - a[1].tokens);
  const found = document.querySelector("#slices table");
  fill(found, kind, COLUMNS, rows);
  for (const [at, row] of [...found.tBodies[0].rows].entries()) {
    const name = rows[at][0];
    act(row, () => choose({ kind, name }));
    row.title = "its day and its requests";
    row.classList.toggle("chosen", slice?.kind === kind && slice?.name === name);
  }
  $("empty").hidden = rows.length > 0;
  found.hidden = rows.length === 0;
}

const LISTS = { recent: "newest", slowest: "slowest", worst_accepted: "worst accepted", failed: "failed" };
const REQUEST = [
  ["at", r => [new Date(r.at).toLocaleTimeString()]],
  ["wall time", r => [millis(r.wall_ms / 1000)]],
  ["TTFT", r => [none(r.ttft_ms) ? "–" : millis(r.ttft_ms / 1000)]],
  ["tokens", r => [none(r.completion_tokens) ? "–" : `${r.prompt_tokens} + ${r.completion_tokens}`]],
  ["acceptance", r => [fixed(r.acceptance_length)]],
  ["outcome", r => [r.code || r.outcome, r.outcome === "completed" ? "" : r.outcome === "client_gone" ? "warn" : "bad"]],
];
const COLORS = {
  "receiving": "#8893a5", "queue": "#c9a227", "rendering": "#6aa56b", "grammar": "#2f9e8f", "engine queue": "#d97b2b",
  "prefill": "#8a63d2", "decode": "#0b6bcb", "recovery": "#c02b2b", "parsing": "#5bbad5", "writing": "#d65f9e", "closing": "#7c6a5a",
};
let list = "recent";
let chosen = null;

function requests(lists) {
  $("requests").hidden = false;
  $("lists").replaceChildren(...Object.keys(LISTS).map(name => {
    const button = el("button", `${LISTS[name]} ${lists[name].length}`);
    button.setAttribute("aria-pressed", String(name === list));
    button.onclick = () => { list = name; requests(lists); };
    return button;
  }));
  const rows = lists[list].slice(0, innerWidth < 760 ? 6 : 12), table = document.querySelector("#requests table");
  fill(table, "request", REQUEST, rows.map(r => [r.id || r.request_id, r]));
  table.hidden = rows.length === 0;
  $("norequests").hidden = rows.length > 0;
  for (const [at, row] of [...table.tBodies[0].rows].entries()) {
    act(row, () => explain(rows[at].id || rows[at].request_id));
  }
}

function act(row, does) {
  row.tabIndex = 0;
  row.setAttribute("role", "button");
  row.onclick = does;
  row.onkeydown = event => { if (event.key === "Enter") does(); };
}

async function explain(id) {
  chosen = id;
  const answer = await fetch("debug/requests/" + encodeURIComponent(id), { cache: "no-store" });
  if (answer.ok && chosen === id) explained(await answer.json());
}

function explained(r) {
  const box = $("explained"), head = el("div", undefined, "head"), stack = el("div", undefined, "stack");
  head.append(el("b", r.id || r.request_id), el("span", `${r.path} ${r.status}`, "dim"), el("span", millis(r.wall_ms / 1000)));
  const copy = el("button", "copy as JSON");
  copy.onclick = () => navigator.clipboard.writeText(JSON.stringify(r, null, 2));
  const nav = el("nav"); nav.append(copy); head.append(nav);
  const parts = r.parts.filter(p => p.ms > 0).map(p => {
    const line = el("div", undefined, "part"), dot = el("i"), piece = el("div");
    dot.style.background = piece.style.background = COLORS[p.name] || "var(--off)";
    piece.style.width = (100 * p.share) + "%";
    piece.title = p.name;
    stack.append(piece);
    line.append(dot, el("span", p.name), el("span", p.ms.toFixed(1) + " ms"), el("span", percent(p.share), "dim"));
    return line;
  });
  box.replaceChildren(head, stack, ...parts);
  if (r.decode) box.append(el("div", `of decode, estimated: drafting ${r.decode.drafting_ms.toFixed(1)} ms, verifying ${r.decode.verifying_ms.toFixed(1)} ms, for rejected drafts ${r.decode.of_which_rejected_ms.toFixed(1)} ms`, "dim"));
  for (const [at, choice] of (r.choices || []).entries()) box.append(...depths(choice, at));
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

const planned = (counts, before) => {
  const rows = Object.entries(counts).map(([reason, n]) => `${reason} ${n}`);
  return rows.length ? before + rows.join(", ") : "";
};

function depths(choice, at) {
  const line = el("div", undefined, "runs"), most = Math.max(1, ...choice.runs.map(run => run.drafted));
  for (const run of choice.runs) {
    const piece = el("div");
    piece.style.flex = String(run.steps);
    piece.style.height = (100 * run.drafted / most) + "%";
    piece.title = `from token ${run.from_token}: depth ${run.drafted}${run.reason ? " (" + run.reason + ")" : ""}, ${run.steps} steps, ${run.tokens} tokens` + planned(run.planned, " planned: ") + (run.lookups ? ` lookups: ${run.lookups}` : "");
    line.append(piece);
  }
  const said = [`choice ${at}: depth over ${choice.steps} decode steps, at most ${most}` + planned(choice.planned, "; planned: ")];
  if (choice.preemptions) said.push(`${choice.preemptions} preemptions`);
  for (const loss of choice.interruptions) said.push(`engine lost at ${loss.at_ms.toFixed(0)} ms: ${loss.outcome}`);
  return [line, el("div", said.join(" · "), "dim")];
}

async function pollRequests() {
  const answer = await fetch("debug/requests" + query(), { cache: "no-store" });
  const focused = document.querySelector("#requests table").contains(document.activeElement);
  if (answer.ok && !focused) requests(await answer.json());
}

function speculation(e) {
  if (e.method === "none") return "no speculation";
  if (e.method === "unknown") return e.depth ? `draft unknown, K = ${e.depth}` : "speculation unknown";
  return `${e.method}, K = ${e.depth}` + (e.lookup ? `, lookups of up to ${e.lookup}` : "");
}

function drafts(data) {
  const draft = data.draft && data.draft !== "none" ? [`draft ${data.draft}`] : [];
  return [...draft, ...data.headlines].join(" · ");
}

function show(data) {
  last = data;
  const engines = Object.values(data.engines);
  $("engine").textContent = engines.length
    ? engines.map(e => `${e.model}${e.worker ? " at " + e.worker : ""} · ${speculation(e)}`).join("  |  ")
    : "the engine is not ready";
  $("drafts").textContent = drafts(data);
  $("window").textContent = `eaglegate ${data.version} · the last ${Math.round(data.window_s / 60)} minutes.`;
  problem(data);
  tiles(data);
  bars(data);
  workers(data);
  planner(data);
  table(data);
  showRoom(data);
}

let polls = 0;

async function pollDay() {
  const day = await fetch("debug/history" + query(), { cache: "no-store" });
  if (day.ok) showDay(await day.json());
}

function state(text, stale) {
  $("state").textContent = text;
  $("state").className = "dim" + (stale ? " stale" : "");
}

async function poll() {
  try {
    const answer = await fetch("debug/speculation", { cache: "no-store" });
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    show(await answer.json());
    state("live", false);
    await pollRequests();
    if (polls++ % SLOW_POLLS === 0) await pollDay();
    document.body.dataset.ready = "1";
  } catch (error) {
    state("no answer (" + error.message + ")", true);
  }
}

async function loop() {
  if (!document.hidden && !$("operate").hidden) await poll();
  setTimeout(loop, POLL_MS);
}
watchSlice(async () => {
  if (last) table(last);
  await pollRequests();
  await pollDay();
});
loop();
