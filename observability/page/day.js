// The last day of one slice, and the free capacity.
import { $, bar, bars, count, el, fixed, fill, millis, none, percent, spark } from "./dom.js";

export let slice = null; // {kind, name}, or null for all traffic
let changed = () => {};

export function watchSlice(told) {
  changed = told;
  $("dayback").firstElementChild.onclick = () => choose(null);
}

export function choose(next) {
  slice = next;
  changed();
}

export const query = () => slice ? `?kind=${encodeURIComponent(slice.kind)}&name=${encodeURIComponent(slice.name)}` : "";
const named = () => slice ? `: ${slice.kind} ${slice.name}` : "";

const CHARTS = [
  ["Throughput", "tokens_per_s", 0, y => fixed(y, 0) + " tok/s"],
  ["Acceptance length", "acceptance_length", 1, y => fixed(y)],
  ["Fallback ratio", "fallback_ratio", 0, percent],
  ["Time to first token", "ttft_s", 0, millis],
  ["Time per token", "tpot_s", 0, millis],
  ["Requests", "requests", 0, count],
];

// The time between the first slot and now, at least an hour.
const spanOf = day => Math.max(3600, day.now - (day.slots[0]?.at ?? day.now));

// Each slot, with its start and its end.
const points = (day, read) => day.slots.filter(slot => !none(read(slot))).flatMap(slot => {
  const y = read(slot), age = day.now - slot.at;
  return [{ age, y }, { age: Math.max(0, age - day.slot_s), y }];
});

function chart(title, field, floor, show, day) {
  const box = el("div", undefined, "tile"), span = spanOf(day), known = points(day, slot => slot[field]);
  const top = known.length ? Math.max(...known.map(p => p.y)) : null;
  const head = el("div", title, "what");
  box.append(head, el("div", none(top) ? "no data" : `last ${show(known.at(-1).y)}, most ${show(top)}`, "note"));
  box.append(spark(known, span, floor));
  const axis = el("div", undefined, "axis");
  axis.append(el("span", `−${fixed(span / 3600, span < 36000 ? 1 : 0)} h`), el("span", "now"));
  box.append(axis);
  return box;
}

export function showDay(day) {
  $("day").hidden = false;
  $("dayof").textContent = $("requestsof").textContent = named();
  $("dayback").hidden = !slice;
  $("charts").replaceChildren(...CHARTS.map(row => chart(...row, day)));
  const depths = sumColumns(day.slots.map(slot => slot.steps_by_depth)), steps = depths.reduce((a, b) => a + b, 0);
  bars($("daydepths"), steps ? depths.map((n, depth) => bar("depth " + depth, n / steps)) : [], "No decode step.");
  counts($("toolcalls"), day.counts.tools, "No tool call.");
  counts($("endings"), { ...day.counts.ended, ...prefix("refused: ", day.counts.refused), ...prefix("engine lost: ", day.counts.recovered) }, "None.");
  $("dayaccepted").replaceChildren(...acceptance(day));
  const events = day.events.slice(-8).reverse().map(e => el("div", `${new Date(1000 * e.at).toLocaleTimeString()} ${e.what}: ${e.name} (${e.more})`));
  bars($("events"), events, "None.");
}

const prefix = (text, counted) => Object.fromEntries(Object.entries(counted).map(([name, n]) => [text + name, n]));

function sumColumns(rows) {
  const sums = [];
  for (const row of rows) row.forEach((n, at) => { sums[at] = (sums[at] || 0) + n; });
  return sums;
}

function counts(box, counted, empty) {
  const rows = Object.entries(counted).sort((a, b) => b[1] - a[1]), all = rows.reduce((sum, [, n]) => sum + n, 0);
  bars(box, rows.map(([name, n]) => bar(name, n / all, "", count(n))), empty);
}

// One line for each position: how often it was accepted over the day, given the position before.
function acceptance(day) {
  const deepest = Math.max(0, ...day.slots.map(slot => slot.acceptance_at.length)), rows = [];
  for (let at = 0; at < deepest; at++) {
    const row = el("div", undefined, "bar wide");
    const known = points(day, slot => slot.acceptance_at[at]);
    row.append(el("span", "position " + (at + 1)), spark(known, spanOf(day), 0, 1), el("span", percent(known.at(-1)?.y)));
    rows.push(row);
  }
  return rows.length ? rows : [el("div", "No draft was verified.", "empty")];
}

const GPU = [
  ["memory", g => [`${fixed(g.memory_used_bytes / 2 ** 30, 1)} of ${fixed(g.memory_total_bytes / 2 ** 30, 1)} GiB`]],
  ["busy", g => [percent(g.utilization)]],
  ["power", g => [none(g.power_watts) ? "–" : fixed(g.power_watts, 0) + " W"]],
];

export function showRoom(data) {
  const queue = data.admission;
  $("room").hidden = !queue && !data.gpus.length;
  const said = queue ? [`${queue.running} running`, `${queue.queued} waiting`, `${count(queue.queued_tokens)} prompt tokens waiting`] : [];
  for (const [name, most] of Object.entries(queue?.limits || {})) if (typeof most === "number") said.push(`${name.replaceAll("_", " ")} at most ${count(most)}`);
  $("admission").textContent = said.join(" · ");
  $("gpus").hidden = !data.gpus.length;
  fill($("gpus"), "GPU", GPU, data.gpus.map(g => [String(g.index), g]));
}
