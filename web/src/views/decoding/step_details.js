/**
 * The details of a step: tokens colored by attention, and the stages hidden state → logits → probabilities → token.
 */

import { h } from "../../page/dom.js";
import { formatFixed, formatPercent } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { describeVector, fractionBar, vectorBars } from "../shared/bars.js";
import { tokenPages } from "../shared/token_pages.js";
import { tokenChip } from "../shared/token_row.js";

/** @import { BeamNode, NodeAttention, Token } from "../../contract.d.ts" */

const MAX_CANDIDATES = 8;

/**
 * Tokens in a row, colored by their attention weights. Of a long row, the tokens around the largest weight come first.
 * @param {Token[]} tokens @param {number[] | null} weights @param {number} limit @param {string} label
 */
export function attentionRow(tokens, weights, limit, label) {
  const chip = (/** @type {number} */ index) => {
    const [token, value] = [tokens[index], weights?.[index]];
    const shown = value === undefined ? {} : { number: formatFixed(value), weight: { value, limit } };
    const attributes = value === undefined ? {} : { title: `attention weight ${formatFixed(value, 3)}` };
    return tokenChip({ text: tokenLabel(token), special: token.special, ...shown, attributes });
  };
  if (weights === null) return tokenPages(label, tokens.length, chip, { at: tokens.length - 1 });
  const describe = (/** @type {number} */ first, /** @type {number} */ last) => {
    const sum = weights.slice(first, last).reduce((total, weight) => total + weight, 0);
    return `together they get ${formatFixed(sum, 3)} of the attention`;
  };
  const at = weights.reduce((best, weight, index) => (weight > weights[best] ? index : best), 0);
  return tokenPages(label, tokens.length, chip, { at, describe });
}

/**
 * The attention of the last layer, averaged over its heads.
 * @param {number[][][]} attention [layer][head][key]
 * @returns {number[] | null}
 */
export function averageHeads(attention) {
  const heads = attention[attention.length - 1];
  if (!heads || heads.length === 0) return null;
  return heads[0].map((_, key) => heads.reduce((sum, head) => sum + head[key], 0) / heads.length);
}

/**
 * Hidden state → logits → probabilities → token.
 * @param {NodeAttention} parent the state before the step @param {BeamNode | undefined} chosen the step's token
 */
export function nextTokenStages(parent, chosen) {
  const best = parent.next_tokens.slice(0, MAX_CANDIDATES);
  const lowest = Math.min(0, ...best.map(({ logit }) => logit));
  const highest = Math.max(...best.map(({ logit }) => logit), lowest + 1e-9);
  const first = parent.next_tokens[0];
  const logSumExp = first ? first.logit - Math.log(first.probability) : NaN;
  /** @param {Token} token */
  const rowClass = (token) => (chosen && token.id === chosen.token.id ? "chosen" : "");
  return h(
    "ol",
    { class: "stages", "aria-label": "From the hidden state to the token" },
    parent.hidden_size === 0
      ? stage("Hidden state", h("p", {}, "This model has none: its logits are not the product of a vector with embeddings."))
      : stage(
          "Hidden state",
          vectorBars(parent.hidden_state, { label: "Hidden state", width: 230, height: 72 }),
          h("p", {}, `${describeVector(parent.hidden_state)}, from the decoder's last layer.`),
        ),
    stage(
      "Logits",
      candidateBars(
        best.map(({ token, logit }) => ({
          token,
          fraction: (logit - lowest) / (highest - lowest),
          text: formatFixed(logit),
          rowClass: rowClass(token),
        })),
      ),
      h(
        "p",
        {},
        parent.hidden_size === 0
          ? `The best ${best.length} are shown.`
          : `The dot product of the hidden state with each token's output embedding; the best ${best.length} are shown.`,
      ),
    ),
    stage(
      "Probabilities",
      candidateBars(
        best.map(({ token, probability }) => ({
          token,
          fraction: probability,
          text: formatPercent(probability),
          rowClass: rowClass(token),
        })),
      ),
      first
        ? h(
            "p",
            {},
            `Softmax: e^${formatFixed(first.logit)} / e^${formatFixed(logSumExp)} = ` +
              `${formatFixed(first.probability, 3)}. The probabilities of all tokens add up to 1.`,
          )
        : null,
    ),
    stage(
      "Token",
      h("p", { class: "generated-token" }, chosen ? tokenLabel(chosen.token) : "–"),
      h("p", {}, chosen ? describeChoice(chosen, parent) : "This step generated no token."),
    ),
  );
}

/** @param {BeamNode} chosen @param {NodeAttention} parent */
function describeChoice(chosen, parent) {
  const probability = formatPercent(Math.exp(chosen.log_probability));
  const rank = parent.next_tokens.findIndex(({ token }) => token.id === chosen.token.id);
  const position =
    rank === 0 ? "The likeliest token" : rank > 0 ? `Rank ${rank + 1} by probability` : "Not among the likeliest tokens";
  return `${position}, with ${probability}. Total log-probability so far: ${formatFixed(chosen.total_log_probability)}.`;
}

/**
 * One stage; an arrow leads to the next.
 * @param {string} title
 * @param {(Node | null)[]} children
 */
function stage(title, ...children) {
  const arrow = title === "Token" ? null : h("span", { class: "arrow", "aria-hidden": "true" }, "→");
  return h("li", { class: "stage panel" }, h("h3", {}, title), children, arrow);
}

/** @param {{ token: Token, fraction: number, text: string, rowClass: string }[]} rows */
function candidateBars(rows) {
  return h(
    "table",
    { class: "candidates" },
    h(
      "tbody",
      {},
      rows.map(({ token, fraction, text, rowClass }) =>
        h("tr", { class: rowClass }, h("th", { scope: "row" }, tokenLabel(token)), h("td", {}, fractionBar(fraction, text))),
      ),
    ),
  );
}
