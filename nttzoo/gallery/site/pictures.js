/** Arrays as pictures: weights with their sign, counts, kernels, images. */
import { brush, color, el } from "./dom.js";

/** @typedef {[number, number, number]} Rgb */

/** Between two colors. @param {Rgb} from @param {Rgb} to @param {number} part @returns {Rgb} */
function between(from, to, part) {
  return /** @type {Rgb} */ (from.map((value, k) => value + (to[k] - value) * part));
}

/**
 * A canvas of height x width pixels; `paint` gives each one's color and may be called again when the theme changes.
 * @param {number} height @param {number} width @param {string} label @param {(place: number) => Rgb} paint
 * @param {string} [kind] its class
 */
export function picture(height, width, label, paint, kind = "picture") {
  const canvas = el("canvas", { width, height, class: kind, role: "img", "aria-label": label });
  const fill = () => {
    const context = brush(canvas);
    const image = context.createImageData(width, height);
    for (let i = 0; i < height * width; i++) image.data.set([...paint(i), 255], 4 * i);
    context.putImageData(image, 0, 0);
  };
  fill();
  document.addEventListener("themechange", fill);
  return canvas;
}

const LEVELS = 15; // of a weight's size

/** Signed weights: one color for each sign. @param {ArrayLike<number>} values @param {number} height @param {number} width @param {string} label */
export function signed(values, height, width, label) {
  return picture(height, width, label, (i) => {
    const part = Math.min(1, Math.abs(values[i]) / LEVELS);
    return between(color("--faint"), color(values[i] > 0 ? "--plus" : "--minus"), part && 0.25 + 0.75 * part);
  });
}

/** Counts from zero up. @param {ArrayLike<number>} values @param {number} height @param {number} width @param {string} label @param {string} [kind] */
export function counts(values, height, width, label, kind) {
  const top = Math.max(1, ...Array.from(values));
  return picture(height, width, label, (i) => between(color("--faint"), color("--accent"), (values[i] / top) ** 0.7), kind);
}

/** A symmetric kernel between some images, from its lower triangle. @param {Uint8Array} triangle @param {number} size @param {string} label */
export function kernel(triangle, size, label) {
  return picture(size, size, label, (i) => {
    const [column, row] = [i % size, Math.floor(i / size)].sort((a, b) => a - b);
    return between(color("--faint"), color("--accent"), (triangle[(row * (row + 1)) / 2 + column] / 255) ** 0.8);
  });
}

/** An image of one or three channels. @param {Uint8Array} pixels @param {number[]} shape @param {string} label */
export function image(pixels, shape, label) {
  const [height, width, channels] = shape;
  const ink = channels === 1;
  return picture(height, width, label, (i) => {
    if (ink) return between(color("--raised"), color("--ink"), pixels[i] / 255);
    return [pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2]];
  });
}
