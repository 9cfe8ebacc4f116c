/**
 * Two outputs beside each other: what stayed, changed, came and went, with the probability of each before and after.
 */

import { h } from "../../page/dom.js";
import { percent } from "../../page/words.js";
import { align, units } from "./align.js";
import { fixed } from "./numbers.js";
import { shareBar } from "./vector.js";

/** @import { Trace } from "../../contract.d.ts" */
/** @import { Pair, Unit } from "./align.js" */

const SIGNS = { same: "=", changed: "≠", added: "+", gone: "−" };

/** @param {Trace} before @param {Trace} after @param {boolean} merged */
export function outputDiff(before, after, merged) {
  const pairs = align(units(before, merged), units(after, merged));
  return h(
    "div",
    { class: "output-diff" },
    h("p", { class: "verdict", role: "status" }, verdict(pairs)),
    pairs.length > 0 ? pairList(pairs) : labelTable(before, after),
    h(
      "dl",
      { class: "outputs" },
      h("dt", {}, "before"),
      h("dd", {}, before.output || "–", total(before)),
      h("dt", {}, "after"),
      h("dd", {}, after.output || "–", total(after)),
    ),
  );
}

/**
 * The same as rows of a table.
 * @param {Trace} before
 * @param {Trace} after
 * @param {boolean} merged
 * @returns {(string | number)[][]}
 */
export function diffRows(before, after, merged) {
  return align(units(before, merged), units(after, merged)).map((pair) => [
    "output",
    pair.what,
    pair.before?.text ?? "",
    pair.before?.probability ?? "",
    pair.after?.text ?? "",
    pair.after?.probability ?? "",
  ]);
}

/** @param {Trace} trace */
function total(trace) {
  return trace.written.length > 0 ? h("small", {}, ` log-probability ${fixed(trace.total)}`) : null;
}

/** @param {Pair[]} pairs */
function verdict(pairs) {
  if (pairs.length === 0) return "What this model gives are labels; here are their probabilities.";
  const count = (/** @type {Pair["what"]} */ what) => pairs.filter((pair) => pair.what === what).length;
  const told = /** @type {Pair["what"][]} */ (["changed", "added", "gone"]).filter((what) => count(what) > 0);
  if (told.length === 0) return "The output stayed the same, word for word. Its probabilities may have moved.";
  return `${count("same")} stayed the same, ${told.map((what) => `${count(what)} ${what}`).join(", ")}.`;
}

/** @param {Pair[]} pairs */
function pairList(pairs) {
  return h(
    "ol",
    { class: "pairs" },
    h(
      "li",
      { class: "pair names", "aria-hidden": "true" },
      h("span", {}, ""),
      h("span", {}, "before"),
      h("span", {}, "after"),
    ),
    pairs.map((pair) =>
      h(
        "li",
        { class: `pair ${pair.what}`, "data-what": pair.what },
        h("span", { class: "what" }, h("span", { "aria-hidden": "true" }, `${SIGNS[pair.what]} `), pair.what),
        unit("before", pair.before),
        unit("after", pair.after),
      ),
    ),
  );
}

/** @param {"before" | "after"} when @param {Unit | null} one */
function unit(when, one) {
  if (!one)
    return h("span", { class: `unit ${when} none` }, h("span", { class: "visually-hidden" }, `${when}: `), "nothing");
  const parts =
    one.tokens.length > 1
      ? one.tokens.map((token) => `${token.text.trim()} ${percent(token.probability)}`).join(" · ")
      : "";
  return h(
    "span",
    { class: `unit ${when}`, title: parts || null, "data-text": one.text, "data-probability": one.probability },
    h("span", { class: "visually-hidden" }, `${when}: `),
    h("span", { class: "unit-text" }, one.text),
    shareBar(one.probability, percent(one.probability)),
  );
}

/** @param {Trace} before @param {Trace} after */
function labelTable(before, after) {
  const now = new Map(
    after.labels.flatMap(({ of, choices }) => choices.map(({ label, probability }) => [`${of} ${label}`, probability])),
  );
  const rows = before.labels.flatMap(({ of, choices }) =>
    choices.map(({ label, probability }) => {
      const later = now.get(`${of} ${label}`);
      return h(
        "tr",
        {},
        h("td", { class: "soft" }, of),
        h("th", { scope: "row" }, label),
        h("td", {}, shareBar(probability, percent(probability))),
        h("td", {}, later === undefined ? "no longer among the first" : shareBar(later, percent(later))),
      );
    }),
  );
  const heads = ["of", "label", "before", "after"].map((text) => h("th", { scope: "col" }, text));
  return h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
}
