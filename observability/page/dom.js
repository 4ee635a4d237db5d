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
