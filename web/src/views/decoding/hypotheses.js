/**
 * The finished hypotheses, ranked as the search ranks them, and why the first of them won.
 */

import { h, setChildren } from "../../page/dom.js";
import { formatCount, formatFixed, formatNumber, formatProbability, truncate } from "../../page/format.js";
import { numberTable } from "../shared/number_table.js";
import { stateSymbol } from "./candidate_table.js";

/** @import { Hypothesis, Trace } from "../../contract.d.ts" */

/** Hypotheses that are shown at first, of those that the search kept. */
const SHOWN = 8;
/** Characters of an output that are shown in the table, and of one that is quoted. */
const [MAX_TEXT_LENGTH, MAX_QUOTE_LENGTH] = [300, 120];

export class Hypotheses {
  /** @param {(node: number) => void} select */
  constructor(select) {
    this.select = select;
    this.element = h("div", { class: "hypotheses" });
    /** @type {Trace | null} */
    this.trace = null;
    this.selected = -1;
    this.showsAll = false;
  }

  /** @param {Trace} trace @param {number} selected the selected node */
  show(trace, selected) {
    if (trace !== this.trace) this.showsAll = false;
    else if (selected === this.selected) return;
    [this.trace, this.selected] = [trace, selected];
    this.draw();
  }

  draw() {
    const { trace } = this;
    const all = trace?.hypotheses ?? [];
    if (trace === null || all.length === 0) {
      const reason = "This trace is of an earlier version, which did not keep them. Run the text again to see them.";
      return setChildren(this.element, h("p", { class: "note" }, reason));
    }
    const shown = this.showsAll ? all : all.filter(({ kept }) => kept).slice(0, SHOWN);
    const focused = this.element.contains(document.activeElement) ? this.selected : NaN;
    setChildren(
      this.element,
      h("p", { class: "verdict" }, verdict(trace, all)),
      this.table(shown, all),
      shown.length < all.length && h("button", { type: "button", onclick: () => this.showAll() }, `Show all ${all.length}`),
      formula(trace, all),
    );
    const button = this.element.querySelector(`[data-hypothesis="${focused}"] button`);
    if (button instanceof HTMLElement) button.focus();
    return undefined;
  }

  showAll() {
    this.showsAll = true;
    this.draw();
  }

  /** @param {Hypothesis[]} shown @param {Hypothesis[]} all */
  table(shown, all) {
    const hasCoverage = all.some(({ coverage }) => coverage !== undefined);
    const columns = ["rank", "output", "tokens", "probability", "log-probability", "length penalty"];
    const head = [...columns, ...(hasCoverage ? ["coverage"] : []), "score"];
    const rows = shown.map((each, index) => {
      const choose = {
        type: "button",
        class: "quiet",
        "aria-pressed": String(each.node === this.selected),
        onclick: () => this.select(each.node),
      };
      const text = each.text === "" ? "(empty)" : truncate(each.text, MAX_TEXT_LENGTH);
      return h(
        "tr",
        { class: each.kept ? null : "pruned", "data-hypothesis": each.node, "data-score": each.score },
        h("td", { class: "number" }, index === 0 ? stateSymbol("output") : null, ` ${index + 1}`),
        h(
          "th",
          { scope: "row", class: "hypothesis-text" },
          each.node < 0 ? text : h("button", { ...choose, title: text === each.text ? null : each.text }, text),
          !each.ended && h("small", {}, " cut at the maximum length"),
          !each.kept && h("small", {}, " displaced by better ones"),
        ),
        number(each.length, formatCount(each.length)),
        number(Math.exp(each.log_probability), formatProbability(Math.exp(each.log_probability))),
        number(each.log_probability, formatFixed(each.log_probability)),
        number(each.length_penalty, formatFixed(each.length_penalty, 3)),
        hasCoverage ? number(each.coverage ?? NaN, formatFixed(each.coverage, 3)) : null,
        number(each.score, formatFixed(each.score, 3)),
      );
    });
    return numberTable("Finished hypotheses, best first", head, rows);
  }

  /** The numbers of the displayed rows. */
  read() {
    return [...this.element.querySelectorAll("tr[data-hypothesis]")].map((row) => ({
      node: Number(row.getAttribute("data-hypothesis")),
      text: row.querySelector("button, th")?.textContent ?? "",
      numbers: [...row.querySelectorAll("td[data-value]")].map((cell) => Number(cell.getAttribute("data-value"))),
    }));
  }
}

/** Whether the search had several hypotheses, which it ranked. @param {Trace} trace */
export function hasBeam(trace) {
  return trace.hypotheses === undefined ? method(trace) === "beam" : trace.length_penalty !== undefined;
}

/** @param {Trace} trace */
function method({ request, model }) {
  return request.decoding?.method ?? model.decoding.method;
}

/** @param {number} value @param {string} text */
function number(value, text) {
  return h("td", { class: "number", "data-value": value }, text);
}

/** Why the first hypothesis won. @param {Trace} trace @param {Hypothesis[]} all */
function verdict(trace, [best, ...others]) {
  if (!hasBeam(trace))
    return method(trace) === "sample"
      ? "Sampling draws one token after another. It follows a single hypothesis, so there is nothing to rank."
      : "Greedy search takes the likeliest token at each step. It follows a single hypothesis, so there is nothing to rank.";
  if (others.length === 0) return "Only one hypothesis was finished, so it is the output.";
  const quote = (/** @type {Hypothesis} */ { text }) => `“${truncate(text, MAX_QUOTE_LENGTH)}”`;
  const name = quote(best);
  const likeliest = others.reduce((one, other) => (other.log_probability > one.log_probability ? other : one));
  if (best.log_probability >= likeliest.log_probability)
    return `${name} won: it is the likeliest finished hypothesis, and its score is the highest.`;
  const [own, its] = [best, likeliest].map((each) => formatProbability(Math.exp(each.log_probability)));
  const lengths = `${formatCount(best.length)} tokens rather than ${formatCount(likeliest.length)}`;
  const reason =
    best.coverage === undefined
      ? `it is longer (${lengths}), and a longer output is divided by a larger length penalty, which brings its score closer to 0`
      : `the length penalty (${lengths}) and the coverage of the source are part of its score`;
  return `${name} won although ${quote(likeliest)} is likelier (${its} against ${own}): ${reason}.`;
}

/** How the score is computed, with the numbers of the winner. @param {Trace} trace @param {Hypothesis[]} all */
function formula({ length_penalty: penalty }, [best]) {
  if (penalty === undefined) return null;
  const alpha = formatNumber(penalty.alpha);
  const divisor = {
    gnmt: `((5 + tokens) / 6)^${alpha}`,
    power: `tokens^${alpha}`,
    none: "1",
  }[penalty.kind];
  const coverage = best.coverage === undefined ? "" : " + coverage";
  const numbers =
    `${formatFixed(best.log_probability)} / ${formatFixed(best.length_penalty, 3)}` +
    (best.coverage === undefined ? "" : ` + ${formatFixed(best.coverage, 3)}`);
  return h(
    "p",
    { class: "note" },
    `Score = log-probability / length penalty${coverage}; length penalty = ${divisor}. ` +
      `For the winner: ${numbers} = ${formatFixed(best.score, 3)}. ⟨eos⟩ counts as a token.`,
  );
}
