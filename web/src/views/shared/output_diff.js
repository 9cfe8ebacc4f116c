/**
 * Two outputs side by side: what stayed, changed, was added or removed, with the probabilities before and after.
 */

import { h } from "../../page/dom.js";
import { formatFixed, formatPercent } from "../../page/format.js";
import { fractionBar } from "./bars.js";
import { align, units } from "./align.js";

/** @import { Trace } from "../../contract.d.ts" */
/** @import { Pair, Unit } from "./align.js" */

/** What both outputs are called. @typedef {[string, string]} Names */
/** @type {Names} */
const NAMES = ["before", "after"];

const CHANGE_SYMBOLS = { same: "=", changed: "≠", added: "+", removed: "−" };

/** @param {Trace} before @param {Trace} after @param {boolean} mergeSubwords @param {Names} [names] */
export function outputDiff(before, after, mergeSubwords, names = NAMES) {
  const pairs = align(units(before, mergeSubwords), units(after, mergeSubwords));
  return h(
    "div",
    { class: "output-diff" },
    h("p", { role: "status" }, summarize(pairs)),
    pairs.length > 0 ? pairList(pairs, names) : predictionTable(before, after, names),
    h(
      "dl",
      { class: "outputs" },
      h("dt", {}, names[0]),
      h("dd", {}, before.output || "–", logProbability(before)),
      h("dt", {}, names[1]),
      h("dd", {}, after.output || "–", logProbability(after)),
    ),
  );
}

/**
 * The same as rows of a table.
 * @param {Trace} before
 * @param {Trace} after
 * @param {boolean} mergeSubwords
 * @returns {(string | number)[][]}
 */
export function diffRows(before, after, mergeSubwords) {
  return align(units(before, mergeSubwords), units(after, mergeSubwords)).map((pair) => [
    "output",
    pair.change,
    pair.before?.text ?? "",
    pair.before?.probability ?? "",
    pair.after?.text ?? "",
    pair.after?.probability ?? "",
  ]);
}

/** @param {Trace} trace */
function logProbability(trace) {
  if (trace.generated.length === 0) return null;
  const probability = formatPercent(Math.exp(trace.log_probability));
  return h("small", {}, ` log-probability ${formatFixed(trace.log_probability)}, probability ${probability}`);
}

/** @param {Pair[]} pairs */
function summarize(pairs) {
  if (pairs.length === 0) return "This model predicts labels; here are their probabilities.";
  const count = (/** @type {Pair["change"]} */ change) => pairs.filter((pair) => pair.change === change).length;
  const changes = /** @type {Pair["change"][]} */ (["changed", "added", "removed"]).filter((change) => count(change) > 0);
  if (changes.length === 0) return "The output is the same; its probabilities may have changed.";
  return `${count("same")} unchanged, ${changes.map((change) => `${count(change)} ${change}`).join(", ")}.`;
}

/** @param {Pair[]} pairs @param {Names} names */
function pairList(pairs, names) {
  return h(
    "ol",
    { class: "pairs" },
    h(
      "li",
      { class: "pair header", "aria-hidden": "true" },
      h("span", {}, ""),
      names.map((name) => h("span", {}, name)),
    ),
    pairs.map((pair) =>
      h(
        "li",
        { class: `pair ${pair.change}`, "data-change": pair.change },
        h(
          "span",
          { class: "change" },
          h("span", { "aria-hidden": "true" }, `${CHANGE_SYMBOLS[pair.change]} `),
          pair.change,
        ),
        unitBox("before", names[0], pair.before),
        unitBox("after", names[1], pair.after),
      ),
    ),
  );
}

/** @param {"before" | "after"} column @param {string} name @param {Unit | null} unit */
function unitBox(column, name, unit) {
  if (!unit)
    return h(
      "span",
      { class: `unit ${column} none` },
      h("span", { class: "visually-hidden" }, `${name}: `),
      "nothing",
    );
  const subwords =
    unit.tokens.length > 1
      ? unit.tokens.map((token) => `${token.text.trim()} ${formatPercent(token.probability)}`).join(" · ")
      : null;
  return h(
    "span",
    { class: `unit ${column}`, title: subwords, "data-text": unit.text, "data-probability": unit.probability },
    h("span", { class: "visually-hidden" }, `${name}: `),
    h("span", { class: "unit-text" }, unit.text),
    fractionBar(unit.probability, formatPercent(unit.probability)),
  );
}

/**
 * The likeliest labels of both runs. Items (words, masks) are aligned; a text or an image as a whole has one counterpart.
 * @param {Trace} before @param {Trace} after @param {Names} names
 */
function predictionTable(before, after, names) {
  const items = (/** @type {Trace} */ { predictions }) =>
    predictions.map(({ item, choices }) => ({ text: predictions.length === 1 ? "" : item, item, choices }));
  const rows = align(items(before), items(after)).flatMap(({ before: old, after: changed }) => {
    const labels = new Set([...(old?.choices ?? []), ...(changed?.choices ?? [])].map(({ label }) => label));
    const item = [...new Set([old?.item, changed?.item].filter((name) => name !== undefined))].join(" | ");
    return [...labels].map((label) =>
      h("tr", {}, h("td", { class: "soft" }, item), h("th", { scope: "row" }, label), [old, changed].map((prediction) => labelCell(prediction, label))),
    );
  });
  const header = ["item", "label", ...names].map((text) => h("th", { scope: "col" }, text));
  return h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, header)), h("tbody", {}, rows));
}

/** @param {{ choices: { label: string, probability: number }[] } | null} prediction @param {string} label */
function labelCell(prediction, label) {
  if (prediction === null) return h("td", { class: "soft" }, "–");
  const probability = prediction.choices.find((choice) => choice.label === label)?.probability;
  return h("td", {}, probability === undefined ? "not among the likeliest" : fractionBar(probability, formatPercent(probability)));
}
