// One network in two runtimes, in one process of Node, taking turns: nttzoo's WebAssembly and onnxruntime-web.
// node wasm_run.mjs FOLDER PEER: FOLDER has net.js, net.wasm and model.onnx, PEER has node_modules/onnxruntime-web.
import { readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, peer] = process.argv.slice(2).map((path) => resolve(path));
const require = createRequire(join(peer, "here.js"));
const entry = require.resolve("onnxruntime-web/wasm");
const dist = join(entry, "..");
const ort = require("onnxruntime-web/wasm");
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = pathToFileURL(dist + "/").href;

const ROUNDS = 100;
const ROUND_MILLISECONDS = 4; // short: the best round of many is one that nothing else disturbed

let began = performance.now();
const { load } = await import(pathToFileURL(join(folder, "net.js")).href);
const net = await load();
const loadOurs = performance.now() - began;
began = performance.now();
const session = await ort.InferenceSession.create(readFileSync(join(folder, "model.onnx")), { executionProviders: ["wasm"] });
const loadPeer = performance.now() - began;

const inputs = (count) => Float32Array.from({ length: count * net.size }, (_, i) => Math.sin(i));

async function milliseconds(call) {
  let count = 0;
  const start = performance.now();
  while (performance.now() - start < ROUND_MILLISECONDS) {
    await call();
    count += 1;
  }
  return (performance.now() - start) / count;
}

const times = {};
let difference = 0;
for (const batch of [1, 64]) {
  const x = inputs(batch);
  const tensor = new ort.Tensor("float32", x, [batch, ...net.shape]);
  const ours = () => net.run(x);
  const theirs = async () => (await session.run({ images: tensor }))[session.outputNames[0]].data;
  const [a, b] = [ours(), await theirs()];
  const top = b.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  a.forEach((value, i) => (difference = Math.max(difference, Math.abs(value - b[i]) / top)));
  const best = { nttzoo_wasm: Infinity, onnxruntime_web: Infinity };
  for (let round = 0; round < ROUNDS; round++) {
    best.nttzoo_wasm = Math.min(best.nttzoo_wasm, await milliseconds(ours));
    best.onnxruntime_web = Math.min(best.onnxruntime_web, await milliseconds(theirs));
  }
  times[batch] = best;
}
const size = (...path) => statSync(join(...path)).size;
console.log(JSON.stringify({
  milliseconds: times,
  load_milliseconds: { nttzoo_wasm: loadOurs, onnxruntime_web: loadPeer },
  bytes: {
    nttzoo_wasm: size(folder, "net.wasm") + size(folder, "net.js"),
    onnxruntime_web: size(dist, "ort-wasm-simd-threaded.wasm") + size(dist, "ort.wasm.min.mjs") + size(folder, "model.onnx"),
  },
  difference,
  version: JSON.parse(readFileSync(join(dist, "../package.json"), "utf8")).version,
  node: process.version,
}));
