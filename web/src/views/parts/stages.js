/**
 * One row of attention computed before one's eyes: a line for each token that could be looked at, and on it from left to
 * right its key, the product with the query, the scaled score, the mask, the softmax, its value, and its share of the sum.
 */

import { h, put } from "../../page/dom.js";
import { label } from "../../page/tokens.js";
import { fixed, short } from "./numbers.js";
import { scroller } from "./section.js";
import { firstNumbers, shareBar, vectorBars } from "./vector.js";

/** @import { Cell, Token } from "../../contract.d.ts" */

/** More tokens than this are shown only when asked for; first come those that are looked at most. */
const MANY = 24;

/** @param {Cell} cell @param {Token} query @param {Token[]} keys */
export function stageTable(cell, query, keys) {
  const frame = scroller("The attention computed, token by token");
  let all = false;
  const draw = () => {
    const shown = all ? cell.keys.map((_, index) => index) : strongest(cell, MANY);
    const more = cell.keys.length - shown.length;
    const button =
      more > 0 &&
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            all = true;
            draw();
          },
        },
        `Show ${more} more, which are looked at less`,
      );
    put(frame, table(cell, query, keys, shown), button || null);
  };
  draw();
  return frame;
}

/** The positions with the largest weights, in the order of the text. @param {Cell} cell @param {number} count */
export function strongest(cell, count) {
  return cell.weights
    .map((weight, index) => ({ weight, index }))
    .sort((one, other) => other.weight - one.weight)
    .slice(0, count)
    .map(({ index }) => index)
    .sort((one, other) => one - other);
}

/** @param {Cell} cell @param {Token} query @param {Token[]} keys @param {number[]} shown */
function table(cell, query, keys, shown) {
  const bounds = { query: most([cell.query]), key: most(cell.keys), value: most([...cell.values, cell.result]) };
  const heads = /** @type {[string, string, string, string?][]} */ ([
    ["1", "token", "who could be looked at"],
    ["", "key k", "what it offers to be found by"],
    ["2", "q · k", "how well query and key match", "number"],
    ["3", `× ${short(cell.scale)}`, "scaled, so that wide vectors do not shout", "number"],
    ["4", "mask", "what may not be seen is struck out", "number"],
    ["5", "softmax", "shares that add up to 1"],
    ["", "value v", "what it has to say"],
    ["6", "weight · v", "its part of the sum"],
  ]);
  return h(
    "table",
    { class: "numbers stages" },
    h(
      "thead",
      {},
      h(
        "tr",
        { class: "query" },
        h("th", { scope: "row" }, h("small", {}, "query q of "), label(query)),
        vectorCell(cell.query, "Query", bounds.query),
        h(
          "td",
          { colspan: 6, class: "soft" },
          "What this token is looking for. It is multiplied with every key below.",
        ),
      ),
      h(
        "tr",
        {},
        heads.map(([number, name, about, kind]) =>
          h(
            "th",
            { scope: "col", class: kind },
            number && h("span", { class: "stage-number" }, number),
            name,
            h("small", {}, about),
          ),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      shown.map((index) => line(cell, keys, index, bounds)),
    ),
    h(
      "tfoot",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "row" }, "sum"),
        h(
          "td",
          { colspan: 4, class: "soft" },
          "All weights add up to 1. All parts together are what this head hands on: z = Σ weight · v.",
        ),
        h(
          "td",
          { class: "number" },
          fixed(
            cell.weights.reduce((sum, weight) => sum + weight, 0),
            3,
          ),
        ),
        h("td", { class: "soft" }, "z ="),
        vectorCell(cell.result, "The sum z", bounds.value),
      ),
    ),
  );
}

/** @param {Cell} cell @param {Token[]} keys @param {number} index @param {{ key: number, value: number }} bounds */
function line(cell, keys, index, bounds) {
  const [weight, masked] = [cell.weights[index], cell.masked[index]];
  const name = keys[index] ? label(keys[index]) : String(index + 1);
  const part = cell.values[index].map((value) => weight * value);
  const button = h("button", { type: "button", class: "quiet", "aria-expanded": "false", onclick: () => turn() }, name);
  const row = h(
    "tr",
    { class: masked === null ? "hidden-key" : "", "data-key": index },
    h("th", { scope: "row" }, button, h("small", { class: "place" }, index + 1)),
    vectorCell(cell.keys[index], `Key of ${name}`, bounds.key),
    h("td", { class: "number" }, fixed(cell.products[index])),
    h("td", { class: "number" }, fixed(cell.scaled[index])),
    h("td", { class: "number" }, masked === null ? h("span", { title: "may not be seen" }, "✕ −∞") : fixed(masked)),
    h("td", {}, shareBar(weight, fixed(weight, 3))),
    vectorCell(cell.values[index], `Value of ${name}`, bounds.value),
    vectorCell(part, `Weighted value of ${name}`, bounds.value),
  );
  const turn = () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) row.nextElementSibling?.remove();
    else row.after(h("tr", { class: "opened-row" }, h("td", { colspan: 8 }, allNumbers(cell, index, name))));
  };
  return row;
}

/** Every number behind a line. @param {Cell} cell @param {number} index @param {string} name */
function allNumbers(cell, index, name) {
  const [q, k, v, weight] = [cell.query, cell.keys[index], cell.values[index], cell.weights[index]];
  const products = q.map((value, at) => value * (k[at] ?? NaN));
  /** @type {[string, number[], string][]} */
  const lines = [
    ["q", q, ""],
    ["k", k, ""],
    ["q · k", products, `sum ${fixed(cell.products[index])}`],
    ["v", v, ""],
    [`${fixed(weight, 3)} · v`, v.map((value) => weight * value), ""],
  ];
  const wide = Math.max(q.length, v.length);
  const numbers = h(
    "tr",
    {},
    h("th", { scope: "col" }, "number"),
    Array.from({ length: wide }, (_, at) => h("th", { scope: "col" }, at + 1)),
    h("th", { scope: "col" }, ""),
  );
  const rows = lines.map(([head, values, end]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, head),
      Array.from({ length: wide }, (_, at) =>
        h("td", { class: "number" }, at < values.length ? fixed(values[at]) : ""),
      ),
      h("td", {}, end),
    ),
  );
  return scroller(
    `All numbers of ${name}`,
    h("p", { class: "note" }, writtenSum(q, k, cell.products[index])),
    h("table", { class: "numbers all-numbers" }, h("thead", {}, numbers), h("tbody", {}, rows)),
  );
}

/** @param {number[]} q @param {number[]} k @param {number} product */
function writtenSum(q, k, product) {
  const terms = q.slice(0, 3).map((value, at) => `${fixed(value)}·${bracket(k[at])}`);
  return `q · k = ${terms.join(" + ")} + … = ${fixed(product)}`;
}

/** @param {number} value */
function bracket(value) {
  return value < 0 ? `(${fixed(value)})` : fixed(value);
}

/** @param {number[]} values @param {string} name @param {number} bound */
function vectorCell(values, name, bound) {
  return h(
    "td",
    { class: "vector-cell" },
    vectorBars(values, { label: name, bound }),
    h("small", {}, firstNumbers(values)),
  );
}

/** @param {number[][]} vectors */
function most(vectors) {
  return Math.max(1e-12, ...vectors.map((vector) => Math.max(...vector.map(Math.abs))));
}
