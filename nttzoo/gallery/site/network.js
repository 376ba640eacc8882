/** The page of one network. */
import { attempt } from "./attempt.js";
import { bytesOf, has, keptOf, measuredOf } from "./data.js";
import { bars, chart, linearTicks } from "./chart.js";
import { densityText, el, kilobytes, mean, percent, times, whole } from "./dom.js";
import { drawing } from "./graph.js";
import { counts, kernel, signed } from "./pictures.js";
import { architectureName, methodName } from "./zoo.js";

/** @typedef {import("./data.js").Entry} Entry */

/** @param {string} title @param {string} kind @param {...import("./dom.js").Child} children */
function panel(title, kind, ...children) {
  return el("section", { class: `panel ${kind}`, style: "padding: 0; border: 0" }, el("h3", {}, title), ...children);
}

/** @param {string} text */
const small = (text) => el("p", { class: "small" }, text);

/** @param {Entry} entry */
function summary(entry) {
  const all = entry.layers.reduce((sum, layer) => sum + layer.size, 0);
  const faster = measuredOf(entry);
  /** @type {[string, string, string][]} */
  const rows = [
    ["test accuracy", percent(entry.chosen.test_accuracy, 2), `after ${entry.train.epochs} epochs`],
    ["weights", whole(keptOf(entry)), `of ${whole(all)}`],
    ["multiply-adds", times(entry.theoretical), "fewer than dense"],
    ["measured", faster === null ? "–" : times(faster), faster === null ? "no times yet" : "faster than dense, one image"],
  ];
  if (entry.c) rows.push(["as C", kilobytes(entry.c.table_bytes), `dense: ${kilobytes(entry.c.dense_table_bytes)}`]);
  if (entry.wasm) rows.push(["as WebAssembly", kilobytes(entry.wasm), "the whole module"]);
  return el("dl", { class: "facts" }, ...rows.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, note)))));
}

/** @param {Entry} entry */
function learning(entry) {
  const title = "Learning curve";
  const { student, random } = entry.curves;
  if (!student) {
    return panel(title, "", small("Its training was published without a history."));
  }
  const points = (/** @type {number[]} */ values) => values.map((y, i) => ({ x: i + 1, y }));
  const series = [{ name: "this network", color: "--accent", points: points(student) }];
  if (random) series.unshift({ name: "random mask", color: "--minus", points: points(random) });
  const epochs = Math.max(...series.map((one) => one.points.length), 2);
  const low = Math.max(0, Math.floor(10 * Math.min(...series.flatMap((one) => one.points.map((point) => point.y)))) / 10);
  const plot = chart({
    x: { low: 1, high: epochs, ticks: linearTicks(1, epochs), text: whole, title: "epochs" },
    y: { low, high: 1, ticks: linearTicks(low, 1), text: (value) => `${Math.round(100 * value)}`, title: "" },
    series, label: "Test accuracy in percent over epochs",
  });
  const note = random
    ? "Test accuracy in percent. A training of its own from the same sparse initialization, beside a random mask of the same density; same data, same hyperparameters."
    : "Test accuracy in percent, of the training whose weights are published.";
  return panel(title, "", plot, small(note));
}

/** @param {Entry} entry */
function methods(entry) {
  const rows = entry.compared.map(({ method, test_accuracy }) => ({ method, value: mean(test_accuracy), seeds: test_accuracy.length }));
  rows.sort((a, b) => b.value - a.value);
  const names = rows.map(({ method, value }) => ({ name: methodName(method), share: value, text: percent(value, 2), other: method !== entry.recipe.name }));
  const seeds = Math.max(...rows.map((row) => row.seeds), 1);
  return panel("Beside other methods", "", bars(names), small(`Test accuracy at ${densityText(entry.density)}${seeds > 1 ? `, mean of ${seeds} seeds` : ", one seed"}, all trained alike. This network was found by ${methodName(entry.recipe.name)}.`));
}

/** @param {Entry} entry */
function densities(entry) {
  const top = Math.max(...entry.layers.map((layer) => layer.kept / layer.size));
  const rows = entry.layers.map((layer) => ({ name: layer.name, share: layer.kept / layer.size / top, text: `${percent(layer.kept / layer.size, 2)} · ${whole(layer.kept)}` }));
  return panel("Density per layer", "", bars(rows), small(`Scheme: ${entry.scheme}.`));
}

/** @param {Entry} entry */
async function kernels(entry) {
  const distance = `The mean squared difference between the kernels, on held-out images, is ${entry.kernel_after.toPrecision(4)}; for the dense network merely pruned to this density it is ${entry.kernel_before.toPrecision(4)}.`;
  const size = entry.kernel_images;
  if (!size) return panel("Tangent kernels", "", small(`Their pictures were not stored with this entry. ${distance}`));
  const bytes = await bytesOf(`kernels-${entry.name}`);
  const half = bytes.length / 2;
  const figure = (/** @type {Uint8Array} */ values, /** @type {string} */ name) => el("figure", {}, kernel(values, size, `Tangent kernel of the ${name}`), el("figcaption", {}, name));
  return panel("Tangent kernels", "", el("div", { class: "kernels" }, figure(bytes.subarray(0, half), "dense network"), figure(bytes.subarray(half), "this network")),
    small(`Before training, between ${size} test images in order of their class; one scale for both. ${distance}`));
}

/** @param {Entry} entry */
async function masks(entry) {
  const nodes = [];
  if (has(`pixels-${entry.name}`)) {
    const [height, width] = entry.arrays.pixels;
    const values = new Uint16Array((await bytesOf(`pixels-${entry.name}`)).buffer);
    const most = Math.max(...values);
    nodes.push(panel("What it looks at", "third", counts(values, height, width, "Connections per input pixel"), small(`Connections per input pixel, up to ${most}. No label was used to choose them.`)));
  }
  if (has(`mask-${entry.name}`)) {
    const [height, width] = entry.arrays.mask;
    const values = await bytesOf(`mask-${entry.name}`);
    nodes.push(panel("Where its input goes", "wide", counts(values, height, width, "The mask of the first layer"),
      small(`The mask of the layer that reads the image, one row of pixels at each step: ${height} inputs from top to bottom, ${width} units and gates from left to right.`)));
  }
  if (has(`fields-${entry.name}`)) {
    const [count, height, width] = entry.arrays.fields;
    const values = new Int8Array((await bytesOf(`fields-${entry.name}`)).buffer);
    const size = height * width;
    const fields = Array.from({ length: count }, (_, i) => signed(values.subarray(i * size, (i + 1) * size), height, width, `Weights of unit ${i + 1}`));
    const pixels = has(`pixels-${entry.name}`);
    const kind = pixels ? "units" : "filters";
    const { all, connected } = entry.units ?? { all: count, connected: count };
    const which = count < connected ? `The ${count} ${kind} of the first layer with the most weights, of ${connected} that have any` : `All ${count} ${kind} of the first layer that have weights`;
    const node = panel("First-layer weights", pixels ? "rest" : "wide", el("div", { class: pixels ? "fields" : "fields filters-small" }, ...fields),
      small(`${which}${connected < all ? ` (${all} in the dense network)` : ""}, ${entry.drawn === "trained" ? "after training" : "before training"}, each on its own scale; blue is positive, orange negative.`));
    nodes.push(node);
  }
  return nodes;
}

/** @param {string} title @param {string} text */
function code(title, text) {
  const copy = el("button", { class: "quiet", type: "button", click: async () => {
    await navigator.clipboard?.writeText(text).catch(() => undefined);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  } }, "Copy");
  return el("div", { class: "code" }, el("h4", {}, title, copy), el("pre", { tabindex: 0 }, el("code", {}, text)));
}

/** @param {Entry} entry */
function usage(entry) {
  const { name } = entry;
  return panel("Use it", "", code("Python", `import nttzoo\n\nmodel = nttzoo.load("${name}", weights="trained")\nlogits = model(model.input_spec.standardize(images))`),
    code("C", `$ nttzoo export ${name} net.c\n\n#include "net.h"\nstatic float arena[NET_ARENA];\nnet_run(input, output, arena);`),
    code("JavaScript", `$ nttzoo export ${name} net.wasm\n\nimport { load } from "./net.js";\nconst net = await load();\nconst { name, probability } = net.classify(pixels);`));
}

/** @param {Entry} entry */
function made(entry) {
  const rows = entry.times?.rows.map((row) => el("tr", {}, el("td", {}, row.runtime), el("td", { class: "number" }, row.own.toFixed(1)), el("td", { class: "number" }, row.dense.toFixed(1))));
  const how = `${whole(entry.search_steps)} search steps by ${methodName(entry.recipe.name)} on the unlabeled training images of ${entry.dataset} (seed ${entry.seed}${entry.recipe.outputs ? `, ${entry.recipe.outputs} of ${entry.classes.length} outputs per step` : ""}), then ${entry.train.epochs} epochs of training with labels${entry.train.dropout ? "" : ", without dropout"}. License of the data: ${entry.licence}.`;
  return panel("How it was made", "", el("p", { class: "small", style: "margin: 0 0 0.9rem; color: inherit" }, how), el("pre", { tabindex: 0, style: "white-space: pre-wrap; overflow-wrap: anywhere" }, el("code", {}, entry.command)),
    rows && el("table", { style: "margin-top: 1.2rem" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "µs for one image, one thread"), el("th", { class: "number", scope: "col" }, "this network"), el("th", { class: "number", scope: "col" }, "dense"))), el("tbody", {}, ...rows)),
    rows && small(`Measured on ${entry.times?.machine}. ONNX Runtime and OpenVINO do not exploit the mask.`));
}

/** @param {Entry} entry */
export function networkPage(entry) {
  const panels = el("div", { class: "panels" });
  const page = el("section", { class: "network", "data-network": entry.name }, el("div", { class: "wrap" },
    el("p", { class: "crumb" }, el("a", { href: "#/zoo" }, "← The zoo")),
    el("header", {}, el("h1", { class: "title" }, entry.name),
      el("p", { class: "soft" }, `A ${architectureName(entry.architecture)} for ${entry.dataset} with ${densityText(entry.density)} of its weights, found before training and without labels by Neural Tangent Transfer.`)),
    summary(entry), ...entry.notes.map((note) => el("p", { class: "note" }, note)), panels));
  (async () => {
    const graph = entry.graph ? await drawing(entry) : null;
    const trial = await attempt(entry, (pixels) => graph?.show(pixels));
    if (trial) panels.append(panel("Try it", graph ? "" : "wide", trial));
    if (graph) {
      const figure = panel("All of it", "", graph.canvas, small(`All ${whole(keptOf(entry))} surviving weights, from the pixels to the classes.`));
      panels.append(figure);
    }
    panels.append(...(await masks(entry)));
    panels.after(el("div", { class: "flow" }, await kernels(entry), learning(entry), methods(entry), densities(entry), usage(entry), made(entry)));
    page.setAttribute("data-ready", "");
  })();
  return page;
}
