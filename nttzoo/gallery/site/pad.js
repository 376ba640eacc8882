/** A pad to draw a digit on, and what a network sees of it. */
import { brush, color, el, redrawn, rgba } from "./dom.js";

const SIDE = 28;
const BOX = 20; // MNIST's digits fill a box of this size, their center of mass in the middle
const PEN = 2.5;

/** @typedef {{ x: number, y: number }} Spot from 0 to 1 */

export class Pad {
  /** @param {(pixels: Uint8Array | null) => void} changed called with what a network sees, or null if the pad is empty */
  constructor(changed) {
    this.changed = changed;
    /** @type {Spot[][]} */
    this.strokes = [];
    /** @type {Uint8Array | null} */
    this.shown = null;
    this.canvas = el("canvas", { role: "img", "aria-label": "Pad: draw a digit here", "data-pad": true });
    this.small = el("canvas", { width: SIDE, height: SIDE });
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.follow(event));
    for (const kind of ["pointerup", "pointercancel"]) this.canvas.addEventListener(kind, () => this.end());
    this.drawing = false;
    this.frame = 0; // requested, or 0
    redrawn(this.canvas, () => this.paint());
  }

  /** @param {PointerEvent} event @returns {Spot} */
  spot(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  }

  /** @param {PointerEvent} event */
  begin(event) {
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    if (this.shown) this.shown = null;
    this.drawing = true;
    const at = this.spot(event);
    this.strokes.push([at, at]);
    this.update();
  }

  /** @param {PointerEvent} event */
  follow(event) {
    if (!this.drawing) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length ? events : [event]) this.strokes[this.strokes.length - 1].push(this.spot(one));
    // Pointers move more often than screens are drawn.
    this.frame ||= requestAnimationFrame(() => this.update());
  }

  end() {
    this.drawing = false;
    if (this.frame) this.update();
  }

  clear() {
    this.strokes = [];
    this.shown = null;
    this.update();
  }

  /** Shows an image instead of strokes. @param {Uint8Array} pixels */
  show(pixels) {
    this.strokes = [];
    this.shown = pixels;
    this.update();
  }

  update() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.paint();
    this.changed(this.shown ?? (this.strokes.length ? this.seen() : null));
  }

  /** The strokes as MNIST would have them: scaled to a box, then moved so that the center of mass is in the middle. */
  seen() {
    const spots = this.strokes.flat();
    const xs = spots.map((spot) => spot.x);
    const ys = spots.map((spot) => spot.y);
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const [width, height] = [Math.max(...xs) - left, Math.max(...ys) - top];
    const scale = (BOX - PEN) / Math.max(width, height, 0.12);
    let dx = SIDE / 2 - scale * (left + width / 2);
    let dy = SIDE / 2 - scale * (top + height / 2);
    const first = this.rendered(scale, dx, dy);
    let [sum, mx, my] = [0, 0, 0];
    for (let i = 0; i < first.length; i++) {
      sum += first[i];
      mx += first[i] * ((i % SIDE) + 0.5);
      my += first[i] * (Math.floor(i / SIDE) + 0.5);
    }
    if (!sum) return first;
    dx += SIDE / 2 - mx / sum;
    dy += SIDE / 2 - my / sum;
    return this.rendered(scale, dx, dy);
  }

  /** @param {number} scale @param {number} dx @param {number} dy */
  rendered(scale, dx, dy) {
    const context = brush(this.small, { willReadFrequently: true });
    context.clearRect(0, 0, SIDE, SIDE);
    context.strokeStyle = "#000";
    this.trace(context, PEN, (spot) => [scale * spot.x + dx, scale * spot.y + dy]);
    const { data } = context.getImageData(0, 0, SIDE, SIDE);
    return Uint8Array.from({ length: SIDE * SIDE }, (_, i) => data[4 * i + 3]);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} pen @param {(spot: Spot) => number[]} place */
  trace(context, pen, place) {
    context.lineCap = context.lineJoin = "round";
    context.lineWidth = pen;
    for (const stroke of this.strokes) {
      context.beginPath();
      stroke.forEach((spot, i) => {
        const [x, y] = place(spot);
        if (i) context.lineTo(x, y);
        else context.moveTo(x, y);
      });
      context.stroke();
    }
  }

  paint() {
    const side = Math.max(1, Math.round(this.canvas.clientWidth * devicePixelRatio));
    if (this.canvas.width !== side) this.canvas.width = this.canvas.height = side;
    const context = brush(this.canvas);
    context.clearRect(0, 0, side, side);
    const cell = side / SIDE;
    context.fillStyle = rgba(color("--line"), 0.9);
    for (let k = 1; k < 4; k++) {
      context.fillRect((side * k) / 4, 0, 1, side);
      context.fillRect(0, (side * k) / 4, side, 1);
    }
    const ink = color("--ink");
    if (this.shown) {
      const pixels = new ImageData(SIDE, SIDE);
      this.shown.forEach((value, i) => pixels.data.set([...ink, value], 4 * i));
      brush(this.small, { willReadFrequently: true }).putImageData(pixels, 0, 0);
      context.imageSmoothingQuality = "high";
      context.drawImage(this.small, 0, 0, side, side);
    }
    context.strokeStyle = rgba(ink, 1);
    this.trace(context, PEN * cell, (spot) => [spot.x * side, spot.y * side]);
  }
}
