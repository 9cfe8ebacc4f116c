/**
 * One step told from left to right: what it saw, the decoder's vector, the logits, the probabilities, the word.
 */

import { h } from "../../page/dom.js";
import { label } from "../../page/tokens.js";
import { percent } from "../../page/words.js";
import { fixed } from "./numbers.js";
import { inWords, shareBar, vectorBars } from "./vector.js";

/** @import { BeamNode, NodeAttention, Token } from "../../contract.d.ts" */

/** How many candidates a picture has room for. */
const SHOWN = 8;

/**
 * Tokens in a row, each shaded by how much it was looked at.
 * @param {Token[]} tokens @param {number[] | null} weights @param {string} name
 */
export function tokenRow(tokens, weights, name) {
  const most = Math.max(1e-9, ...(weights ?? []));
  return h(
    "ol",
    { class: "token-row", "aria-label": name },
    tokens.map((token, index) => {
      const weight = weights?.[index];
      const chip = h("li", { class: token.special ? "chip special" : "chip" }, label(token));
      if (weight !== undefined) {
        chip.style.setProperty("--shade", `${((70 * weight) / most).toFixed(1)}%`);
        chip.title = `looked at with ${fixed(weight, 3)}`;
        chip.append(h("span", { class: "chip-number" }, fixed(weight)));
      }
      return chip;
    }),
  );
}

/**
 * The mean over heads of the last layer.
 * @param {number[][][]} attention [layer][head][key]
 * @returns {number[] | null}
 */
export function meanOfHeads(attention) {
  const heads = attention[attention.length - 1];
  if (!heads || heads.length === 0) return null;
  return heads[0].map((_, key) => heads.reduce((sum, head) => sum + head[key], 0) / heads.length);
}

/**
 * Decoder vector → logits → probabilities → word.
 * @param {NodeAttention} before what stood behind the step @param {BeamNode | undefined} chosen the token that was taken
 */
export function wayOfAStep(before, chosen) {
  const best = before.next.slice(0, SHOWN);
  const low = Math.min(0, ...best.map((one) => one.logit));
  const high = Math.max(...best.map((one) => one.logit), low + 1e-9);
  const first = before.next[0];
  const whole = first ? first.logit - Math.log(first.probability) : NaN;
  const word = chosen ? label(chosen.token) : "–";
  /** @param {Token} token */
  const mark = (token) => (chosen && token.id === chosen.token.id ? "taken" : "");
  return h(
    "ol",
    { class: "way", "aria-label": "From the decoder's vector to the word" },
    station(
      "Decoder vector",
      vectorBars(before.vector, { label: "Decoder vector", width: 230, height: 72 }),
      h("p", {}, `${inWords(before.vector)}. They are the last layer's summary of all that was seen.`),
    ),
    station(
      "Logits",
      candidates(
        best.map((one) => ({
          token: one.token,
          share: (one.logit - low) / (high - low),
          text: fixed(one.logit),
          kind: mark(one.token),
        })),
      ),
      h(
        "p",
        {},
        "The vector is compared with the vector of every token. A logit says how well they match; the best " +
          `${best.length} are shown.`,
      ),
    ),
    station(
      "Probabilities",
      candidates(
        best.map((one) => ({
          token: one.token,
          share: one.probability,
          text: percent(one.probability),
          kind: mark(one.token),
        })),
      ),
      first
        ? h(
            "p",
            {},
            `Softmax: e^${fixed(first.logit)} / e^${fixed(whole)} = ${fixed(first.probability, 3)}. Over all ` +
              "tokens they add up to 1.",
          )
        : null,
    ),
    station(
      "Word",
      h("p", { class: "written-word" }, word),
      h("p", {}, chosen ? wordInWords(chosen, before) : "This step wrote nothing."),
    ),
  );
}

/** @param {BeamNode} chosen @param {NodeAttention} before */
function wordInWords(chosen, before) {
  const probability = percent(Math.exp(chosen.log_probability));
  const rank = before.next.findIndex((one) => one.token.id === chosen.token.id);
  const place =
    rank === 0 ? "the likeliest" : rank > 0 ? `number ${rank + 1} by probability` : "not among the likeliest";
  return `${place}, with ${probability}. The log-probability of all so far: ${fixed(chosen.total)}.`;
}

/**
 * One place on the way; after all but the last an arrow leads on.
 * @param {string} title
 * @param {(Node | null)[]} children
 */
function station(title, ...children) {
  const arrow = title === "Word" ? null : h("span", { class: "arrow", "aria-hidden": "true" }, "→");
  return h("li", { class: "station panel" }, h("h3", {}, title), children, arrow);
}

/** @param {{ token: Token, share: number, text: string, kind: string }[]} rows */
function candidates(rows) {
  return h(
    "table",
    { class: "candidates" },
    h(
      "tbody",
      {},
      rows.map(({ token, share, text, kind }) =>
        h("tr", { class: kind }, h("th", { scope: "row" }, label(token)), h("td", {}, shareBar(share, text))),
      ),
    ),
  );
}
