/** Watch it learn: compiled training steps in a worker, and their curves. */
import { bytesOf, entryOf, FACTS, keptOf, textOf } from "./data.js";
import { chart, linearTicks } from "./chart.js";
import { el, kilobytes, percent, whole } from "./dom.js";

const COLORS = ["--plus", "--minus", "--third"];
const POINTS = 400; // of a curve; then every second one is dropped

/** @typedef {{ step: number, epochs: number, networks: { key: string, loss: number, accuracy: number, speed: number }[] }} Report */

/** @returns {HTMLElement | null} the section, or nothing if nothing can learn here */
export function learnSection() {
  const learners = FACTS.learners;
  const digits = FACTS.digits;
  const from = learners ? entryOf(learners.from) : undefined;
  if (!learners || !digits || !from) return null;
  /** @type {Report[]} */
  let reports = [];
  /** @type {Worker | null} */
  let worker = null;
  let running = false;
  const plot = el("div", { "data-curves": true });
  const rows = learners.networks.map(({ key, label, bytes }, k) => {
    const value = el("b", { "data-accuracy": key }, "–");
    const note = el("span", { class: "small" }, `${kilobytes(bytes)} of WebAssembly`);
    const name = el("span", { class: "key", style: `--color: var(${COLORS[k]})` }, label);
    return { key, value, note, node: el("div", { class: "pupil" }, name, value, note), bytes };
  });
  const progress = el("span", { class: "small soft", "data-progress": true }, "not started");
  const spoken = el("p", { class: "hidden", role: "status" });
  const draw = () => {
    const last = reports.length ? reports[reports.length - 1] : null;
    const high = Math.max(100, last ? last.step : 0);
    const series = learners.networks.map(({ key, label }, k) => ({
      name: label,
      color: COLORS[k],
      points: reports.map((report) => ({ x: report.step, y: report.networks.find((one) => one.key === key)?.accuracy ?? 0 })),
    }));
    plot.replaceChildren(chart({
      x: { low: 0, high, ticks: linearTicks(0, high), text: whole, title: "steps of 64 images" },
      y: { low: 0, high: 1, ticks: [0, 0.2, 0.4, 0.6, 0.8, 1], text: (value) => `${Math.round(100 * value)}`, title: "" },
      series, label: "Test accuracy in percent over training steps", width: 720, height: 380, right: 128,
    }));
  };
  const take = (/** @type {Report} */ report) => {
    if (report.step === 0) reports = [];
    reports.push(report);
    if (reports.length > POINTS) reports = reports.filter((_, i) => i % 2 === 0 || i === reports.length - 1);
    for (const row of rows) {
      const seen = report.networks.find((one) => one.key === row.key);
      if (!seen) continue;
      row.value.textContent = percent(seen.accuracy);
      row.note.textContent = seen.speed ? `loss ${seen.loss.toFixed(2)} · ${whole(seen.speed / 100) === "0" ? "<100" : whole(Math.round(seen.speed / 100) * 100)} images/s` : `${kilobytes(row.bytes)} of WebAssembly`;
    }
    progress.textContent = `step ${whole(report.step)} · ${report.epochs.toFixed(1)} epochs`;
    if (!running && report.step) spoken.textContent = `Paused at ${progress.textContent}: ${learners.networks.map(({ label }, k) => `${label} ${rows[k].value.textContent}`).join(", ")}`;
    draw();
  };
  const started = async () => {
    if (worker) return worker;
    const url = URL.createObjectURL(new Blob([textOf("worker") ?? ""], { type: "text/javascript" }));
    worker = new Worker(url);
    worker.onmessage = ({ data }) => take(data);
    worker.onerror = (event) => (progress.textContent = `The worker stopped: ${event.message}`);
    const [images, labels, testImages, testLabels] = await Promise.all(["digits-train", "labels-train", "digits-test", "labels-test"].map(bytesOf));
    const modules = await Promise.all(learners.networks.map(async ({ key }) => ({ key, bytes: await bytesOf(`learner-${key}`) })));
    worker.postMessage({ start: { images, labels, testImages, testLabels, modules }, rate: rateOf() });
    return worker;
  };
  const slider = el("input", { type: "range", min: -4, max: -1.5, step: 0.25, value: -3, "aria-label": "Learning rate", "aria-valuetext": "0.001", input: () => changeRate() });
  const shown = el("output", {}, "0.001");
  const rateOf = () => 10 ** Number(slider.value);
  const changeRate = () => {
    shown.textContent = String(Number(rateOf().toPrecision(2)));
    slider.setAttribute("aria-valuetext", shown.textContent);
    worker?.postMessage({ rate: rateOf() });
  };
  const start = el("button", { class: "button primary", type: "button", "data-start": true, click: async () => {
    running = !running;
    start.textContent = running ? "Pause" : "Continue";
    (await started()).postMessage({ run: running });
  } }, "Start");
  const reset = el("button", { class: "button", type: "button", click: () => worker?.postMessage({ reset: true }) }, "Reset");
  draw();
  return el("section", { id: "learn", "aria-labelledby": "learn-title" }, el("div", { class: "wrap" },
    el("header", {},
      el("h2", { id: "learn-title" }, "Watch it learn"),
      el("p", { class: "soft" },
        `Three networks of ${whole(keptOf(from))} weights each train here, in your browser, on ${whole(digits.train)} digits: the one that Neural Tangent Transfer found, one with a random mask, and the found one with its weights moved to random places. Test accuracy is on ${whole(digits.test)} other digits.`)),
    el("div", { class: "class" },
      el("div", {}, plot, el("div", { class: "controls" }, start, reset, el("label", {}, "learning rate", slider, shown), progress, spoken)),
      el("div", { class: "pupils", role: "group", "aria-label": "Test accuracy" }, ...rows.map((row) => row.node)))));
}
