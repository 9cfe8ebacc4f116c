/**
 * What a step chose from: the best continuations of all beams, best first, and what became of each.
 */

import { h } from "../../page/dom.js";
import { label } from "../../page/tokens.js";
import { percent } from "../../page/words.js";
import { SIGNS, fate, fateInWords } from "./beam.js";
import { fixed } from "./numbers.js";
import { scroller } from "./section.js";

/** @import { Beam } from "./beam.js" */

/** How much of a long text before a candidate is shown. */
const TAIL = 40;

/** @param {Beam} beam @param {number} step @param {number} opened @param {(id: number) => void} open */
export function candidateTable(beam, step, opened, open) {
  const heads = ["after", "token", "probability", "log-probability", "total so far", "what became of it"];
  const rows = beam.candidates(step).map((node) => {
    const kind = fate(node);
    const facts = {
      type: "button",
      class: "quiet",
      "aria-pressed": String(node.id === opened),
      onclick: () => open(node.id),
    };
    return h(
      "tr",
      { class: kind, "data-candidate": node.id },
      h("td", { class: "soft" }, tail(beam.text(node.parent) || beam.beginning)),
      h("th", { scope: "row" }, sign(kind), " ", h("button", facts, label(node.token))),
      h("td", { class: "number" }, percent(Math.exp(node.log_probability))),
      h("td", { class: "number" }, fixed(node.log_probability)),
      h("td", { class: "number" }, fixed(node.total)),
      h("td", {}, fateInWords(node)),
    );
  });
  const head = h(
    "thead",
    {},
    h(
      "tr",
      {},
      heads.map((text) => h("th", { scope: "col" }, text)),
    ),
  );
  return scroller("Candidates of this step", h("table", { class: "numbers" }, head, h("tbody", {}, rows)));
}

/** What the signs mean. */
export function legend() {
  const words = { won: "part of the answer", kept: "kept", ended: "ended", pruned: "pruned" };
  const kinds = /** @type {(keyof typeof SIGNS)[]} */ (Object.keys(SIGNS));
  return h(
    "ul",
    { class: "fates", "aria-label": "What the signs mean" },
    kinds.map((kind) => h("li", {}, sign(kind), ` ${words[kind]}`)),
  );
}

/** @param {keyof typeof SIGNS} kind */
export function sign(kind) {
  return h("span", { class: `sign ${kind}`, "aria-hidden": "true" }, SIGNS[kind]);
}

/** @param {string} text */
function tail(text) {
  return text.length > TAIL ? `…${text.slice(-TAIL)}` : text;
}
