/**
 * What a model answered: its tokens, each with its probability and what else it could have been; labels; a tree.
 */

/** @import { Running, Token, Trace, Written } from "../../contract" */

import { h } from "../../page/dom.js";
import { label } from "../../page/tokens.js";
import { tip } from "../../page/tooltip.js";
import { percent } from "../../page/words.js";

/**
 * The tokens of an answer, those that were given (a prompt) first.
 * @param {Trace} trace
 * @returns {{ token: Token, written: Written | null, position: number }[]}
 */
export function answered(trace) {
  const given = trace.target.length - trace.written.length;
  return trace.target.map((token, position) => ({ token, position, written: trace.written[position - given] ?? null }));
}

/** @param {Trace} trace */
export function tokenRow(trace) {
  const shown = answered(trace).filter(({ written, token }) => written !== null || !token.special);
  const row = h("div", { class: "tokens", role: "group", "aria-label": "The answer, token by token" });
  shown.forEach(({ token, written, position }) => {
    row.append(written === null ? givenChip(token) : chip(label(token), written, position));
  });
  row.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const chips = /** @type {HTMLElement[]} */ ([...row.querySelectorAll("button")]);
    const next = chips[chips.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + step];
    if (next === undefined) return;
    event.preventDefault();
    for (const each of chips) each.tabIndex = each === next ? 0 : -1;
    next.focus();
  });
  row.querySelectorAll("button").forEach((each, number) => (each.tabIndex = number === 0 ? 0 : -1));
  return row;
}

/**
 * What has been written while the model is still at work.
 * @param {Running} running
 */
export function soFar(running) {
  const last = running.tokens.at(-1);
  return h(
    "div",
    { class: "so-far" },
    h("p", { class: "output" }, last?.text ?? "", h("span", { class: "cursor", "aria-hidden": "true" })),
    h(
      "p",
      { class: "note" },
      last === undefined
        ? "Reading …"
        : `Step ${last.step}: the newest token is “${last.token}”, ${percent(last.probability)}.`,
    ),
  );
}

/**
 * Labels with their probabilities as bars, for each thing that was labelled.
 * @param {Trace["labels"]} labels
 */
export function labelBars(labels) {
  return labels.map(({ of, choices }) =>
    h(
      "section",
      { class: "bars" },
      of === "" ? null : h("h3", {}, of),
      h(
        "table",
        {},
        h("caption", { class: "visually-hidden" }, "Labels and their probabilities"),
        h(
          "tbody",
          {},
          choices.map(({ label: name, probability }) => bar(name, probability)),
        ),
      ),
    ),
  );
}

/**
 * @param {string} name
 * @param {number} probability
 * @param {boolean} [taken]
 */
function bar(name, probability, taken = false) {
  const length = h("span", { class: "bar" });
  length.style.width = `${Math.max(0.5, 100 * probability)}%`;
  return h(
    "tr",
    { class: taken ? "taken" : null, "data-label": name, "data-probability": probability },
    h("th", { scope: "row" }, name),
    h("td", { class: "sure" }, percent(probability)),
    h("td", { class: "track" }, length),
  );
}

/** @param {Token} token */
function givenChip(token) {
  return h(
    "span",
    { class: "token given" },
    h("span", { class: "letters" }, label(token)),
    h("span", { class: "sure" }, "given"),
  );
}

/**
 * @param {string} letters
 * @param {Written} written
 * @param {number} position
 */
function chip(letters, written, position) {
  const share = written.probability;
  const element = h(
    "button",
    {
      type: "button",
      class: written.token.special ? "token special" : "token",
      "data-position": position,
      "data-probability": share,
    },
    h("span", { class: "letters" }, letters),
    " ",
    h("span", { class: "sure" }, percent(share)),
  );
  element.style.setProperty("--share", share.toFixed(4));
  tip(element, () => alternatives(written));
  return element;
}

/** @param {Written} written */
function alternatives(written) {
  const chosen = written.token.id;
  const known = written.alternatives.some(({ token }) => token.id === chosen);
  const all = known
    ? written.alternatives
    : [{ token: written.token, probability: written.probability }, ...written.alternatives];
  return [
    h("p", { class: "note" }, "What the model found likely here:"),
    h(
      "table",
      { class: "bars" },
      h(
        "tbody",
        {},
        all.map(({ token, probability }) => bar(label(token), probability, token.id === chosen)),
      ),
    ),
  ];
}
