/**
 * Two outputs side by side: what stayed, changed, was added or removed, with the probabilities before and after.
 */

import { h } from "../../page/dom.js";
import { formatFixed, formatPercent } from "../../page/format.js";
import { fractionBar } from "../shared/bars.js";
import { align, units } from "./align.js";

/** @import { Trace } from "../../contract.d.ts" */
/** @import { Pair, Unit } from "./align.js" */

const CHANGE_SYMBOLS = { same: "=", changed: "≠", added: "+", removed: "−" };

/** @param {Trace} before @param {Trace} after @param {boolean} mergeSubwords */
export function outputDiff(before, after, mergeSubwords) {
  const pairs = align(units(before, mergeSubwords), units(after, mergeSubwords));
  return h(
    "div",
    { class: "output-diff" },
    h("p", { role: "status" }, summarize(pairs)),
    pairs.length > 0 ? pairList(pairs) : predictionTable(before, after),
    h(
      "dl",
      { class: "outputs" },
      h("dt", {}, "before"),
      h("dd", {}, before.output || "–", logProbability(before)),
      h("dt", {}, "after"),
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

/** @param {Pair[]} pairs */
function pairList(pairs) {
  return h(
    "ol",
    { class: "pairs" },
    h(
      "li",
      { class: "pair header", "aria-hidden": "true" },
      h("span", {}, ""),
      h("span", {}, "before"),
      h("span", {}, "after"),
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
        unitBox("before", pair.before),
        unitBox("after", pair.after),
      ),
    ),
  );
}

/** @param {"before" | "after"} column @param {Unit | null} unit */
function unitBox(column, unit) {
  if (!unit)
    return h(
      "span",
      { class: `unit ${column} none` },
      h("span", { class: "visually-hidden" }, `${column}: `),
      "nothing",
    );
  const subwords =
    unit.tokens.length > 1
      ? unit.tokens.map((token) => `${token.text.trim()} ${formatPercent(token.probability)}`).join(" · ")
      : null;
  return h(
    "span",
    { class: `unit ${column}`, title: subwords, "data-text": unit.text, "data-probability": unit.probability },
    h("span", { class: "visually-hidden" }, `${column}: `),
    h("span", { class: "unit-text" }, unit.text),
    fractionBar(unit.probability, formatPercent(unit.probability)),
  );
}

/** @param {Trace} before @param {Trace} after */
function predictionTable(before, after) {
  const probabilities = new Map(
    after.predictions.flatMap(({ item, choices }) =>
      choices.map(({ label, probability }) => [`${item} ${label}`, probability]),
    ),
  );
  const rows = before.predictions.flatMap(({ item, choices }) =>
    choices.map(({ label, probability }) => {
      const changed = probabilities.get(`${item} ${label}`);
      return h(
        "tr",
        {},
        h("td", { class: "soft" }, item),
        h("th", { scope: "row" }, label),
        h("td", {}, fractionBar(probability, formatPercent(probability))),
        h(
          "td",
          {},
          changed === undefined ? "no longer among the likeliest" : fractionBar(changed, formatPercent(changed)),
        ),
      );
    }),
  );
  const header = ["item", "label", "before", "after"].map((text) => h("th", { scope: "col" }, text));
  return h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, header)), h("tbody", {}, rows));
}
