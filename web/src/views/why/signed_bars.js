/**
 * A bar chart of signed numbers: bars go right from zero for positive ones, and left for negative ones.
 */

import { h } from "../../page/dom.js";
import { formatChange } from "../../page/format.js";

/**
 * @typedef {object} Bar
 * @property {string} label
 * @property {number} value
 * @property {boolean} supports whether it speaks for the token that was written; this is the bar's color
 * @property {string} [key] what it is, for checks
 */

/** @param {Bar[]} bars @param {string} caption @param {number} limit the absolute value of a full bar */
export function signedBars(bars, caption, limit) {
  const head = ["", "", "value"].map((text) => h("th", { scope: "col" }, text));
  return h(
    "table",
    { class: "signed-bars" },
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", { class: "visually-hidden" }, h("tr", {}, head)),
    h(
      "tbody",
      {},
      bars.map((bar) => row(bar, limit)),
    ),
  );
}

/** @param {Bar} bar @param {number} limit */
function row({ label, value, supports, key = label }, limit) {
  const size = Math.min(1, Math.abs(value) / (limit || 1)) * 50;
  const bar = h("span", { class: `signed-bar ${supports ? "supports" : "opposes"}` });
  bar.style.width = `${size.toFixed(2)}%`;
  bar.style.left = `${(value < 0 ? 50 - size : 50).toFixed(2)}%`;
  return h(
    "tr",
    { "data-key": key, "data-value": value },
    h("th", { scope: "row" }, label),
    h("td", { class: "signed-track" }, h("span", { class: "zero" }), bar),
    h("td", { class: "signed-value" }, formatChange(value)),
  );
}
