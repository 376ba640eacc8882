/** The page: which view is shown, and in which colors. */
import { entryOf, FACTS } from "./data.js";
import { el, svg } from "./dom.js";
import { drawSection } from "./draw.js";
import { learnSection } from "./learn.js";
import { networkPage } from "./network.js";
import { zooSection } from "./zoo.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const SECTIONS = ["draw", "learn", "zoo"];
/** @type {HTMLElement[] | null} */
let home = null;

function homeView() {
  home ??= [drawSection(), learnSection(), zooSection()].filter((section) => section !== null);
  return home;
}

/** @param {string} name */
function unknown(name) {
  return el("section", {}, el("div", { class: "wrap" }, el("h2", {}, "No such network"), el("p", { class: "soft" }, `There is no “${name}” in this zoo. `, el("a", { href: "#/zoo" }, "All networks"))));
}

/** What the address names: a section, a network, or nothing. */
function named() {
  const name = location.hash.replace(/^#\/?/, "");
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** @param {boolean} moved whether somebody went here: then what is read next starts here */
function route(moved) {
  const section = named();
  if (!section || SECTIONS.includes(section)) {
    if (!home || !home[0].isConnected) main.replaceChildren(...homeView());
    document.title = "nttzoo gallery";
    const target = section ? document.getElementById(section) : null;
    if (target) target.scrollIntoView();
    else scrollTo(0, 0);
    const title = /** @type {HTMLElement | undefined} */ ((target ?? main).querySelector("h1, h2"));
    title?.setAttribute("tabindex", "-1");
    if (moved) title?.focus({ preventScroll: true });
  } else {
    const entry = entryOf(section);
    main.replaceChildren(entry ? networkPage(entry) : unknown(section));
    document.title = `${section} · nttzoo`;
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
  for (const link of document.querySelectorAll(".bar nav a")) {
    if (link.getAttribute("href") === `#/${section}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

const THEMES = ["auto", "light", "dark"];

/** The theme, kept for the next visit where the browser allows it. */
function themes() {
  const button = /** @type {HTMLElement} */ (document.getElementById("theme"));
  let theme = "auto";
  try {
    theme = localStorage.getItem("nttzoo-theme") ?? "auto";
  } catch {
    // A page from disk may have no storage.
  }
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "◐ auto", light: "○ light", dark: "● dark" }[theme] ?? theme;
    button.setAttribute("aria-label", `Color theme: ${theme}`);
    document.dispatchEvent(new Event("themechange"));
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem("nttzoo-theme", theme);
    } catch {
      // As above.
    }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

/** The mark: a mask of 5 x 5 with three survivors. */
function mark() {
  const kept = [6, 13, 17];
  const dots = document.querySelector(".dots");
  for (let i = 0; i < 25; i++) {
    dots?.append(svg("circle", { cx: 3 + 4 * (i % 5), cy: 3 + 4 * Math.floor(i / 5), r: kept.includes(i) ? 1.7 : 1, class: kept.includes(i) ? "on" : "" }));
  }
}

mark();
themes();
route(false);
addEventListener("hashchange", () => route(true));
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // a hash would name a network
  main.focus();
});
document.querySelector(".foot")?.append(el("div", { class: "wrap" },
  `nttzoo ${FACTS.version}: Neural Tangent Transfer after Liu & Zenke, ICML 2020. This page is one file; it asks nothing of any server. `,
  FACTS.digits ? `Digits: MNIST, ${FACTS.digits.license}.` : ""));
