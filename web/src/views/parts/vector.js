/**
 * A vector as a row of bars: up for what is above zero, down for what is below, all numbers of it to be read.
 */

import { h, s } from "../../page/dom.js";
import { fixed, short } from "./numbers.js";

/**
 * @param {number[]} values
 * @param {{ label: string, width?: number, height?: number, bound?: number }} options `bound`: the
 *   largest size that fits, so that vectors side by side can be compared
 */
export function vectorBars(values, { label, width = 128, height = 32, bound }) {
  const most = bound ?? Math.max(1e-12, ...values.map(Math.abs));
  const [step, middle] = [width / Math.max(1, values.length), height / 2];
  const gap = step > 3 ? 0.6 : 0;
  let [above, below] = ["", ""];
  values.forEach((value, index) => {
    const size = Math.min(1, Math.abs(value) / most) * (middle - 1);
    const left = (index * step + gap / 2).toFixed(2);
    const wide = (step - gap).toFixed(2);
    if (value >= 0) above += `M${left} ${middle}v${(-size).toFixed(2)}h${wide}v${size.toFixed(2)}z`;
    else below += `M${left} ${middle}v${size.toFixed(2)}h${wide}v${(-size).toFixed(2)}z`;
  });
  const picture = s(
    "svg",
    {
      class: "vector",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `${label}: ${inWords(values)}`,
    },
    s("path", { class: "above", d: above }),
    s("path", { class: "below", d: below }),
    s("line", { class: "zero", x1: 0, x2: width, y1: middle, y2: middle }),
  );
  picture.append(s("title", {}, `${label}: ${inWords(values)}`));
  return picture;
}

/** A vector in words. @param {number[]} values */
export function inWords(values) {
  if (values.length === 0) return "no numbers";
  return `${values.length} numbers from ${short(Math.min(...values))} to ${short(Math.max(...values))}`;
}

/** The first numbers of a vector, written out. @param {number[]} values @param {number} [count] */
export function firstNumbers(values, count = 3) {
  const first = values.slice(0, count).map((value) => fixed(value));
  return `(${first.join(", ")}${values.length > count ? ", …" : ""})`;
}

/**
 * A bar for a share between 0 and 1 with its number beside it.
 * @param {number} share
 * @param {string} text
 * @param {string} [kind]
 */
export function shareBar(share, text, kind = "") {
  const width = `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`;
  const bar = h("span", { class: `share-bar ${kind}` }, h("span", { style: { width } }));
  return h("span", { class: "share" }, bar, h("span", { class: "share-number" }, text));
}
