/**
 * The candidates of a step: the best continuations of all beams, best first, and what became of each.
 */

import { h, setChildren } from "../../page/dom.js";
import { formatFixed, formatProbability } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { numberTable } from "../shared/number_table.js";
import { STATE_SYMBOLS, displayState } from "./search_tree.js";

/** @import { BeamNode } from "../../contract.d.ts" */
/** @import { SearchTree } from "./search_tree.js" */

/** The last characters of a long prefix that are shown. */
const MAX_PREFIX_LENGTH = 24;
/** More candidates are shown on request; the selected one always is. */
const MAX_CANDIDATES = 20;
const COLUMNS = ["prefix", "token", "probability", "log-prob.", "hypothesis", "log-prob.", "state"];

/** @param {SearchTree} tree @param {number} step @param {number} selected @param {(id: number) => void} select */
export function candidateTable(tree, step, selected, select) {
  const all = tree.candidates(step);
  const first = all.filter((node, index) => index < MAX_CANDIDATES || node.id === selected);
  const element = h("div");
  /** @param {BeamNode[]} shown */
  const show = (shown) => {
    const rest = all.length - shown.length;
    const more = h("button", { type: "button", onclick: () => show(all) }, `Show ${rest} more candidates`);
    setChildren(element, numberTable("Candidates of this step", COLUMNS, shown.map(row)), rest > 0 ? more : null);
  };
  /** @param {BeamNode} node */
  const row = (node) => {
    const state = displayState(node);
    const attributes = {
      type: "button",
      class: "quiet",
      "aria-pressed": String(node.id === selected),
      onclick: () => select(node.id),
    };
    return h(
      "tr",
      { class: state, "data-candidate": node.id },
      h("td", { class: "soft" }, lastCharacters(tree.text(node.parent) || tree.rootLabel)),
      h("th", { scope: "row" }, stateSymbol(state), " ", h("button", attributes, tokenLabel(node.token))),
      ...probabilityCells(node.log_probability),
      ...probabilityCells(node.total_log_probability),
      h("td", {}, tree.describe(node)),
    );
  };
  show(first);
  return element;
}

/** A probability and its logarithm. @param {number} logProbability */
function probabilityCells(logProbability) {
  const probability = Math.exp(logProbability);
  return [
    h("td", { class: "number", "data-probability": probability }, formatProbability(probability)),
    h("td", { class: "number" }, formatFixed(logProbability)),
  ];
}

/** What the symbols mean. */
export function nodeStateLegend() {
  const names = { output: "part of the output", active: "active", finished: "finished", pruned: "pruned" };
  const states = /** @type {(keyof typeof STATE_SYMBOLS)[]} */ (Object.keys(STATE_SYMBOLS));
  return h(
    "ul",
    { class: "node-states", "aria-label": "Node states" },
    states.map((state) => h("li", {}, stateSymbol(state), ` ${names[state]}`)),
  );
}

/** @param {keyof typeof STATE_SYMBOLS} state */
export function stateSymbol(state) {
  return h("span", { class: `symbol ${state}`, "aria-hidden": "true" }, STATE_SYMBOLS[state]);
}

/** The end of a long text. @param {string} text @param {number} [count] */
export function lastCharacters(text, count = MAX_PREFIX_LENGTH) {
  return text.length > count ? `…${text.slice(-count)}` : text;
}
