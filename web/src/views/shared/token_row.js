/**
 * Tokens in a row. Below its text, a token may have a number, a probability or an attention weight, and the color that
 * goes with it.
 */

import { colorCell } from "../../page/colors/scales.js";
import { h } from "../../page/dom.js";
import { rowFocus } from "./roving_focus.js";

/**
 * @typedef {object} Chip
 * @property {string} text
 * @property {boolean} [special]
 * @property {string} [number] below the text
 * @property {number} [probability] colors the chip
 * @property {{ value: number, limit: number }} [weight] colors the chip on the scale of attention weights
 * @property {Record<string, unknown>} [attributes]
 */

/** @param {Chip} chip @param {"span" | "button"} [tag] */
export function tokenChip({ text, special = false, number, probability, weight, attributes = {} }, tag = "span") {
  const chip = h(
    tag,
    {
      ...attributes,
      type: tag === "button" ? "button" : null,
      class: `token${special ? " special" : ""} ${attributes.class ?? ""}`.trimEnd(),
      "data-probability": probability,
    },
    h("span", { class: "token-text" }, text),
    number !== undefined && [" ", h("span", { class: "token-number" }, number)],
  );
  if (probability !== undefined) chip.style.setProperty("--probability", probability.toFixed(4));
  if (weight !== undefined) colorCell(chip, "weight", weight.value, weight.limit);
  return chip;
}

/**
 * A row of chips; the arrow keys move along those that are buttons.
 * @param {string} label
 * @param {HTMLElement[]} chips
 */
export function tokenRow(label, chips) {
  const row = h("div", { class: "tokens", role: "group", "aria-label": label }, chips);
  rowFocus(row);
  return row;
}
