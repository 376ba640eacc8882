/** Small helpers: elements, numbers as text, colors. */

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * @template {Element} T
 * @param {T} element
 * @param {Record<string, unknown>} attributes functions are listeners, false and null leave an attribute out
 * @param {Child[]} children
 * @returns {T}
 */
function furnish(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, /** @type {EventListener} */ (value));
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false).map((child) => /** @type {Node | string} */ (child)));
  return element;
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** @param {number} value @param {number} [digits] */
export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;

/** A density: 1 %, 0.5 %. @param {number} value */
export const densityText = (value) => `${Number((100 * value).toPrecision(3))} %`;

/** @param {number} value */
export const whole = (value) => Math.round(value).toLocaleString("en-US");

/** @param {number} value */
export const kilobytes = (value) => `${value < 99_500 ? (value / 1000).toFixed(1) : whole(value / 1000)} kB`;

/** @param {number} value */
export const times = (value) => `${value < 10 ? value.toFixed(1) : whole(value)}×`;

/** @param {number[]} values */
export const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** A color of the theme as [r, g, b]. @param {string} name of a custom property @returns {[number, number, number]} */
export function color(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = parseInt(text.slice(1), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

/** @param {[number, number, number]} rgb @param {number} alpha */
export const rgba = (rgb, alpha) => `rgba(${rgb[0]}, ${rgb[1]}, ${rgb[2]}, ${alpha})`;

/** @param {HTMLCanvasElement} canvas @returns {CanvasRenderingContext2D} */
export function brush(canvas, options = {}) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", options));
}

const tip = el("div", { class: "tip", role: "presentation" });

/** Shows a text at an element while it is pointed at or focused. @param {Element} element @param {() => string} text */
export function explain(element, text) {
  const show = () => {
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = text();
    tip.classList.add("on");
    const box = element.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${left}px`;
    tip.style.top = `${box.top > tip.offsetHeight + 16 ? box.top - tip.offsetHeight - 8 : box.bottom + 8}px`;
  };
  const hide = () => tip.classList.remove("on");
  for (const event of ["pointerenter", "focus"]) element.addEventListener(event, show);
  for (const event of ["pointerleave", "blur", "click"]) element.addEventListener(event, hide);
}

/** Calls `action` when the theme changes, and when the element's width does. @param {Element} element @param {() => void} action */
export function redrawn(element, action) {
  let width = -1;
  new ResizeObserver(() => {
    if (Math.abs(element.clientWidth - width) > 1) {
      width = element.clientWidth;
      action();
    }
  }).observe(element);
  document.addEventListener("themechange", () => element.isConnected && action());
}
