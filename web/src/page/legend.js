/**
 * What colours mean. A legend for weights is the ramp itself with numbers on it.
 */

import { place, ramp, theme } from "./colour.js";
import { h } from "./dom.js";
import { percent } from "./words.js";

/**
 * @param {number} [top] the weight that has the last colour
 * @param {string} [what]
 * @returns {HTMLElement}
 */
export function weightLegend(top = 1, what = "weight") {
  const canvas = h("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const paint = canvas.getContext("2d");
  if (paint !== null) {
    const image = paint.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(ramp(theme()));
    paint.putImageData(image, 0, 0);
  }
  const marks = [0, 0.04, 0.16, 0.36, 0.64, 1].map((share) => {
    const mark = h("span", {}, percent(share * top));
    mark.style.left = `${(100 * place(share * top, top)) / 255}%`;
    return mark;
  });
  return h(
    "div",
    { class: "legend" },
    h("span", { class: "legend-name" }, what),
    h("div", { class: "ramp" }, canvas, marks),
  );
}
