/** The page's data: facts as JSON, arrays and modules as compressed base64. */

/**
 * @typedef {object} Layer
 * @property {string} name
 * @property {number} size
 * @property {number} kept
 */

/**
 * @typedef {object} Compared
 * @property {string} method
 * @property {string} scheme
 * @property {number[]} test_accuracy of several seeds
 */

/**
 * A published network. What is not known of it is missing.
 * @typedef {object} Entry
 * @property {string} name
 * @property {string} architecture
 * @property {string} dataset
 * @property {number} density
 * @property {string} scheme
 * @property {number} seed
 * @property {number} search_steps
 * @property {number} kernel_before
 * @property {number} kernel_after
 * @property {{ test_accuracy: number, validation_accuracy: number }} chosen
 * @property {Compared[]} compared
 * @property {Layer[]} layers
 * @property {{ name: string, dense: number, sparse: number }[]} costs
 * @property {{ epochs: number, dropout: boolean }} train
 * @property {{ name: string, epochs: number, outputs: number | null }} recipe
 * @property {string[]} classes
 * @property {number[]} input_shape
 * @property {number[]} mean per channel, of pixels from 0 to 1
 * @property {number[]} std
 * @property {string} licence
 * @property {string} command
 * @property {string} [date]
 * @property {{ table_bytes: number, arena_bytes: number, dense_table_bytes: number }} [c] as C
 * @property {number} theoretical
 * @property {number} without_dead
 * @property {number} bytes
 * @property {{ rows: { runtime: string, own: number, dense: number }[], machine: string, dense_onnxruntime: number } | null} times
 * @property {string[]} notes
 * @property {number | null} wasm bytes of its module
 * @property {Record<string, number[]>} arrays their shapes
 * @property {string} [drawn] which weights the pictures show
 * @property {{ all: number, connected: number }} [units] of the first layer
 * @property {{ sizes: number[], edges: number[] }} [graph]
 * @property {{ student?: number[], random?: number[] }} curves test accuracy, epoch by epoch
 * @property {number} [kernel_images] between how many images the tangent kernels are
 */

/**
 * @typedef {object} Player a network that answers to drawn digits
 * @property {string} name
 * @property {string} label
 * @property {string} module
 * @property {boolean} [random]
 * @property {number} [weights]
 * @property {number} [alive] weights on a path from input to output
 * @property {number} [wasm]
 */

/**
 * @typedef {object} Facts
 * @property {string} version
 * @property {Entry[]} networks
 * @property {Record<string, { shape: number[], labels: number[] }>} samples
 * @property {Player[]} [players]
 * @property {{ train: number, test: number, shape: number[], license: string }} [digits]
 * @property {{ from: string, density: number, networks: { key: string, label: string, bytes: number }[] }} [learners]
 */

/** The text of a data element. @param {string} id @returns {string | null} */
export function textOf(id) {
  return document.getElementById(id)?.textContent ?? null;
}

/** @type {Map<string, Promise<Uint8Array>>} */
const unpacked = new Map();

/** @type {Facts} */
export const FACTS = JSON.parse(new TextDecoder().decode(await bytesOf("facts")));

/** Whether the page holds some bytes. @param {string} key */
export function has(key) {
  return document.getElementById(`bytes-${key}`) !== null;
}

/** Bytes of the page by their key, unpacked when first asked for. @param {string} key @returns {Promise<Uint8Array>} */
export function bytesOf(key) {
  let known = unpacked.get(key);
  if (!known) {
    known = unpack(textOf(`bytes-${key}`) ?? "");
    unpacked.set(key, known);
  }
  return known;
}

/** @param {string} text @returns {Promise<Uint8Array>} */
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {string} name @returns {Entry | undefined} */
export function entryOf(name) {
  return FACTS.networks.find((entry) => entry.name === name);
}

/** @param {Entry} entry */
export function keptOf(entry) {
  return entry.layers.reduce((sum, layer) => sum + layer.kept, 0);
}

/** Times faster, for one image, than the dense network in ONNX Runtime; null if it was not measured. @param {Entry} entry */
export function measuredOf(entry) {
  const own = entry.times?.rows.find((row) => row.runtime.startsWith("nttzoo"));
  return own && entry.times ? entry.times.dense_onnxruntime / own.own : null;
}
