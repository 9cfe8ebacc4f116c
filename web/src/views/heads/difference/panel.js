/**
 * What differs between the heads of two runs: the selected head as a matrix of differences, and all heads by how much
 * their attention has moved. Both models need the same layers and heads; usually they are the same model.
 */

/** @import { AttentionType, Matrix, Mounted, State, Trace, ViewContext } from "../../../contract" */
/** @import { AlignedAxis, AlignedRuns } from "./aligned.js" */

import { signedLegend } from "../../../page/colors/legend.js";
import { h, setChildren } from "../../../page/dom.js";
import { domToSvg } from "../../../page/dom_to_svg.js";
import { ATTENTION_NAMES, formatChange, formatWeight, headName } from "../../../page/format.js";
import { matrixPanel } from "../../../page/matrix_panel.js";
import { LatestRequest } from "../../shared/latest_request.js";
import { signedRange } from "../../shared/number_matrix.js";
import { showError, showLoading } from "../../shared/placeholders.js";
import { causalMask } from "../selection.js";
import { alignRuns, commonAxes, differenceOf, reasonForNoDifference } from "./aligned.js";
import { MovedHeads } from "./moved_heads.js";

/** Tokens that are listed as left out. */
const MAX_LEFT_OUT = 12;
const ALIGNMENT = "Rows are aligned by the token that is read, columns by the token that is attended to.";

/** @implements {Mounted} */
export class HeadDifference {
  /** @param {HTMLElement} element @param {ViewContext} first @param {ViewContext} second */
  constructor(element, first, second) {
    this.context = first;
    this.second = second;
    this.requests = new LatestRequest();
    this.requested = "";
    this.problem = "";
    /** @type {{ key: string, runs: AlignedRuns, matrix: Matrix, name: string, rows: string[], columns: string[] } | null} */
    this.shown = null;
    this.heads = new MovedHeads(first.source, first.store);
    this.title = h("h2", {});
    this.message = h("div");
    this.legend = h("div", { class: "legends" });
    this.leftOut = h("p", { class: "note" });
    this.matrix = matrixPanel({
      label: "Differences of attention weights. Arrow keys move from cell to cell.",
      describe: (row, column) => this.describe(row, column),
    });
    this.figure = h("div", {}, this.legend, this.matrix.element);
    const section = h(
      "section",
      { class: "panel matrix-section", "aria-label": "Difference of the selected head" },
      this.title,
      this.message,
      this.figure,
      this.leftOut,
    );
    setChildren(element, h("div", { class: "head-difference" }, section, this.heads.element));
    this.exports = {
      svg: () => domToSvg(section, this.heads.element),
      csv: () => ({ name: "attention-difference", rows: this.rows() }),
    };
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    const other = this.second.trace();
    if (trace === null || other === null) return this.showProblem("The difference will appear here once both models have run.");
    const { attention_type: type, layer } = state;
    const reason = reasonForNoDifference(trace, other, type);
    if (reason !== "") return this.showProblem(reason);
    this.problem = "";
    this.heads.element.hidden = false;
    this.heads.show(state, trace, other);
    const head = state.average_heads ? /** @type {"mean"} */ ("mean") : state.head;
    const theme = document.documentElement.dataset.theme;
    const key = JSON.stringify([trace.id, other.id, state.merge_subwords, state.show_special, type, layer, head, theme]);
    if (key === this.requested) return;
    this.requested = key;
    const name = `${ATTENTION_NAMES[type]}, ${headName(layer, head)}`;
    this.title.textContent = `${name}: second run − first run`;
    if (this.shown === null) showLoading(this.message, "Loading …");
    this.requests.start(
      Promise.all([trace, other].map(({ id }) => this.context.source.matrix(id, type, layer, head))),
      ([one, second]) => {
        const runs = alignRuns(trace, other, type, state);
        this.draw(runs, differenceOf(runs, one, second), type, name);
      },
      (message) => {
        this.shown = null;
        this.figure.hidden = true;
        showError(this.message, `The difference could not be loaded: ${message}`, () => {
          this.requested = "";
          this.update(this.context.store.get(), this.context.trace());
        });
      },
    );
  }

  destroy() {
    this.requests.cancel();
    this.heads.clear();
    this.matrix.destroy();
  }

  read() {
    if (this.problem !== "") return { problem: this.problem };
    if (this.shown?.key !== this.requested || this.heads.heads === null) return null;
    const { rows, columns } = this.shown.runs;
    return {
      head: this.shown.name,
      matrix: this.matrix.read(),
      rows: rows.pairs,
      columns: columns.pairs,
      left_out: this.leftOut.textContent,
      heads: this.heads.heads,
    };
  }

  /** @param {string} problem */
  showProblem(problem) {
    this.problem = problem;
    this.requests.cancel();
    this.heads.clear();
    this.requested = "";
    this.shown = null;
    this.title.textContent = "Difference of the attention";
    this.heads.element.hidden = this.figure.hidden = true;
    setChildren(this.message, h("p", { class: "note" }, problem));
    setChildren(this.leftOut);
  }

  /** @param {AlignedRuns} runs @param {Matrix} matrix @param {AttentionType} type @param {string} name */
  draw(runs, matrix, type, name) {
    const { rows, columns } = commonAxes(runs);
    this.shown = { key: this.requested, runs, matrix, name, rows: rows.map(({ label }) => label), columns: columns.map(({ label }) => label) };
    const isEmpty = matrix.values.length === 0;
    setChildren(this.message, isEmpty && h("p", { class: "note" }, "These runs have no token in common, so there is no difference to show."));
    this.leftOut.textContent = describeLeftOut(runs, type);
    this.figure.hidden = isEmpty;
    if (isEmpty) return;
    const { limit, lowest, highest } = signedRange([...matrix.values]);
    const ends = /** @type {[string, string]} */ ([`${formatChange(-limit)} less attention`, `${formatChange(limit)} more in the second run`]);
    setChildren(this.legend, signedLegend(-limit, limit, limit, ends));
    const isMasked = causalMask(type, rows, columns);
    const hint = lowest === 0 && highest === 0 ? "Both runs have the same weights here." : ALIGNMENT;
    this.matrix.show({ matrix, rows, columns, scale: "signed", limit, isMasked, pinnedRow: -1, pinnedColumn: -1 }, hint);
  }

  /** @param {number} row @param {number} column */
  describe(row, column) {
    if (this.shown === null) return "";
    const { matrix, rows, columns } = this.shown;
    const value = matrix.values[row * matrix.columns + column];
    const sign = value > 0 ? "+" : value < 0 ? "−" : "";
    return `“${rows[row]}” attends to “${columns[column]}”: ${sign}${value === 0 ? "0" : formatWeight(Math.abs(value))}`;
  }

  /** @returns {(string | number)[][]} */
  rows() {
    const header = ["attention", "query", "key", "second − first"];
    if (this.shown === null) return [header];
    const { matrix, name, rows, columns } = this.shown;
    const cells = rows.flatMap((query, row) =>
      columns.map((key, column) => [name, query, key, Number(matrix.values[row * matrix.columns + column].toPrecision(6))]),
    );
    return [header, ...cells];
  }
}

/** The tokens that only one of the runs has. @param {AlignedRuns} runs @param {AttentionType} type */
function describeLeftOut({ rows, columns }, type) {
  const text = describeTokens("Left out, because only one run has them:", columns);
  return type === "encoder" ? text : `${text} ${describeTokens("Left out are the rows that read", rows)}`.trim();
}

/** @param {string} title @param {AlignedAxis} axis */
function describeTokens(title, { onlyFirst, onlySecond }) {
  const list = (/** @type {string[]} */ labels) =>
    labels.slice(0, MAX_LEFT_OUT).map((label) => `“${label}”`).join(", ") + (labels.length > MAX_LEFT_OUT ? " …" : "");
  const parts = [onlyFirst.length > 0 && `${list(onlyFirst)} (first run)`, onlySecond.length > 0 && `${list(onlySecond)} (second run)`];
  const texts = parts.filter((part) => part !== false);
  return texts.length === 0 ? "" : `${title} ${texts.join(", ")}.`;
}
