// Helpers that both views of the page use. Text reaches the document through textContent alone.
export const $ = id => document.getElementById(id);
export const none = x => x === null || x === undefined;
export const fixed = (x, digits = 2) => none(x) ? "–" : x.toFixed(digits);
export const percent = x => none(x) ? "–" : (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
export const millis = x => none(x) ? "–" : (1000 * x).toFixed(x < 0.01 ? 2 : x < 0.1 ? 1 : 0) + " ms";
export const count = x => x >= 1e6 ? (x / 1e6).toFixed(1) + "M" : x >= 1e4 ? (x / 1e3).toFixed(1) + "k" : String(x);

export function el(tag, text, cls) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (cls) node.className = cls;
  return node;
}

export function spark(points, span, floor, most) {
  const NS = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", "0 0 100 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const known = points.filter(p => !none(p.y));
  if (known.length < 2) return svg;
  const room = (most ?? Math.max(...known.map(p => p.y))) - floor || 1;
  const at = p => [100 - 100 * p.age / span, 38 - 36 * (p.y - floor) / room];
  const line = document.createElementNS(NS, "polyline");
  line.setAttribute("points", known.map(p => at(p).map(v => v.toFixed(2)).join(",")).join(" "));
  svg.append(line);
  return svg;
}

export function bar(name, share, color, text = percent(share)) {
  const box = el("div", undefined, "bar"), track = el("div", undefined, "track"), part = el("div", undefined, "fill");
  part.style.width = (100 * Math.min(1, share || 0)) + "%";
  if (color) part.style.background = `var(--${color})`;
  track.append(part);
  box.append(el("span", name), track, el("span", text));
  return box;
}

export function fill(table, what, columns, rows) {
  const head = el("tr");
  head.append(el("th", what), ...columns.map(([name]) => el("th", name)));
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows.map(([name, r]) => {
    const line = el("tr");
    line.append(el("td", name));
    for (const [column, read] of columns) {
      const [text, cls] = read(r), cell = el("td", text, cls);
      cell.dataset.name = column;
      line.append(cell);
    }
    return line;
  }));
}

export function bars(box, rows, empty) {
  box.replaceChildren(...(rows.length ? rows : [el("div", empty, "empty")]));
}
