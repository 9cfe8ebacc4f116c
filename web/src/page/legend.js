/**
 * The legend of attention weights: the color ramp with numbers.
 */

import { colorRamp, currentTheme, rampIndex } from "./color.js";
import { h } from "./dom.js";
import { formatPercent } from "./format.js";

/**
 * @param {number} [maxWeight] the weight that has the last color
 * @param {string} [label]
 * @returns {HTMLElement}
 */
export function weightLegend(maxWeight = 1, label = "attention weight") {
  const canvas = h("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  if (context !== null) {
    const image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(colorRamp(currentTheme()));
    context.putImageData(image, 0, 0);
  }
  const ticks = [0, 0.04, 0.16, 0.36, 0.64, 1].map((fraction) => {
    const tick = h("span", {}, formatPercent(fraction * maxWeight));
    tick.style.left = `${(100 * rampIndex(fraction * maxWeight, maxWeight)) / 255}%`;
    return tick;
  });
  return h(
    "div",
    { class: "legend" },
    h("span", { class: "legend-label" }, label),
    h("div", { class: "ramp" }, canvas, ticks),
  );
}
