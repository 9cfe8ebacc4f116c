/**
 * A row of attention read out as the sum that it is: 0.5·I + 0.1·like + … Each head passes on this mixture of what it
 * found at the words it looked at.
 */

/** @import { Selection } from "./selection.js" */

import { h } from "../../page/dom.js";
import { headName, weight } from "../../page/words.js";

/** Terms that are written out. */
const TERMS = 7;

/**
 * @typedef {{ name: string, terms: { label: string, weight: number }[], rest: number, others: number }} Sum
 */

/**
 * @param {Selection} selection
 * @param {number} row
 * @returns {Sum[]} one for each head
 */
export function sums(selection, row) {
  return selection.over.map(({ layer, head, matrix }) => {
    const weights = selection.columns.map((column, at) => ({
      label: column.label,
      weight: matrix.values[row * matrix.columns + at],
    }));
    const ordered = weights.sort((one, other) => other.weight - one.weight);
    const terms = ordered.slice(0, TERMS).filter((term, at) => at === 0 || term.weight >= 0.01);
    const others = ordered.slice(terms.length);
    return {
      name: headName(layer, head),
      terms,
      rest: others.reduce((sum, term) => sum + term.weight, 0),
      others: others.length,
    };
  });
}

/**
 * @param {string} word
 * @param {Sum} sum
 * @param {string} colour
 * @returns {HTMLElement}
 */
export function sumLine(word, sum, colour) {
  const terms = sum.terms.flatMap(({ label, weight: share }, at) => {
    const term = h("span", { class: "term" }, h("span", { class: "factor" }, weight(share)), "·", h("b", {}, label));
    return at === 0 ? [term] : [" + ", term];
  });
  return h(
    "p",
    { class: "sum", "data-sum": sum.name },
    headKey(sum.name, colour),
    h("span", { class: "row-word" }, word),
    " = ",
    terms,
    sum.others > 0 &&
      sum.rest >= 0.0005 &&
      ` + ${weight(sum.rest)} on ${sum.others} ${sum.others === 1 ? "other" : "others"}`,
  );
}

/**
 * A head's name with its colour.
 * @param {string} name
 * @param {string} colour
 */
export function headKey(name, colour) {
  const spot = h("span", { class: "spot", "aria-hidden": "true" });
  spot.style.backgroundColor = colour;
  return h("span", { class: "whose" }, spot, name);
}
