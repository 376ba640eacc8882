/** The classroom, away from the page's thread: networks take turns, one step each. */
import { loadLearner } from "./net.js";

const SIZE = 64; // images of a batch
const TURN = 30; // milliseconds between looks at the messages
const REPORT = 180; // milliseconds between reports
const TESTED = 1000;

/** @type {{ key: string, learner: import("./net.js").Learner, loss: number, spent: number }[]} */
let pupils = [];
let images = new Uint8Array();
let labels = new Uint8Array();
let testImages = new Uint8Array();
let testLabels = new Uint8Array();
let running = false;
let rate = 1e-3;
let step = 0;
let size = 784;
/** @type {Uint32Array} */
let order = new Uint32Array();

/** A new order of the images for each epoch. @param {number} count */
function shuffledOrder(count) {
  const places = Uint32Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [places[i], places[j]] = [places[j], places[i]];
  }
  return places;
}

function tell() {
  const networks = pupils.map(({ key, learner, loss, spent }) => {
    const found = learner.predict(testImages);
    const hits = found.reduce((sum, label, i) => sum + Number(label === testLabels[i]), 0);
    return { key, loss, accuracy: hits / found.length, speed: step ? (SIZE * step) / (spent / 1000) : 0 };
  });
  postMessage({ step, epochs: (step * SIZE) / labels.length, networks });
}

function oneStep() {
  const batches = Math.floor(labels.length / SIZE);
  if (step % batches === 0) order = shuffledOrder(labels.length);
  const chosen = order.subarray((step % batches) * SIZE, ((step % batches) + 1) * SIZE);
  const pixels = new Uint8Array(SIZE * size);
  chosen.forEach((place, i) => pixels.set(images.subarray(place * size, (place + 1) * size), i * size));
  const wanted = Uint8Array.from(chosen, (place) => labels[place]);
  for (const pupil of pupils) {
    const began = performance.now();
    pupil.loss = pupil.learner.train(pixels, wanted, rate);
    pupil.spent += performance.now() - began;
  }
  step += 1;
}

function work() {
  if (!running) return;
  let report = performance.now() + REPORT;
  const turn = () => {
    if (!running) return;
    const end = performance.now() + TURN;
    // The first steps are worth seeing one by one.
    const most = step < 40 ? 1 : 1000;
    for (let k = 0; k < most && performance.now() < end; k++) oneStep();
    if (performance.now() > report || step <= 40) {
      tell();
      report = performance.now() + REPORT;
    }
    setTimeout(turn, step <= 40 ? 25 : 0);
  };
  turn();
}

/** @param {any} data */
async function hear(data) {
  if (data.start) {
    ({ images, labels, testImages, testLabels } = data.start);
    size = images.length / labels.length;
    testImages = testImages.subarray(0, TESTED * size);
    pupils = [];
    for (const { key, bytes } of data.start.modules) pupils.push({ key, learner: await loadLearner(bytes), loss: 0, spent: 0 });
    tell();
  }
  if (data.rate) rate = data.rate;
  if (data.reset) {
    step = 0;
    for (const pupil of pupils) {
      pupil.learner.reset();
      pupil.spent = 0;
    }
    tell();
  }
  if (data.run !== undefined && data.run !== running) {
    running = data.run;
    if (running) work();
    else tell();
  }
}

// One message after the other: loading takes a while, and nothing may overtake it.
let heard = Promise.resolve();
self.onmessage = ({ data }) => {
  heard = heard.then(() => hear(data));
};
