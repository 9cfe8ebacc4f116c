/**
 * The computation of an attention row as a table: one row per key token with its key, score, scaled score, mask, softmax
 * weight, value, and its share of the output.
 */

import { h, setChildren } from "../../page/dom.js";
import { formatFixed, formatNumber } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { firstValues, fractionBar, vectorBars } from "../shared/bars.js";
import { scrollable } from "../shared/section.js";

/** @import { Cell, Token } from "../../contract.d.ts" */

/** More keys are shown on request only; those with the largest weights come first. */
const MAX_KEYS = 24;

/**
 * @param {Cell} cell
 * @param {string} query its name
 * @param {boolean} isStep whether the query is a step of the decoder
 * @param {Token[]} keys
 */
export function attentionTable(cell, query, isStep, keys) {
  const element = scrollable("The computation, token by token");
  let showAll = false;
  const draw = () => {
    const shown = showAll ? cell.keys.map((_, index) => index) : largestWeights(cell, MAX_KEYS);
    const hidden = cell.keys.length - shown.length;
    const button =
      hidden > 0 &&
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            showAll = true;
            draw();
          },
        },
        `Show ${hidden} more tokens with smaller weights`,
      );
    setChildren(element, table(cell, query, isStep, keys, shown), button || null);
  };
  draw();
  return element;
}

/** The positions with the largest weights, in text order. @param {Cell} cell @param {number} count */
function largestWeights(cell, count) {
  return cell.weights
    .map((weight, index) => ({ weight, index }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, count)
    .map(({ index }) => index)
    .sort((a, b) => a - b);
}

/** @param {Cell} cell @param {string} query @param {boolean} isStep @param {Token[]} keys @param {number[]} shown */
function table(cell, query, isStep, keys, shown) {
  const limits = {
    query: largestAbsolute([cell.query]),
    key: largestAbsolute(cell.keys),
    value: largestAbsolute([...cell.values, cell.output]),
  };
  const columns = /** @type {[string, string, string, string?][]} */ ([
    ["1", "token", "the key tokens"],
    ["", "key k", "compared with the query"],
    ["2", "q · k", "dot product: how well they match", "number"],
    ["3", `× ${formatNumber(cell.scale)}`, "scaled, so that the softmax does not saturate", "number"],
    ["4", "mask", "masked keys are set to −∞", "number"],
    ["5", "softmax", "weights that add up to 1"],
    ["", "value v", "the token's contribution"],
    ["6", "weight · v", "its share of the output"],
  ]);
  return h(
    "table",
    { class: "numbers attention-table" },
    h(
      "thead",
      {},
      h(
        "tr",
        { class: "query" },
        h("th", { scope: "row" }, h("small", {}, "query q of "), query),
        vectorCell(cell.query, "Query", limits.query),
        h("td", { colspan: 6, class: "soft" }, `What this ${isStep ? "step" : "token"} looks for. Its dot product with every key is computed.`),
      ),
      h(
        "tr",
        {},
        columns.map(([number, name, description, kind]) =>
          h(
            "th",
            { scope: "col", class: kind },
            number && h("span", { class: "step-number" }, number),
            name,
            h("small", {}, description),
          ),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      shown.map((index) => keyRow(cell, keys, index, limits)),
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
          "The weights add up to 1. The sum of the weighted values is the head's output: z = Σ weight · v.",
        ),
        h(
          "td",
          { class: "number" },
          formatFixed(
            cell.weights.reduce((sum, weight) => sum + weight, 0),
            3,
          ),
        ),
        h("td", { class: "soft" }, "z ="),
        vectorCell(cell.output, "The output z", limits.value),
      ),
    ),
  );
}

/** @param {Cell} cell @param {Token[]} keys @param {number} index @param {{ key: number, value: number }} limits */
function keyRow(cell, keys, index, limits) {
  const [weight, maskedScore] = [cell.weights[index], cell.masked_scores[index]];
  const name = keys[index] ? tokenLabel(keys[index]) : String(index + 1);
  const weighted = cell.values[index].map((value) => weight * value);
  const button = h(
    "button",
    { type: "button", class: "quiet", "aria-expanded": "false", onclick: () => toggle() },
    name,
  );
  const row = h(
    "tr",
    { class: maskedScore === null ? "masked-row" : "", "data-key": index },
    h("th", { scope: "row" }, button, h("small", { class: "position" }, index + 1)),
    vectorCell(cell.keys[index], `Key of ${name}`, limits.key),
    h("td", { class: "number" }, formatFixed(cell.scores[index])),
    h("td", { class: "number" }, formatFixed(cell.scaled_scores[index])),
    h(
      "td",
      { class: "number" },
      maskedScore === null ? h("span", { title: "masked" }, "✕ −∞") : formatFixed(maskedScore),
    ),
    h("td", {}, fractionBar(weight, formatFixed(weight, 3))),
    vectorCell(cell.values[index], `Value of ${name}`, limits.value),
    vectorCell(weighted, `Weighted value of ${name}`, limits.value),
  );
  const toggle = () => {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) row.nextElementSibling?.remove();
    else row.after(h("tr", { class: "expanded-row" }, h("td", { colspan: 8 }, allNumbers(cell, index, name))));
  };
  return row;
}

/** Every number behind a row. @param {Cell} cell @param {number} index @param {string} name */
function allNumbers(cell, index, name) {
  const [q, k, v, weight] = [cell.query, cell.keys[index], cell.values[index], cell.weights[index]];
  const products = q.map((value, dimension) => value * (k[dimension] ?? NaN));
  /** @type {[string, number[], string][]} */
  const vectors = [
    ["q", q, ""],
    ["k", k, ""],
    ["q · k", products, `sum ${formatFixed(cell.scores[index])}`],
    ["v", v, ""],
    [`${formatFixed(weight, 3)} · v`, v.map((value) => weight * value), ""],
  ];
  const dimensions = Math.max(q.length, v.length);
  const header = h(
    "tr",
    {},
    h("th", { scope: "col" }, "dimension"),
    Array.from({ length: dimensions }, (_, dimension) => h("th", { scope: "col" }, dimension + 1)),
    h("th", { scope: "col" }, ""),
  );
  const rows = vectors.map(([label, values, sum]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, label),
      Array.from({ length: dimensions }, (_, dimension) =>
        h("td", { class: "number" }, dimension < values.length ? formatFixed(values[dimension]) : ""),
      ),
      h("td", {}, sum),
    ),
  );
  return scrollable(
    `All numbers of ${name}`,
    h("p", { class: "note" }, writeDotProduct(q, k, cell.scores[index])),
    h("table", { class: "numbers all-numbers" }, h("thead", {}, header), h("tbody", {}, rows)),
  );
}

/** @param {number[]} q @param {number[]} k @param {number} score */
function writeDotProduct(q, k, score) {
  const parenthesized = (/** @type {number} */ value) => (value < 0 ? `(${formatFixed(value)})` : formatFixed(value));
  const terms = q.slice(0, 3).map((value, dimension) => `${formatFixed(value)}·${parenthesized(k[dimension])}`);
  return `q · k = ${terms.join(" + ")} + … = ${formatFixed(score)}`;
}

/** @param {number[]} values @param {string} label @param {number} limit */
function vectorCell(values, label, limit) {
  return h(
    "td",
    { class: "vector-cell" },
    vectorBars(values, { label, limit }),
    h("small", {}, firstValues(values)),
  );
}

/** @param {number[][]} vectors */
function largestAbsolute(vectors) {
  return Math.max(1e-12, ...vectors.map((vector) => Math.max(...vector.map(Math.abs))));
}
