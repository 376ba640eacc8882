/**
 * A sparse network as WebAssembly, made by nttzoo. One network per .wasm file, which tells what it is; this module
 * works for all of them, in browsers, workers and Node.
 *
 *     import { load } from "./net.js";
 *     const net = await load();
 *     const { name, probability } = net.classify(pixels);
 *
 * With `nttzoo export --training` the file holds a network that learns:
 *
 *     import { loadLearner } from "./net.js";
 *     const learner = await loadLearner();
 *     const loss = learner.train(pixels, labels, 1e-3);
 */

const FILE = "net.wasm";

/**
 * What a network's file tells.
 * @typedef {object} About
 * @property {string} name
 * @property {number[]} shape of one example, such as [28, 28, 1]: height, width, channels
 * @property {number} outputs
 * @property {number} batch how many examples one call into the module takes
 * @property {string[]} [classes]
 * @property {number[]} [mean] per channel, of pixels from 0 to 1
 * @property {number[]} [std]
 */

/**
 * @typedef {object} Answer
 * @property {string} name of the class with the largest probability
 * @property {number} probability
 * @property {Float32Array} probabilities of all classes, in the order of `net.classes`
 */

/** @typedef {Uint8Array | Uint8ClampedArray | number[]} Pixels from 0 to 255, row by row, channels last */

/** @param {number} count @param {number} size @param {string} what */
function wholeExamples(count, size, what) {
  if (!count || count % size) throw new RangeError(`${count} ${what} are not a multiple of ${size}, the size of one example.`);
  return count / size;
}

/** Softmax. @param {Float32Array} logits @returns {Float32Array} */
export function probabilitiesOf(logits) {
  const top = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = logits.map((value) => Math.exp(value - top));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((value) => value / total);
}

/** A loaded network. */
export class Network {
  /** @param {WebAssembly.Instance} instance @param {About} about */
  constructor(instance, about) {
    /** @type {any} */
    this.calls = instance.exports;
    this.about = about;
    this.name = about.name;
    this.shape = about.shape;
    this.size = about.shape.reduce((a, b) => a * b, 1);
    this.classes = about.classes ?? Array.from({ length: about.outputs }, (_, k) => String(k));
  }

  /**
   * The network's outputs for standardized examples, one behind the other.
   * @param {Float32Array} inputs
   * @returns {Float32Array}
   */
  run(inputs) {
    const count = wholeExamples(inputs.length, this.size, "numbers");
    return this.inParts(count, (first, some) => {
      const part = inputs.subarray(first * this.size, (first + some) * this.size);
      new Float32Array(this.calls.memory.buffer, this.calls.inputs(), part.length).set(part);
    });
  }

  /**
   * The network's outputs for raw pixels, which it standardizes.
   * @param {Pixels} pixels of one image or several
   * @returns {Float32Array}
   */
  logits(pixels) {
    if (!this.calls.standardize) throw new TypeError(`${this.name} does not know how to standardize pixels: use run().`);
    const bytes = pixels instanceof Uint8Array ? pixels : Uint8Array.from(pixels);
    const count = wholeExamples(bytes.length, this.size, "pixels");
    return this.inParts(count, (first, some) => {
      const part = bytes.subarray(first * this.size, (first + some) * this.size);
      new Uint8Array(this.calls.memory.buffer, this.calls.pixels(), part.length).set(part);
      this.calls.standardize(some);
    });
  }

  /**
   * What one image shows.
   * @param {Pixels} pixels
   * @returns {Answer}
   */
  classify(pixels) {
    if (pixels.length !== this.size) throw new RangeError(`one image has ${this.size} values, got ${pixels.length}.`);
    const probabilities = probabilitiesOf(this.logits(pixels));
    const best = probabilities.indexOf(probabilities.reduce((a, b) => Math.max(a, b)));
    return { name: this.classes[best], probability: probabilities[best], probabilities };
  }

  /**
   * @param {number} count
   * @param {(first: number, some: number) => void} put writes examples into the module's memory
   * @returns {Float32Array}
   */
  inParts(count, put) {
    const { outputs, batch } = this.about;
    const answers = new Float32Array(count * outputs);
    for (let first = 0; first < count; first += batch) {
      const some = Math.min(batch, count - first);
      put(first, some);
      this.calls.run(some);
      answers.set(new Float32Array(this.calls.memory.buffer, this.calls.outputs(), some * outputs), first * outputs);
    }
    return answers;
  }
}

/**
 * The module in a file, and what it tells of itself.
 * @param {URL | string | BufferSource | WebAssembly.Module} source an address, the bytes, or a compiled module
 * @returns {Promise<{ module: WebAssembly.Module, about: About }>}
 */
export async function compiled(source) {
  let content = source;
  if (typeof content === "string") content = new URL(content, import.meta.url);
  if (content instanceof URL && content.protocol === "file:" && "process" in globalThis) {
    const files = "node:fs/promises";
    content = /** @type {BufferSource} */ (await (await import(files)).readFile(content));
  }
  if (content instanceof URL) {
    const response = await fetch(content);
    if (!response.ok) throw new Error(`${content} cannot be read: ${response.status} ${response.statusText}.`);
    content = await response.arrayBuffer();
  }
  const module = content instanceof WebAssembly.Module ? content : await WebAssembly.compile(content);
  const [section] = WebAssembly.Module.customSections(module, "nttzoo");
  if (!section) throw new TypeError("this WebAssembly module was not made by nttzoo: it does not tell what it is.");
  return { module, about: JSON.parse(new TextDecoder().decode(section)) };
}

/**
 * Loads a network.
 * @param {URL | string | BufferSource | WebAssembly.Module} [source] by default the .wasm file beside this module
 * @returns {Promise<Network>}
 */
export async function load(source = new URL(FILE, import.meta.url)) {
  const { module, about } = await compiled(source);
  return new Network(await WebAssembly.instantiate(module), about);
}

/** A network and its optimizer. */
export class Learner {
  /** @param {WebAssembly.Instance} instance @param {About} about */
  constructor(instance, about) {
    /** @type {any} */
    this.calls = instance.exports;
    this.about = about;
    this.size = about.shape.reduce((a, b) => a * b, 1);
    this.reset();
  }

  /** Back to the initial weights. */
  reset() {
    this.calls.reset();
  }

  /**
   * One step of training on a batch.
   * @param {Uint8Array} pixels of some images, one behind the other
   * @param {Uint8Array} labels
   * @param {number} rate the learning rate
   * @returns {number} the mean loss before the step; if it is not finite, the weights stay as they were
   */
  train(pixels, labels, rate) {
    const { memory, labels: place, train } = this.calls;
    this.put(pixels, labels.length);
    new Uint8Array(memory.buffer, place(), labels.length).set(labels);
    return train(labels.length, rate);
  }

  /**
   * The classes of some images, as numbers.
   * @param {Uint8Array} pixels
   * @returns {Uint8Array}
   */
  predict(pixels) {
    const { batch, outputs } = this.about;
    const count = pixels.length / this.size;
    const found = new Uint8Array(count);
    for (let first = 0; first < count; first += batch) {
      const some = Math.min(batch, count - first);
      this.put(pixels.subarray(first * this.size, (first + some) * this.size), some);
      this.calls.run(some);
      const answers = new Float32Array(this.calls.memory.buffer, this.calls.outputs(), some * outputs);
      for (let i = 0; i < some; i++) {
        let best = 0;
        for (let k = 1; k < outputs; k++) if (answers[i * outputs + k] > answers[i * outputs + best]) best = k;
        found[first + i] = best;
      }
    }
    return found;
  }

  /** @param {Uint8Array} pixels @param {number} count */
  put(pixels, count) {
    if (count < 1 || count > this.about.batch || pixels.length !== count * this.size) {
      throw new RangeError(`1 to ${this.about.batch} images of ${this.size} values are needed, got ${pixels.length} for ${count}.`);
    }
    new Uint8Array(this.calls.memory.buffer, this.calls.pixels(), pixels.length).set(pixels);
  }
}

/**
 * Loads a network that learns.
 * @param {URL | string | BufferSource | WebAssembly.Module} [source] by default the .wasm file beside this module
 * @returns {Promise<Learner>}
 */
export async function loadLearner(source = new URL(FILE, import.meta.url)) {
  const { module, about } = await compiled(source);
  return new Learner(await WebAssembly.instantiate(module), about);
}
