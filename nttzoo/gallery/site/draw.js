/** Draw a digit: several networks answer while it is drawn. */
import { drawing } from "./graph.js";
import { bytesOf, entryOf, FACTS, keptOf } from "./data.js";
import { densityText, el, kilobytes, percent, whole } from "./dom.js";
import { load } from "./net.js";
import { Pad } from "./pad.js";

/** Microseconds of one call, from as many as take a few milliseconds: the best of some rounds. @param {() => void} call */
export function microseconds(call) {
  let best = Infinity;
  for (let count = 4, round = 0; round < 4; ) {
    const began = performance.now();
    for (let i = 0; i < count; i++) call();
    const spent = performance.now() - began;
    if (spent < 2 && count < 100_000) count *= 4;
    else {
      best = Math.min(best, (1000 * spent) / count);
      round += 1;
    }
  }
  return best;
}

/** One network's answers. */
export class Answerer {
  /** @param {import("./net.js").Network} net @param {string | Node} title @param {string} cost */
  constructor(net, title, cost) {
    this.net = net;
    this.cost = cost;
    this.digit = el("span", { class: "digit", "data-digit": true }, "");
    this.spoken = el("p", { class: "hidden", role: "status" });
    this.note = el("span", { class: "cost" }, cost);
    const short = net.classes.every((name) => name.length < 3);
    if (!short) this.digit.classList.add("word");
    this.levels = net.classes.map(() => el("i", { style: "height: 0" }));
    const chances = this.levels.map((level, k) => el("span", { class: "chance", title: net.classes[k] }, level));
    const columns = `grid-template-columns: repeat(${net.classes.length}, 1fr)`;
    this.node = el("div", { class: "answer" }, el("h3", {}, title), this.note, this.digit, el("div", { class: "chances", style: columns, "aria-hidden": "true" }, ...chances));
    this.ranking = el("span", { class: "cost", style: "grid-column: 1 / -1; margin-top: 0.4rem" });
    if (!short) this.node.append(this.ranking);
    if (short) this.node.append(el("div", { class: "digits", style: `grid-column: 1 / -1; ${columns}`, "aria-hidden": "true" }, ...net.classes.map((name) => el("span", {}, name))));
  }

  /** @param {Uint8Array | null} pixels @returns {import("./net.js").Answer | null} */
  answer(pixels) {
    const answer = pixels ? this.net.classify(pixels) : null;
    this.digit.textContent = answer ? answer.name : "";
    const order = answer ? [...answer.probabilities.keys()].sort((a, b) => answer.probabilities[b] - answer.probabilities[a]) : [];
    this.ranking.textContent = !answer ? `It knows ${this.net.classes.join(", ")}.` : order.slice(0, 3).map((k) => `${this.net.classes[k]} ${percent(answer?.probabilities[k] ?? 0, 0)}`).join(" · ");
    this.digit.title = answer ? percent(answer.probability) : "";
    this.levels.forEach((level, k) => {
      const chance = answer ? answer.probabilities[k] : 0;
      level.style.height = `${100 * chance}%`;
      level.parentElement?.classList.toggle("top", answer !== null && answer.probability === chance);
    });
    return answer;
  }

  /** Measures one answer, without waiting for more drawing. @param {Uint8Array} pixels */
  time(pixels) {
    this.net.logits(pixels);
    const spent = microseconds(() => this.net.calls.run(1));
    this.note.textContent = `${this.cost} · ${spent < 10 ? spent.toFixed(1) : whole(spent)} µs`;
  }

  /** Says the answer to those who cannot see it. */
  say() {
    this.spoken.textContent = this.digit.textContent && `It says ${this.digit.textContent}, ${this.digit.title}`;
  }
}

/** @returns {HTMLElement | null} the section, or nothing if the zoo has no network for digits */
export function drawSection() {
  const players = FACTS.players ?? [];
  const first = players.length ? entryOf(players[0].name) : undefined;
  if (!first) return null;
  /** @type {Answerer[]} */
  const answerers = [];
  /** @type {import("./graph.js").Drawing | undefined} */
  let graph;
  /** @type {Uint8Array | null} */
  let current = null;
  let timer = 0;
  const spoken = el("p", { class: "hidden", role: "status" });
  const update = (/** @type {Uint8Array | null} */ pixels) => {
    current = pixels;
    graph?.show(pixels);
    const answers = answerers.map((one) => one.answer(pixels));
    clearTimeout(timer);
    if (!pixels) return;
    timer = window.setTimeout(() => {
      for (const one of answerers) one.time(pixels);
      spoken.textContent = players.map((player, k) => `${player.label}: ${answers[k]?.name ?? "?"}`).join(", ");
    }, 250);
  };
  const pad = new Pad(update);
  const figure = el("figure", { class: "net" });
  const list = el("div", { class: "answers", "data-answers": true });
  const showDigit = async (/** @type {number} */ at) => {
    const images = await bytesOf("digits-test");
    const size = pad.small.width * pad.small.height;
    pad.show(images.slice(at * size, (at + 1) * size));
  };
  const another = () => showDigit(Math.floor(Math.random() * (FACTS.digits?.test ?? 1)));
  const kept = keptOf(first);
  const all = first.layers.reduce((sum, layer) => sum + layer.size, 0);
  const gone = percent(1 - kept / all, kept / all < 0.01 ? 1 : 0);
  const section = el("section", { id: "draw", "aria-labelledby": "draw-title" }, el("div", { class: "wrap" },
    el("header", {},
      el("h1", { id: "draw-title" }, `${gone} of this network is gone.`),
      el("p", { class: "soft" },
        `What is left, ${whole(kept)} of ${whole(all)} weights, was chosen before training and without a single label, so that the network learns like the dense one it came from. Every one of these weights is a line below. Draw a digit.`)),
    el("div", { class: "stage" },
      el("div", { class: "pad" }, pad.canvas, el("div", { class: "row" },
        el("button", { class: "button", type: "button", click: () => pad.clear() }, "Clear"),
        el("button", { class: "button", type: "button", click: another }, "Try a test digit")), spoken),
      figure, list)));
  figure.append(el("figcaption", { class: "small soft" },
    el("span", { class: "key", style: "--color: var(--plus)" }, "positive weight"), el("span", { class: "key", style: "--color: var(--minus)" }, "negative weight")));
  (async () => {
    if (first.graph) {
      graph = await drawing(first);
      figure.prepend(graph.canvas);
    }
    for (const player of players) {
      const entry = /** @type {import("./data.js").Entry} */ (entryOf(player.name));
      const net = await load(await bytesOf(player.module));
      const paths = player.alive === undefined ? "" : `, ${whole(player.alive)} in use`;
      const cost = `${whole(player.weights ?? keptOf(entry))} weights${paths} · ${kilobytes(player.wasm ?? entry.wasm ?? 0)}`;
      const title = player.random ? player.label : el("a", { href: `#/${player.name}`, title: densityText(entry.density) }, player.label);
      const one = new Answerer(net, title, cost);
      answerers.push(one);
      list.append(one.node);
    }
    if (!current) await showDigit((await bytesOf("labels-test")).indexOf(3));
    else update(current);
  })();
  return section;
}
