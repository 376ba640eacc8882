/** The zoo: plots of accuracy, and all networks as a table to filter and sort. */
import { bytesOf, FACTS, has, measuredOf } from "./data.js";
import { accuracyAxis, chart, logTicks } from "./chart.js";
import { densityText, el, kilobytes, mean, percent, times } from "./dom.js";
import { counts, signed } from "./pictures.js";

/** @typedef {import("./data.js").Entry} Entry */
/** @typedef {{ words: string, dataset: string, architecture: string, scheme: string, density: string }} Filter */

const BASELINES = /** @type {Record<string, string>} */ ({ random: "random mask", scaled_random: "scaled random", magnitude: "magnitude", snip: "SNIP", logit_snip: "logit SNIP" });
const METHODS = /** @type {Record<string, string>} */ ({ ntt: "NTT", "ntt+": "NTT+", gradual: "gradual NTT", dense: "dense network", grasp: "GraSP", synflow: "SynFlow" });
const MARKS = /** @type {Record<string, "filled" | "hollow">} */ ({ global: "filled", layerwise: "hollow" });
const TINTS = ["--accent", "--third", "--good", "--minus"];
const ARCHITECTURES = /** @type {Record<string, string>} */ ({ lenet300: "LeNet-300-100", lenet5: "LeNet-5", conv4: "Conv-4", gru: "GRU", ds_cnn: "DS-CNN", resnet20: "ResNet-20" });

/** @param {string} name */
export const methodName = (name) => METHODS[name] ?? BASELINES[name] ?? name;

/** @param {string} name */
export const architectureName = (name) => ARCHITECTURES[name] ?? name;

/** @param {Entry} entry @param {Filter} filter */
function matches(entry, filter) {
  const words = filter.words.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${entry.name} ${architectureName(entry.architecture)} ${entry.recipe.name}`.toLowerCase();
  return words.every((word) => text.includes(word))
    && (!filter.dataset || entry.dataset === filter.dataset)
    && (!filter.architecture || entry.architecture === filter.architecture)
    && (!filter.scheme || entry.scheme === filter.scheme)
    && (!filter.density || entry.density <= Number(filter.density));
}

/** @type {{ key: string, title: string, number?: boolean, optional?: boolean, value: (entry: Entry) => string | number | null }[]} */
const COLUMNS = [
  { key: "name", title: "Network", value: (entry) => entry.name },
  { key: "dataset", title: "Data", optional: true, value: (entry) => entry.dataset },
  { key: "density", title: "Weights kept", number: true, value: (entry) => entry.density },
  { key: "accuracy", title: "Test accuracy", number: true, value: (entry) => entry.chosen.test_accuracy },
  { key: "theoretical", title: "Speed-up, theory", number: true, optional: true, value: (entry) => entry.theoretical },
  { key: "measured", title: "Speed-up, measured", number: true, optional: true, value: measuredOf },
  { key: "size", title: "As C", number: true, optional: true, value: (entry) => entry.c?.table_bytes ?? null },
];

/** @param {Entry} entry */
function thumbnail(entry) {
  const cell = el("td", { class: "thumb" });
  const key = has(`pixels-${entry.name}`) ? "pixels" : has(`fields-${entry.name}`) ? "fields" : has(`mask-${entry.name}`) ? "mask" : null;
  if (key) {
    bytesOf(`${key}-${entry.name}`).then((bytes) => {
      const shape = entry.arrays[key];
      if (key === "pixels") cell.append(counts(new Uint16Array(bytes.buffer), shape[0], shape[1], "connections per pixel"));
      else if (key === "mask") cell.append(counts(bytes, shape[0], shape[1], "mask of the first layer"));
      else {
        // The first filters, side by side.
        const [count, height, width] = shape;
        const across = Math.min(4, Math.floor(Math.sqrt(count)));
        const values = new Int8Array(bytes.buffer);
        const mosaic = new Int8Array(across * height * across * width);
        for (let y = 0; y < across * height; y++) {
          for (let x = 0; x < across * width; x++) {
            const filter = Math.floor(y / height) * across + Math.floor(x / width);
            mosaic[y * across * width + x] = values[(filter * height + (y % height)) * width + (x % width)];
          }
        }
        cell.append(signed(mosaic, across * height, across * width, "filters of the first layer"));
      }
    });
  }
  return cell;
}

const missing = () => el("span", { class: "soft" }, el("span", { "aria-hidden": "true" }, "–"), el("span", { class: "hidden" }, "not measured"));

/** @param {Entry} entry */
function tableRow(entry) {
  const faster = measuredOf(entry);
  const accuracy = entry.chosen.test_accuracy;
  return el("tr", { class: "entry", "data-name": entry.name },
    thumbnail(entry),
    el("td", { class: "name" }, el("a", { href: `#/${entry.name}` }, entry.name)),
    el("td", { class: "optional" }, entry.dataset),
    el("td", { class: "number" }, densityText(entry.density)),
    el("td", { class: "number" }, percent(accuracy, 2), el("span", { class: "level optional", "aria-hidden": "true" }, el("i", { style: `width: ${100 * accuracy}%` }))),
    el("td", { class: "number optional" }, times(entry.theoretical)),
    el("td", { class: "number optional" }, faster === null ? missing() : times(faster)),
    el("td", { class: "number optional" }, entry.c ? kilobytes(entry.c.table_bytes) : missing()));
}

/** Accuracy of the methods that were compared, over density: the better of the schemes. @param {Entry[]} entries */
function baselineSeries(entries) {
  return Object.entries(BASELINES).map(([method, name]) => {
    /** @type {Map<number, number>} */
    const best = new Map();
    for (const entry of entries) {
      const row = entry.compared.find((one) => one.method === method);
      if (row) best.set(entry.density, Math.max(best.get(entry.density) ?? 0, mean(row.test_accuracy)));
    }
    const points = [...best].sort((a, b) => a[0] - b[0]).map(([x, y]) => ({ x, y, label: `${name}: ${percent(y, 2)} at ${densityText(x)}` }));
    return { name, color: "--soft", thin: true, points };
  });
}

/** @param {Entry[]} entries @param {(entry: Entry) => number | null} value */
function ownSeries(entries, value) {
  const groups = [...new Set(entries.map((entry) => `${entry.architecture} ${entry.scheme}`))].sort();
  const named = new Set();
  return groups.map((group) => {
    const [architecture, scheme] = group.split(" ");
    const name = named.has(architecture) ? "" : architectureName(architecture);
    named.add(architecture);
    const own = entries.filter((entry) => entry.architecture === architecture && entry.scheme === scheme && value(entry) !== null);
    const points = own.map((entry) => ({
      x: /** @type {number} */ (value(entry)), y: entry.chosen.test_accuracy, href: `#/${entry.name}`, mark: MARKS[scheme] ?? "diamond",
      label: `${entry.name}: ${percent(entry.chosen.test_accuracy, 2)}, ${densityText(entry.density)} of the weights`,
    }));
    points.sort((a, b) => a.x - b.x);
    return { name, color: tint(entries, architecture), points, dots: true };
  });
}

/** A color for each architecture. @param {Entry[]} entries @param {string} architecture */
function tint(entries, architecture) {
  const place = byNumber(entries, (entry) => entry.architecture).indexOf(architecture);
  return TINTS[place % TINTS.length];
}

/** The accuracy of each architecture's dense network. @param {Entry[]} entries */
function denseAccuracies(entries) {
  return byNumber(entries, (entry) => entry.architecture).flatMap((architecture) => {
    const own = entries.filter((entry) => entry.architecture === architecture);
    const all = own.flatMap((entry) => entry.compared.filter((row) => row.method === "dense").map((row) => mean(row.test_accuracy)));
    return all.length ? [{ y: mean(all), color: tint(entries, architecture), name: architectureName(architecture) }] : [];
  });
}

/** What entries have, the most frequent first. @param {Entry[]} entries @param {(entry: Entry) => string} value */
function byNumber(entries, value) {
  /** @type {Map<string, number>} */
  const count = new Map();
  for (const entry of entries) count.set(value(entry), (count.get(value(entry)) ?? 0) + 1);
  return [...count].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
}

/** @param {Entry[]} entries all of one data set @param {boolean} measured */
function plots(entries, measured) {
  const main = byNumber(entries, (entry) => entry.architecture)[0];
  const alike = entries.filter((entry) => entry.architecture === main);
  const dense = denseAccuracies(entries);
  const accuracies = entries.map((entry) => entry.chosen.test_accuracy);
  const top = Math.max(...accuracies, ...dense.map((one) => one.y));
  const baselines = baselineSeries(alike).filter((one) => one.points.length);
  const densities = entries.map((entry) => entry.density);
  const [least, most] = [Math.min(...densities), Math.max(...densities)];
  const range = { low: least / 1.25, high: Math.max(most, least * 1.5) * 1.25 };
  const lines = (/** @type {number} */ low, /** @type {number} */ high) => dense.map(({ y, color, name }) => {
    const label = `${name}, dense: ${percent(y, 2)}`;
    return { name: `dense, ${percent(y)}`, color, thin: true, dashed: true, points: [{ x: low, y, label }, { x: high, y, label }] };
  });
  const left = chart({
    x: { ...range, log: true, ticks: logTicks(range.low, range.high), text: densityText, title: "weights kept" },
    y: accuracyAxis(Math.min(...accuracies, ...baselines.flatMap((one) => one.points.map((point) => point.y))), top),
    series: [...baselines, ...lines(range.low, range.high), ...ownSeries(entries, (entry) => entry.density)], label: "Test accuracy in percent over the fraction of weights kept",
  });
  const value = measured ? measuredOf : (/** @type {Entry} */ entry) => entry.theoretical;
  const speeds = entries.map(value).filter((speed) => speed !== null);
  if (!speeds.length) return { left, right: el("p", { class: "empty" }, "No times were measured for these networks.") };
  const speed = { low: Math.min(...speeds) / 1.25, high: Math.max(...speeds) * 1.25 };
  const right = chart({
    x: { ...speed, log: true, ticks: logTicks(speed.low, speed.high), text: (factor) => `${factor}×`, title: measured ? "times faster for one image: nttzoo's C against the dense network in ONNX Runtime" : "times fewer multiply-adds than the dense network" },
    y: accuracyAxis(Math.min(...accuracies), top),
    series: [...lines(speed.low, speed.high), ...ownSeries(entries, value)], label: "Test accuracy in percent over speed-up",
  });
  return { left, right };
}

/** @param {string} title @param {(value: string) => void} changed @param {[string, string][]} options @param {string} any */
function choice(title, changed, options, any) {
  const select = el("select", { change: () => changed(select.value) }, el("option", { value: "" }, any), ...options.map(([value, text]) => el("option", { value }, text)));
  return el("label", {}, title, select);
}

/** @param {(entry: Entry) => string | number} value @returns {string[]} */
function distinct(value) {
  return [...new Set(FACTS.networks.map(value))].sort((a, b) => (a < b ? -1 : 1)).map(String);
}

export function zooSection() {
  const all = FACTS.networks;
  /** @type {Filter} */
  const filter = { words: "", dataset: "", architecture: "", scheme: "", density: "" };
  let [sort, down, measured, plotted] = ["name", false, false, ""];
  const body = el("tbody");
  const found = el("span", { class: "found small soft", role: "status" });
  const about = el("p", { class: "soft" }, "A point is a published network, by scheme: ● global, ○ layerwise, ◆ another. Gray: other ways to prune the same architecture before training, mean over seeds, the better scheme. The vertical scale is that of the error, so that 98 % and 99 % are as far apart as 80 % and 90 %.");
  const sets = el("div", { class: "sets", role: "group", "aria-label": "Data set of the plots" });
  const [leftBox, rightBox] = [el("div"), el("div")];
  const heads = COLUMNS.map((column) => {
    const press = () => {
      down = sort === column.key ? !down : Boolean(column.number);
      sort = column.key;
      update();
    };
    const head = el("th", { scope: "col", class: `${column.number ? "number" : ""}${column.optional ? " optional" : ""}`, "aria-sort": "none" }, el("button", { type: "button", click: press }, column.title));
    return { column, head };
  });
  const toggle = el("button", { class: "quiet small", type: "button", click: () => ((measured = !measured), update()) });
  const update = () => {
    const column = COLUMNS.find((one) => one.key === sort) ?? COLUMNS[0];
    const shown = all.filter((entry) => matches(entry, filter));
    const order = (/** @type {Entry} */ a, /** @type {Entry} */ b) => {
      const [x, y] = [column.value(a), column.value(b)];
      if (x === null || y === null) return Number(x === null) - Number(y === null);
      const less = typeof x === "string" ? x.localeCompare(String(y), "en", { numeric: true }) : x - Number(y);
      return down ? -less : less;
    };
    shown.sort(order);
    body.replaceChildren(...shown.map(tableRow));
    if (!shown.length) body.append(el("tr", {}, el("td", { class: "empty", colspan: COLUMNS.length + 1 }, all.length ? "No network matches." : "This zoo has no networks yet: `nttzoo publish` makes them.")));
    found.textContent = `${shown.length} of ${all.length} networks`;
    for (const { column: own, head } of heads) head.setAttribute("aria-sort", own.key !== sort ? "none" : down ? "descending" : "ascending");
    const datasets = byNumber(shown, (entry) => entry.dataset);
    const most = datasets.includes(plotted) ? plotted : datasets[0];
    pair.hidden = about.hidden = sets.hidden = !most;
    sets.replaceChildren(...datasets.map((name) => el("button", { class: "quiet", type: "button", "aria-pressed": String(name === most), click: () => choose(name) }, name)));
    toggle.textContent = measured ? "show theory" : "show measured times";
    if (!most) return;
    const { left, right } = plots(shown.filter((entry) => entry.dataset === most), measured);
    leftBox.replaceChildren(left);
    rightBox.replaceChildren(right);
  };
  const choose = (/** @type {string} */ name) => {
    plotted = name;
    update();
    /** @type {HTMLElement | null} */ (sets.querySelector("[aria-pressed=true]"))?.focus();
  };
  const pair = el("div", { class: "pair" },
    el("div", {}, el("h3", {}, "Accuracy over density"), leftBox),
    el("div", {}, el("h3", {}, "Accuracy over speed-up", toggle), rightBox));
  const search = el("input", { type: "search", placeholder: "conv4 cifar10 …", "aria-label": "Search networks", input: () => ((filter.words = search.value), update()) });
  const set = (/** @type {keyof Filter} */ key) => (/** @type {string} */ value) => ((filter[key] = value), update());
  const pairs = (/** @type {string[]} */ values) => values.map((value) => /** @type {[string, string]} */ ([value, value]));
  const filters = el("div", { class: "filters", role: "search" },
    el("label", { class: "wide" }, "Search", search),
    choice("Data set", set("dataset"), pairs(distinct((entry) => entry.dataset)), "all"),
    choice("Architecture", set("architecture"), distinct((entry) => entry.architecture).map((name) => [name, architectureName(name)]), "all"),
    choice("Scheme", set("scheme"), pairs(distinct((entry) => entry.scheme)), "all"),
    choice("Weights kept", set("density"), distinct((entry) => entry.density).sort((a, b) => Number(a) - Number(b)).map((value) => [value, `at most ${densityText(Number(value))}`]), "any"), found);
  const table = el("table", { "data-zoo": true }, el("caption", { class: "hidden" }, "Published networks"),
    el("thead", {}, el("tr", {}, el("th", { class: "thumb", scope: "col" }, el("span", { class: "hidden" }, "Mask")), ...heads.map(({ head }) => head))), body);
  update();
  return el("section", { id: "zoo", "aria-labelledby": "zoo-title" }, el("div", { class: "wrap" },
    el("header", {}, el("h2", { id: "zoo-title" }, "The zoo"), about, sets), pair, filters, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of networks" }, table)));
}
