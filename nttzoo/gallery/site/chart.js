/** Charts as SVG: axes, curves with their names, points that open a network. */
import { el, explain, svg } from "./dom.js";

/**
 * @typedef {object} Axis
 * @property {number} low
 * @property {number} high
 * @property {boolean} [log]
 * @property {boolean} [error] of accuracies: a logarithmic scale of the error, which tells 98 % from 99 %
 * @property {number[]} ticks
 * @property {(value: number) => string} text
 * @property {string} title
 */

/** Where a value lies between 0 and 1. @param {Axis} axis @param {number} value */
function share(axis, value) {
  const at = (/** @type {number} */ x) => (axis.log ? Math.log(x) : axis.error ? -Math.log(Math.max(1e-4, 1 - x)) : x);
  return (at(value) - at(axis.low)) / (at(axis.high) - at(axis.low));
}

/** @typedef {{ x: number, y: number, href?: string, label?: string, mark?: "filled" | "hollow" | "diamond" }} Point */
/** @typedef {{ point: Point, cx: number, cy: number, color: string }} Spot */

/**
 * @typedef {object} Series
 * @property {string} name written beside its end, if it has one
 * @property {string} color a custom property
 * @property {Point[]} points
 * @property {boolean} [thin]
 * @property {boolean} [dashed]
 * @property {boolean} [dots]
 */

/** Ticks at 1, 2 and 5 times powers of ten. @param {number} low @param {number} high */
export function logTicks(low, high) {
  const ticks = [];
  for (let power = -6; power < 9; power++) {
    for (const step of [1, 2, 5]) {
      const value = step * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(Number(value.toPrecision(2)));
    }
  }
  return ticks.length > 7 ? ticks.filter((tick) => String(tick).replace(/[0.]/g, "").startsWith("1")) : ticks;
}

/** An axis of accuracies in percent, from just below `low` to just above `high`, on a logarithmic scale of the error. @param {number} low @param {number} high @returns {Axis} */
export function accuracyAxis(low, high) {
  const ends = [0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999];
  const from = ends.filter((end) => end <= low).pop() ?? 0;
  const to = ends.find((end) => end >= high) ?? 0.9995;
  const inside = ends.filter((end) => end >= from && end <= to);
  const ticks = inside.length > 8 ? inside.filter((end) => ![0.7, 0.85, 0.97].includes(end)) : inside;
  return { low: from, high: to, error: true, ticks, text: (value) => String(Number((100 * value).toFixed(1))), title: "" };
}

/** Round ticks, about `count` of them. @param {number} low @param {number} high */
export function linearTicks(low, high, count = 5) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) ticks.push(Number((k * step).toPrecision(10)));
  return ticks;
}

/**
 * A chart of curves and points.
 * @param {{ x: Axis, y: Axis, series: Series[], label: string, width?: number, height?: number, right?: number }} about
 * @returns {SVGSVGElement}
 */
export function chart({ x, y, series, label, width = 560, height = 330, right = 118 }) {
  if (innerWidth < 736) [width, height, right] = [innerWidth - 32, 270, Math.min(right, 104)];
  const left = 34;
  const top = 10;
  const bottom = 40;
  const across = width - left - right;
  const down = height - top - bottom;
  const px = (/** @type {number} */ value) => left + across * share(x, value);
  const py = (/** @type {number} */ value) => top + down * (1 - share(y, value));
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  for (const tick of y.ticks) {
    root.append(svg("line", { class: "grid", x1: left, x2: left + across, y1: py(tick), y2: py(tick) }));
    root.append(svg("text", { x: left - 8, y: py(tick) + 4, "text-anchor": "end" }, y.text(tick)));
  }
  for (const tick of x.ticks) {
    root.append(svg("text", { x: px(tick), y: top + down + 18, "text-anchor": "middle" }, x.text(tick)));
  }
  root.append(svg("text", { x: left + across / 2, y: height - 4, "text-anchor": "middle" }, x.title));
  /** @type {Spot[]} */
  const spots = [];
  const names = /** @type {{ at: number, node: SVGTextElement }[]} */ ([]);
  for (const one of series.filter((candidate) => candidate.points.length)) {
    const points = one.points.filter((point) => Number.isFinite(point.y));
    const line = points.map((point) => `${px(point.x).toFixed(1)},${py(Math.max(y.low, Math.min(y.high, point.y))).toFixed(1)}`);
    const style = `stroke: var(${one.color})`;
    const kind = `curve${one.thin ? " thin" : ""}${one.dashed ? " dashed" : ""}`;
    if (line.length > 1) root.append(svg("polyline", { class: kind, style, points: line.join(" ") }));
    if (line.length === 1 && !one.dots) {
      const [cx, cy] = line[0].split(",");
      root.append(svg("circle", { cx, cy, r: 2, style: `fill: var(${one.color})` }));
    }
    for (const point of one.dots || (one.thin && !one.dashed) ? points : []) {
      spots.push({ point, cx: px(point.x), cy: py(Math.max(y.low, Math.min(y.high, point.y))), color: one.color });
    }
    if (!one.name) continue;
    const last = points[points.length - 1];
    const at = py(Math.max(y.low, Math.min(y.high, last.y)));
    const node = svg("text", { class: "name", x: left + across + 10, style: `fill: var(${one.color})` }, one.name);
    names.push({ at, node });
  }
  // Baselines first: what opens a network lies on top.
  spots.sort((a, b) => Number(Boolean(a.point.href)) - Number(Boolean(b.point.href)));
  root.append(...spots.map((spot) => dot(spot, spots)));
  spread(names, top + 4, top + down, 13);
  root.append(...names.map(({ at, node }) => (node.setAttribute("y", String(at + 4)), node)));
  return root;
}

/** A point that says what it is and opens its network; half the way to its neighbors is its own. @param {Spot} spot @param {Spot[]} all */
function dot(spot, all) {
  const { point, cx, cy, color } = spot;
  const own = Boolean(point.href);
  const style = `fill: var(${point.mark === "hollow" ? "--paper" : color}); stroke: var(${color}); stroke-width: ${own ? 2 : 0}`;
  const mark = point.mark === "diamond"
    ? svg("path", { d: `M${cx} ${cy - 6}l6 6l-6 6l-6 -6z`, style })
    : svg("circle", { cx, cy, r: own ? 5 : 2, style });
  if (!point.label) return mark;
  const near = all.filter((other) => other !== spot && (!own || other.point.href)).map((other) => Math.hypot(other.cx - cx, other.cy - cy));
  const reach = Math.max(own ? 5 : 3, Math.min(own ? 14 : 8, ...near.map((distance) => distance / 2)));
  const kind = own ? svg("a", { href: point.href, "aria-label": point.label }) : svg("g", { role: "img", "aria-label": point.label });
  kind.append(mark, svg("circle", { cx, cy, r: reach, class: "hit", fill: "transparent" }));
  explain(kind, () => point.label ?? "");
  return kind;
}

/** Moves names apart that would lie over each other. @param {{ at: number }[]} names @param {number} low @param {number} high @param {number} gap */
function spread(names, low, high, gap) {
  names.sort((a, b) => a.at - b.at);
  for (let i = 0; i < names.length; i++) names[i].at = Math.max(names[i].at, i ? names[i - 1].at + gap : low);
  for (let i = names.length - 1; i >= 0; i--) names[i].at = Math.min(names[i].at, i < names.length - 1 ? names[i + 1].at - gap : high);
}

/** Bars with a name on the left and a text on the right. @param {{ name: string, share: number, text: string, other?: boolean }[]} rows */
export function bars(rows) {
  const cells = rows.flatMap((row) => [
    el("span", { class: "mono" }, row.name),
    el("span", { class: "track", "aria-hidden": "true" }, el("i", { class: row.other ? "other" : "", style: `width: ${Math.max(0, 100 * row.share)}%` })),
    el("span", {}, row.text),
  ]);
  return el("div", { class: "bars" }, ...cells);
}
