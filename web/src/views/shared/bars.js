/**
 * Vectors as bar charts, and single fractions as bars.
 */

import { h, s } from "../../page/dom.js";
import { formatFixed, formatNumber } from "../../page/format.js";

/**
 * A vector as a row of bars: up for positive values, down for negative ones.
 * @param {number[]} values
 * @param {{ label: string, width?: number, height?: number, limit?: number }} options `limit`: the absolute value of a
 *   full bar, so that vectors can be compared
 */
export function vectorBars(values, { label, width = 128, height = 32, limit }) {
  const largest = limit ?? Math.max(1e-12, ...values.map(Math.abs));
  const [step, middle] = [width / Math.max(1, values.length), height / 2];
  const gap = step > 3 ? 0.6 : 0;
  let [positive, negative] = ["", ""];
  values.forEach((value, index) => {
    const size = Math.min(1, Math.abs(value) / largest) * (middle - 1);
    const left = (index * step + gap / 2).toFixed(2);
    const barWidth = (step - gap).toFixed(2);
    if (value >= 0) positive += `M${left} ${middle}v${(-size).toFixed(2)}h${barWidth}v${size.toFixed(2)}z`;
    else negative += `M${left} ${middle}v${size.toFixed(2)}h${barWidth}v${(-size).toFixed(2)}z`;
  });
  const description = `${label}: ${describeVector(values)}`;
  return s(
    "svg",
    { class: "vector", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": description },
    s("path", { class: "positive", d: positive }),
    s("path", { class: "negative", d: negative }),
    s("line", { class: "zero", x1: 0, x2: width, y1: middle, y2: middle }),
    s("title", {}, description),
  );
}

/** @param {number[]} values */
export function describeVector(values) {
  if (values.length === 0) return "empty";
  const [lowest, highest] = [formatNumber(Math.min(...values)), formatNumber(Math.max(...values))];
  return `${values.length} values from ${lowest} to ${highest}`;
}

/** The first values of a vector: "(0.12, −0.50, 1.00, …)". @param {number[]} values @param {number} [count] */
export function firstValues(values, count = 3) {
  const first = values.slice(0, count).map((value) => formatFixed(value));
  return `(${first.join(", ")}${values.length > count ? ", …" : ""})`;
}

/**
 * A bar for a fraction between 0 and 1, with its label.
 * @param {number} fraction
 * @param {string} label
 */
export function fractionBar(fraction, label) {
  const width = `${(100 * Math.max(0, Math.min(1, fraction))).toFixed(2)}%`;
  const track = h("span", { class: "fraction-track" }, h("span", { style: { width } }));
  return h("span", { class: "fraction" }, track, h("span", { class: "fraction-label" }, label));
}
