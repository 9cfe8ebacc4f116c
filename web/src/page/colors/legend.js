/**
 * Legends of the color scales: the colors with numbers, and what a color stands for.
 */

/** @import { Child } from "../dom.js" */
/** @import { Scale } from "./scales.js" */

import { colorIndex, scaleColors } from "./scales.js";
import { h } from "../dom.js";
import { formatNumber, formatPercent } from "../format.js";

/**
 * The legend of attention weights.
 * @param {number} [limit] the weight that has the last color
 * @param {boolean} [hasMask] whether masked cells are shown
 * @returns {HTMLElement}
 */
export function weightLegend(limit = 1, hasMask = false) {
  const rule = limit === 1 ? "" : `; all are small here, so ${formatPercent(limit)} has the last color instead of 100 %`;
  return h(
    "div",
    { class: "legend" },
    h("span", { class: "legend-label" }, `attention weight${rule}`),
    weightRamp(limit, [0, 0.04, 0.16, 0.36, 0.64, 1], formatPercent),
    hasMask && h("span", { class: "masked-key" }, h("span", { class: "swatch" }), "masked"),
  );
}

/**
 * The legend of sizes, such as numbers of parameters, on the scale of attention weights: by the square root.
 * @param {string} label what is measured
 * @param {number} limit the size that has the last color
 * @param {(size: number) => string} format
 */
export function sizeLegend(label, limit, format) {
  const ramp = weightRamp(limit, [0, 0.25, 1], format);
  return h("div", { class: "legend" }, h("span", { class: "legend-label" }, label), ramp);
}

/** @param {number} limit @param {number[]} fractions of it with a tick @param {(value: number) => string} format */
function weightRamp(limit, fractions, format) {
  const ticks = fractions.map((fraction) => {
    const tick = h("span", {}, format(fraction * limit));
    tick.style.left = `${100 * Math.sqrt(fraction)}%`;
    return tick;
  });
  return h("div", { class: "ramp" }, rampCanvas("weight", 0, limit, limit), ticks);
}

/** The legend of probabilities, which color tokens. */
export function probabilityLegend() {
  const steps = [0, 0.25, 0.5, 0.75, 1].map((probability) => {
    const step = h("span", { class: "legend-step" }, formatPercent(probability));
    step.style.setProperty("--probability", String(probability));
    return step;
  });
  return h("div", { class: "probability-legend" }, h("span", { class: "note" }, "Probability:"), steps);
}

/**
 * The legend of signed numbers, from the smallest to the largest value.
 * @param {number} lowest
 * @param {number} highest
 * @param {number} limit the absolute value of the strongest color
 * @param {[Child, Child]} [labels] what stands at its ends
 */
export function signedLegend(lowest, highest, limit, labels = [formatNumber(lowest), formatNumber(highest)]) {
  return h("span", { class: "signed-legend" }, labels[0], rampCanvas("signed", lowest, highest, limit), labels[1]);
}

/** @param {Scale} scale @param {number} lowest @param {number} highest @param {number} limit */
function rampCanvas(scale, lowest, highest, limit) {
  const width = 256;
  const canvas = h("canvas", { width, height: 1, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  if (context === null) return canvas;
  const image = context.createImageData(width, 1);
  const colors = scaleColors(scale);
  // The ramp of weights is drawn by color, so that small weights have room; the ticks stand at the roots of their weights.
  const index = (/** @type {number} */ x) =>
    scale === "weight" ? x : colorIndex(scale, lowest + ((highest - lowest) * x) / (width - 1), limit);
  new Uint32Array(image.data.buffer).set(Uint32Array.from({ length: width }, (_, x) => colors[index(x)]));
  context.putImageData(image, 0, 0);
  return canvas;
}
