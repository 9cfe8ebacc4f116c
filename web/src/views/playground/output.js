/**
 * A model's output: generated tokens with their probabilities and alternatives, and predicted labels.
 */

/** @import { GeneratedToken, Running, Token, Trace } from "../../contract" */

import { h } from "../../page/dom.js";
import { formatPercent } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { addTooltip } from "../../page/tooltip.js";
import { tokenPages } from "../shared/token_pages.js";
import { tokenChip } from "../shared/token_row.js";

/**
 * The target tokens; those of the prompt have no probability.
 * @param {Trace} trace
 * @returns {{ token: Token, generated: GeneratedToken | null, position: number }[]}
 */
export function outputTokens(trace) {
  const promptLength = trace.target.length - trace.generated.length;
  return trace.target.map((token, position) => ({
    token,
    position,
    generated: trace.generated[position - promptLength] ?? null,
  }));
}

/** The output, token by token. @param {Trace} trace */
export function outputRow(trace) {
  const shown = outputTokens(trace).filter(({ generated, token }) => generated !== null || !token.special);
  return tokenPages("The output, token by token", shown.length, (index) => {
    const { token, generated, position } = shown[index];
    return generated === null
      ? tokenChip({ text: tokenLabel(token), number: "prompt", attributes: { class: "prompt" } })
      : generatedChip(tokenLabel(token), generated, position);
  });
}

/**
 * The output of a run in progress.
 * @param {Running} running
 */
export function partialOutput(running) {
  const last = running.tokens.at(-1);
  return h(
    "div",
    { class: "partial-output" },
    h("p", { class: "output" }, last?.text ?? "", h("span", { class: "cursor", "aria-hidden": "true" })),
    h(
      "p",
      { class: "note" },
      last === undefined
        ? "Encoding the input …"
        : `Step ${last.step}: the newest token is “${last.token}”, ${formatPercent(last.probability)}.`,
    ),
  );
}

/**
 * The likeliest labels of each item as bars.
 * @param {Trace["predictions"]} predictions
 */
export function predictionBars(predictions) {
  return predictions.map(({ item, choices }) =>
    h(
      "section",
      { class: "bars" },
      item === "" ? null : h("h3", {}, item),
      h(
        "table",
        {},
        h("caption", { class: "visually-hidden" }, "Labels and their probabilities"),
        h(
          "tbody",
          {},
          choices.map(({ label, probability }) => probabilityBar(label, probability)),
        ),
      ),
    ),
  );
}

/**
 * @param {string} label
 * @param {number} probability
 * @param {boolean} [isChosen]
 */
function probabilityBar(label, probability, isChosen = false) {
  const bar = h("span", { class: "bar" });
  bar.style.width = `${Math.max(0.5, 100 * probability)}%`;
  return h(
    "tr",
    { class: isChosen ? "chosen" : null, "data-label": label, "data-probability": probability },
    h("th", { scope: "row" }, label),
    h("td", { class: "probability" }, formatPercent(probability)),
    h("td", { class: "track" }, bar),
  );
}

/**
 * @param {string} text
 * @param {GeneratedToken} generated
 * @param {number} position
 */
function generatedChip(text, generated, position) {
  const { probability, token } = generated;
  const number = formatPercent(probability);
  const attributes = { "data-position": position };
  const chip = tokenChip({ text, special: token.special, number, probability, attributes }, "button");
  addTooltip(chip, () => alternatives(generated));
  return chip;
}

/** @param {GeneratedToken} generated */
function alternatives(generated) {
  const chosen = generated.token.id;
  const isListed = generated.alternatives.some(({ token }) => token.id === chosen);
  const all = isListed
    ? generated.alternatives
    : [{ token: generated.token, probability: generated.probability }, ...generated.alternatives];
  return [
    h("p", { class: "note" }, "The likeliest tokens here:"),
    h(
      "table",
      { class: "bars" },
      h(
        "tbody",
        {},
        all.map(({ token, probability }) => probabilityBar(tokenLabel(token), probability, token.id === chosen)),
      ),
    ),
  ];
}
