/** Try a network on its page: draw for it, or give it a picture. */
import { bytesOf, FACTS, has, keptOf } from "./data.js";
import { brush, el, kilobytes, mean, whole } from "./dom.js";
import { Answerer } from "./draw.js";
import { load } from "./net.js";
import { Pad } from "./pad.js";
import { image } from "./pictures.js";

/** @typedef {import("./data.js").Entry} Entry */

/** A picture's middle as pixels of a shape. @param {ImageBitmap} bitmap @param {number[]} shape */
function fitted(bitmap, shape) {
  const [height, width, channels] = shape;
  const side = Math.min(bitmap.width / width, bitmap.height / height);
  const canvas = el("canvas", { width, height });
  const context = brush(canvas);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, (bitmap.width - side * width) / 2, (bitmap.height - side * height) / 2, side * width, side * height, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const gray = (/** @type {number} */ i) => Math.round(0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]);
  if (channels === 3) return Uint8Array.from({ length: 3 * height * width }, (_, i) => data[4 * Math.floor(i / 3) + (i % 3)]);
  const pixels = Uint8Array.from({ length: height * width }, (_, i) => gray(i));
  const border = pixels.filter((_, i) => i < width || i >= (height - 1) * width || i % width === 0 || (i + 1) % width === 0);
  // Things of gray data sets are light on a dark ground, photographs mostly the other way around.
  return mean(Array.from(border)) > 127 ? pixels.map((value) => 255 - value) : pixels;
}

/** @param {Entry} entry @param {(pixels: Uint8Array) => void} given */
function dropZone(entry, given) {
  const shape = entry.input_shape;
  const input = el("input", { type: "file", accept: "image/*", class: "hidden", "aria-label": "Choose a picture" });
  const zone = el("label", { class: "drop" }, el("span", {}, "Drop a picture here, or choose one"), input);
  /** @type {HTMLCanvasElement | null} */
  let shown = null;
  const display = (/** @type {Uint8Array} */ pixels) => {
    shown?.remove();
    shown = image(pixels, shape, "The picture as the network sees it");
    zone.append(shown);
    given(pixels);
  };
  const read = async (/** @type {File | undefined} */ file) => {
    if (!file) return;
    try {
      display(fitted(await createImageBitmap(file), shape));
    } catch {
      zone.firstElementChild?.replaceChildren(`${file.name} is not a picture that this browser can read.`);
    }
  };
  input.addEventListener("change", () => read(input.files?.[0]));
  zone.addEventListener("dragover", (event) => (event.preventDefault(), zone.classList.add("over")));
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    read(event.dataTransfer?.files[0]);
  });
  return { zone, display };
}

/** Test images to press. @param {Uint8Array} images @param {number[]} shape @param {string[]} names @param {(pixels: Uint8Array) => void} given */
function sampleButtons(images, shape, names, given) {
  const size = shape.reduce((a, b) => a * b, 1);
  const buttons = [];
  for (let at = 0; at < images.length; at += size) {
    const pixels = images.slice(at, at + size);
    const number = at / size;
    const name = `Test image ${number + 1}${names[number] ? `: ${names[number]}` : ""}`;
    buttons.push(el("button", { type: "button", "aria-label": name, title: names[number], click: () => given(pixels) }, image(pixels, shape, "")));
  }
  return el("div", { class: "samples" }, ...buttons);
}

/** @param {Entry} entry @param {(pixels: Uint8Array | null) => void} seen @returns {Promise<HTMLElement | null>} */
export async function attempt(entry, seen) {
  const key = `wasm-${entry.name}`;
  if (!has(key)) return null;
  const net = await load(await bytesOf(key));
  const answers = new Answerer(net, "It says", `${whole(keptOf(entry))} weights · ${kilobytes(entry.wasm ?? 0)}`);
  const answer = (/** @type {Uint8Array | null} */ pixels) => {
    answers.answer(pixels);
    seen(pixels);
    if (pixels) answers.time(pixels);
    answers.say();
  };
  const shape = entry.input_shape;
  const digits = entry.dataset.startsWith("mnist") && shape.join() === "28,28,1";
  const right = el("div", {}, answers.node, answers.spoken);
  if (digits && FACTS.digits) {
    const pad = new Pad(answer);
    const images = (await bytesOf("digits-test")).slice(0, 24 * 784);
    right.append(sampleButtons(images, shape, [], (pixels) => pad.show(pixels)));
    pad.show(images.slice(0, 784));
    const left = el("div", { class: "pad" }, pad.canvas, el("div", { class: "row" }, el("button", { class: "button", type: "button", click: () => pad.clear() }, "Clear")));
    return el("div", { class: "try" }, left, right);
  }
  if (shape.length !== 3 || ![1, 3].includes(shape[2])) return null;
  answers.answer(null);
  const { zone, display } = dropZone(entry, answer);
  if (has(`samples-${entry.dataset}`)) {
    const images = await bytesOf(`samples-${entry.dataset}`);
    right.append(sampleButtons(images, shape, FACTS.samples[entry.dataset].labels.map((label) => entry.classes[label]), display));
    display(images.slice(0, shape.reduce((a, b) => a * b, 1)));
  }
  return el("div", { class: "try" }, zone, right);
}
