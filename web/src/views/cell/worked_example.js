/**
 * An attention row in one line: dot products, scaling, softmax, weighted sum. First with the model's numbers, then for the
 * two words *Thinking Machines*, whose numbers can be computed by hand.
 */

import { h } from "../../page/dom.js";
import { formatFixed, formatNumber } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";

/** @import { Cell, Token } from "../../contract.d.ts" */

/** The scores of two keys of 64 dimensions, from "The Illustrated Transformer" (Alammar 2018). */
export const EXAMPLE = { words: ["Thinking", "Machines"], scores: [112, 96], dimension: 64 };

/** @param {Cell} cell @param {string} query its name @param {Token[]} keys */
export function workedExample(cell, query, keys) {
  const best = cell.weights
    .map((weight, index) => ({ weight, index }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 2)
    .map(({ index }) => index);
  const name = (/** @type {number} */ index) => (keys[index] ? tokenLabel(keys[index]) : String(index + 1));
  const terms = best.map((index) => `${formatFixed(cell.weights[index])}·v(${name(index)})`).join(" + ");
  return h(
    "div",
    { class: "worked-example" },
    computation(`This model, query ${query}`, [
      ["keys", best.map(name)],
      ["q · k", best.map((index) => formatFixed(cell.scores[index]))],
      [`× ${formatNumber(cell.scale)}`, best.map((index) => formatFixed(cell.scaled_scores[index]))],
      ["softmax", best.map((index) => formatFixed(cell.weights[index]))],
      ["weighted sum", [`z = ${terms}${cell.weights.length > best.length ? " + …" : ""}`]],
    ]),
    computation("An example by hand (Alammar 2018, “The Illustrated Transformer”), query Thinking", exampleSteps()),
  );
}

/** Its steps: the name of each and its values. @returns {[string, string[]][]} */
export function exampleSteps() {
  const scaled = EXAMPLE.scores.map((score) => score / Math.sqrt(EXAMPLE.dimension));
  const total = scaled.reduce((sum, score) => sum + Math.exp(score), 0);
  const weights = scaled.map((score) => Math.exp(score) / total);
  const terms = weights.map((weight, index) => `${formatFixed(weight)}·v(${EXAMPLE.words[index]})`).join(" + ");
  return [
    ["keys", EXAMPLE.words],
    ["q · k", EXAMPLE.scores.map(String)],
    [`÷ √${EXAMPLE.dimension} = ${Math.sqrt(EXAMPLE.dimension)}`, scaled.map((score) => formatNumber(score))],
    ["softmax", weights.map((weight) => formatFixed(weight))],
    ["weighted sum", [`z = ${terms}`]],
  ];
}

/** @param {string} title @param {[string, string[]][]} steps */
function computation(title, steps) {
  return h(
    "div",
    { class: "computation" },
    h("h3", {}, title),
    h(
      "ol",
      { class: "computation-steps" },
      steps.map(([name, values], index) => {
        const arrow = h("span", { class: "arrow", "aria-hidden": "true" }, "→");
        const shown = h("span", { class: "values" }, values.join(" and "));
        return h("li", {}, h("small", {}, name), shown, index < steps.length - 1 ? arrow : null);
      }),
    ),
  );
}
