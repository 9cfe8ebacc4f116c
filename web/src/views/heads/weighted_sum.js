/**
 * A row of attention written as the weighted sum that the head computes: 0.5·I + 0.1·like + …
 */

/** @import { Selection } from "./selection.js" */

import { h, s } from "../../page/dom.js";
import { formatWeight, headName } from "../../page/format.js";
import { dashPattern, paletteColor } from "../../page/colors/palette.js";

/** Terms that are written out. */
const MAX_TERMS = 7;

/**
 * @typedef {{ name: string, terms: { label: string, weight: number }[], restWeight: number, restCount: number }} WeightedSum
 */

/**
 * @param {Selection} selection
 * @param {number} row
 * @returns {WeightedSum[]} one for each head
 */
export function weightedSums(selection, row) {
  return selection.overlaid.map(({ layer, head, matrix }) => {
    const weights = selection.columns.map((column, index) => ({
      label: column.label,
      weight: matrix.values[row * matrix.columns + index],
    }));
    const sorted = weights.sort((a, b) => b.weight - a.weight);
    const terms = sorted.slice(0, MAX_TERMS).filter((term, index) => index === 0 || term.weight >= 0.01);
    const rest = sorted.slice(terms.length);
    return {
      name: headName(layer, head),
      terms,
      restWeight: rest.reduce((sum, term) => sum + term.weight, 0),
      restCount: rest.length,
    };
  });
}

/**
 * @param {string} query
 * @param {WeightedSum} sum
 * @param {number} place of the head in the order of selection
 * @returns {HTMLElement}
 */
export function weightedSumLine(query, { name, terms, restWeight, restCount }, place) {
  const written = terms.flatMap(({ label, weight }, index) => {
    const term = h(
      "span",
      { class: "term" },
      h("span", { class: "factor" }, formatWeight(weight)),
      "·",
      h("b", {}, label),
    );
    return index === 0 ? [term] : [" + ", term];
  });
  return h(
    "p",
    { class: "weighted-sum", "data-sum": name },
    headKey(name, place),
    h("span", { class: "query-token" }, query),
    " = ",
    written,
    restCount > 0 &&
      restWeight >= 0.0005 &&
      ` + ${formatWeight(restWeight)} on ${restCount} ${restCount === 1 ? "other token" : "other tokens"}`,
  );
}

/**
 * A head's place, a piece of its lines, and its name.
 * @param {string} name
 * @param {number} place in the order of selection
 */
export function headKey(name, place) {
  const line = { x1: 0, x2: 34, y1: 5, y2: 5, stroke: paletteColor(place), "stroke-width": 5 };
  const sample = s(
    "svg",
    { class: "line-sample", width: 34, height: 10, "aria-hidden": "true" },
    s("line", { ...line, "stroke-dasharray": dashPattern(place) }),
  );
  return h("span", { class: "head-key", "data-place": place }, h("b", {}, place + 1), sample, name);
}
