/** A network of few weights, drawn whole: every surviving weight is a line, and lines that carry something light up. */
import { brush, color, el, redrawn, rgba } from "./dom.js";
import { bytesOf } from "./data.js";

/** @typedef {{ x: number, y: number }} Place from 0 to 1 */

/** @param {import("./data.js").Entry} entry @returns {Promise<Drawing>} */
export async function drawing(entry) {
  const gaps = await bytesOf(`edges-${entry.name}`);
  const weights = await bytesOf(`weights-${entry.name}`);
  return new Drawing(entry, new Uint32Array(gaps.buffer), floats(new Uint16Array(weights.buffer)));
}

/** Numbers from their upper halves. @param {Uint16Array} halves */
function floats(halves) {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}

/** Pairs (from, to) of units, from the gaps between the places of weights in their kernel. @param {Uint32Array} gaps @param {number} width of the kernel */
function pairsOf(gaps, width) {
  const pairs = new Uint32Array(2 * gaps.length);
  let place = 0;
  gaps.forEach((gap, e) => {
    place += gap;
    pairs[2 * e] = Math.floor(place / width);
    pairs[2 * e + 1] = place % width;
  });
  return pairs;
}

export class Drawing {
  /** @param {import("./data.js").Entry} entry @param {Uint32Array} gaps @param {Float32Array} weights then biases */
  constructor(entry, gaps, weights) {
    const graph = /** @type {{ sizes: number[], edges: number[] }} */ (entry.graph);
    this.sizes = graph.sizes;
    this.side = entry.input_shape[0];
    this.mean = entry.mean[0];
    this.std = entry.std[0];
    let at = 0;
    let bias = weights.length - this.sizes.slice(1).reduce((a, b) => a + b, 0);
    this.layers = graph.edges.map((count, k) => {
      const layer = {
        pairs: pairsOf(gaps.subarray(at, at + count), this.sizes[k + 1]),
        weights: weights.subarray(at, at + count),
        bias: weights.subarray(bias, bias + this.sizes[k + 1]),
      };
      at += count;
      bias += this.sizes[k + 1];
      return layer;
    });
    this.classes = entry.classes;
    this.places = this.arranged();
    /** @type {Uint8Array | null} */
    this.pixels = null;
    const total = graph.edges.reduce((a, b) => a + b, 0);
    const label = `The network ${entry.name}: ${total} connections from ${this.sizes[0]} pixels to ${entry.classes.length} classes`;
    this.canvas = el("canvas", { class: "graph", role: "img", "aria-label": label });
    redrawn(this.canvas, () => this.paint());
  }

  /** Where each unit lies: pixels as an image, hidden units near what they are connected to, classes in order. */
  arranged() {
    const last = this.sizes.length - 1;
    /** @type {(Place | null)[][]} */
    const places = [
      Array.from({ length: this.sizes[0] }, (_, i) => ({
        x: 0.015 + (0.33 * ((i % this.side) + 0.5)) / this.side,
        y: 0.13 + (0.74 * (Math.floor(i / this.side) + 0.5)) / this.side,
      })),
    ];
    this.layers.forEach(({ pairs }, k) => {
      const size = this.sizes[k + 1];
      if (k + 1 === last) {
        places.push(Array.from({ length: size }, (_, i) => ({ x: 0.955, y: 0.06 + (0.88 * (i + 0.5)) / size })));
        return;
      }
      const sum = new Float64Array(size);
      const count = new Float64Array(size);
      for (let e = 0; e < pairs.length; e += 2) {
        const from = places[k][pairs[e]];
        if (!from) continue;
        sum[pairs[e + 1]] += from.y;
        count[pairs[e + 1]] += 1;
      }
      const alive = Array.from(count.keys()).filter((i) => count[i]);
      alive.sort((a, b) => sum[a] / count[a] - sum[b] / count[b]);
      const columns = Math.max(1, Math.round(alive.length / 45));
      const center = 0.35 + (0.605 * (k + 1)) / last;
      /** @type {(Place | null)[]} */
      const row = Array.from({ length: size }, () => null);
      alive.forEach((unit, i) => {
        const column = (i % columns) - (columns - 1) / 2;
        row[unit] = { x: center + 0.017 * column, y: 0.03 + (0.94 * (i + 0.5)) / alive.length };
      });
      places.push(row);
    });
    return places;
  }

  /** What every unit gives for an image: pixels as they are, then ReLU units, then the classes' probabilities. */
  activities() {
    const { pixels } = this;
    if (!pixels) return null;
    /** @type {Float32Array} */
    let values = Float32Array.from(pixels, (value) => (value / 255 - this.mean) / this.std);
    const all = [Float32Array.from(pixels, (value) => value / 255)];
    this.layers.forEach(({ pairs, weights, bias }, k) => {
      const next = Float32Array.from(bias);
      for (let e = 0; e < weights.length; e++) next[pairs[2 * e + 1]] += values[pairs[2 * e]] * weights[e];
      const hidden = k + 1 < this.layers.length;
      values = hidden ? next.map((value) => Math.max(0, value)) : next;
      const top = Math.max(...values);
      all.push(hidden ? values.map((value) => value / (top || 1)) : values.map((value) => Math.exp(value - top)));
    });
    return all;
  }

  /** @param {Uint8Array | null} pixels */
  show(pixels) {
    this.pixels = pixels;
    this.paint();
  }

  /** Space for the names of classes; digits need none. */
  margin() {
    return Math.max(0, ...this.classes.map((name) => (name.length > 2 ? 7.4 * name.length : 0)));
  }

  paint() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const height = Math.round(Math.max(300, Math.min(440, width * 0.78)));
    this.canvas.width = width * devicePixelRatio;
    this.canvas.height = height * devicePixelRatio;
    this.canvas.style.height = `${height}px`;
    const context = brush(this.canvas);
    context.scale(devicePixelRatio, devicePixelRatio);
    const across = width - this.margin();
    const tall = (height - across * 0.33) / 2 / height;
    const at = (/** @type {Place} */ place, /** @type {number} */ layer) => {
      const y = layer ? place.y : tall + ((place.y - 0.13) / 0.74) * (1 - 2 * tall);
      return [place.x * across, y * height];
    };
    const active = this.activities();
    this.lines(context, at, active);
    this.units(context, at, active, (0.33 * across) / this.side);
  }

  /** @param {CanvasRenderingContext2D} context @param {(place: Place, layer: number) => number[]} at @param {Float32Array[] | null} active */
  lines(context, at, active) {
    const tints = { plus: color("--plus"), minus: color("--minus"), rest: color("--soft") };
    this.layers.forEach(({ pairs, weights }, k) => {
      const scale = weights.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
      for (let e = 0; e < weights.length; e++) {
        const [from, to] = [this.places[k][pairs[2 * e]], this.places[k + 1][pairs[2 * e + 1]]];
        if (!from || !to) continue;
        const carried = active ? active[k][pairs[2 * e]] * Math.sqrt(Math.abs(weights[e]) / scale) : 0;
        const lit = carried > 0.04;
        context.strokeStyle = lit ? rgba(weights[e] > 0 ? tints.plus : tints.minus, Math.min(0.85, 0.12 + carried)) : rgba(tints.rest, active ? 0.07 : 0.13);
        context.lineWidth = lit ? 0.5 + 0.9 * carried : 0.5;
        const [x0, y0] = at(from, k);
        const [x1, y1] = at(to, k + 1);
        context.beginPath();
        context.moveTo(x0, y0);
        context.bezierCurveTo(x0 + 0.45 * (x1 - x0), y0, x0 + 0.55 * (x1 - x0), y1, x1, y1);
        context.stroke();
      }
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {(place: Place, layer: number) => number[]} at @param {Float32Array[] | null} active @param {number} cell */
  units(context, at, active, cell) {
    const words = this.margin() > 0;
    const [ink, soft, accent] = [color("--ink"), color("--soft"), color("--accent")];
    const used = new Set(Array.from(this.layers[0].pairs).filter((_, i) => i % 2 === 0));
    const best = active ? active[active.length - 1].indexOf(1) : -1;
    this.places.forEach((row, k) => {
      row.forEach((place, i) => {
        if (!place) return;
        const [x, y] = at(place, k);
        const value = active ? active[k][i] : 0;
        if (k === 0) {
          context.fillStyle = value > 0.02 ? rgba(ink, 0.15 + 0.85 * value) : rgba(soft, used.has(i) ? 0.35 : 0.12);
          const size = value > 0.02 ? cell * 0.86 : cell * 0.3;
          context.fillRect(x - size / 2, y - size / 2, size, size);
        } else if (k + 1 < this.places.length) {
          context.fillStyle = value > 0.02 ? rgba(ink, 0.35 + 0.65 * value) : rgba(soft, 0.4);
          context.beginPath();
          context.arc(x, y, 1.4 + 2 * value, 0, 7);
          context.fill();
        } else {
          context.fillStyle = i === best ? rgba(accent, 1) : rgba(soft, 0.9);
          context.font = `${i !== best ? "400 13px" : words ? "650 13px" : "650 19px"} ${getComputedStyle(document.body).fontFamily}`;
          context.textBaseline = "middle";
          context.fillText(this.classes[i], x + 5, y);
        }
      });
    });
  }
}
