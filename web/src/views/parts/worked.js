/**
 * A row of attention written out in one line, as lecture slides do with the two words *Thinking Machines*: products,
 * scaled, softmax, sum. The same four steps with the slide's numbers and with the model's.
 */

import { h } from "../../page/dom.js";
import { label } from "../../page/tokens.js";
import { fixed, short } from "./numbers.js";

/** @import { Cell, Token } from "../../contract.d.ts" */

/** The slide's example: two products of vectors that are 64 wide. */
const SLIDE = { words: ["Thinking", "Machines"], products: [112, 96], width: 64 };

/** @param {Cell} cell @param {Token} query @param {Token[]} keys */
export function workedExample(cell, query, keys) {
  const best = cell.weights
    .map((weight, index) => ({ weight, index }))
    .sort((one, other) => other.weight - one.weight)
    .slice(0, 2)
    .map(({ index }) => index);
  const name = (/** @type {number} */ index) => (keys[index] ? label(keys[index]) : String(index + 1));
  const rest = cell.weights.length - best.length;
  return h(
    "div",
    { class: "worked" },
    chain(`This model, ${label(query)}`, [
      ["looks at", best.map(name)],
      ["q · k", best.map((index) => fixed(cell.products[index]))],
      [`× ${short(cell.scale)}`, best.map((index) => fixed(cell.scaled[index]))],
      ["softmax", best.map((index) => fixed(cell.weights[index]))],
      [
        "sum",
        [
          `z = ${best.map((index) => `${fixed(cell.weights[index])}·v(${name(index)})`).join(" + ")}${rest > 0 ? " + …" : ""}`,
        ],
      ],
    ]),
    chain("The slide, Thinking", slideSteps()),
  );
}

/** The same steps with the slide's numbers. @returns {[string, string[]][]} */
export function slideSteps() {
  const scaled = SLIDE.products.map((product) => product / Math.sqrt(SLIDE.width));
  const whole = scaled.reduce((sum, score) => sum + Math.exp(score), 0);
  const weights = scaled.map((score) => Math.exp(score) / whole);
  return [
    ["looks at", SLIDE.words],
    ["q · k", SLIDE.products.map(String)],
    [`÷ √${SLIDE.width} = ${Math.sqrt(SLIDE.width)}`, scaled.map((score) => short(score))],
    ["softmax", weights.map((weight) => fixed(weight))],
    ["sum", [`z = ${weights.map((weight, index) => `${fixed(weight)}·v(${SLIDE.words[index]})`).join(" + ")}`]],
  ];
}

/** @param {string} title @param {[string, string[]][]} steps */
function chain(title, steps) {
  return h(
    "div",
    { class: "chain-row" },
    h("h3", {}, title),
    h(
      "ol",
      { class: "chain" },
      steps.map(([name, values], index) => {
        const arrow = h("span", { class: "arrow", "aria-hidden": "true" }, "→");
        const shown = h("span", { class: "values" }, values.join(" and "));
        return h("li", {}, h("small", {}, name), shown, index < steps.length - 1 ? arrow : null);
      }),
    ),
  );
}
