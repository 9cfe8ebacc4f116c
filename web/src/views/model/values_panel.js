/**
 * The values of what leaves a box: the norm of each token's vector as bars, and a matrix of tokens and dimensions, of which
 * the reader turns the pages. The running model computes them.
 */

/** @import { ModuleValues, Source, Trace } from "../../contract" */

import { signedLegend } from "../../page/colors/legend.js";
import { h, setChildren } from "../../page/dom.js";
import { formatCount, formatNumber } from "../../page/format.js";
import { firstGenerated, stepLabel, tokenLabel } from "../../page/tokens.js";
import { fractionBar } from "../shared/bars.js";
import { LatestRequest } from "../shared/latest_request.js";
import { NumberMatrices } from "../shared/number_matrix.js";
import { showError, showLoading } from "../shared/placeholders.js";

/** Dimensions on a page, as the server sends them. */
const DIMENSIONS = 16;
/** The height of all cells, at most. */
const MATRIX_HEIGHT = 420;

export class ValuesPanel {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    this.requests = new LatestRequest();
    this.matrices = new NumberMatrices();
    this.element = h("div", { class: "module-values" });
    /** @type {ModuleValues | null} */
    this.shown = null;
    this.settled = true;
    this.key = "";
    /** @type {Trace | null} */
    this.trace = null;
  }

  /** @param {Trace | null} trace @param {string} path @param {boolean} hasValues whether anything leaves the box */
  show(trace, path, hasValues) {
    const key = JSON.stringify([trace?.id, path, hasValues, document.documentElement.dataset.theme]);
    if (key === this.key) return;
    this.key = key;
    this.trace = trace;
    this.clear();
    if (trace === null || !hasValues) return;
    if (this.source.live) return this.load(path, 0);
    showError(this.element, `The values need the running model: regard look ${trace.model.name}`);
  }

  clear() {
    this.requests.cancel();
    this.matrices.destroy();
    this.shown = null;
    this.settled = true;
    setChildren(this.element);
  }

  /** @param {string} path @param {number} first */
  load(path, first) {
    const { trace } = this;
    if (trace === null) return;
    this.settled = false;
    if (this.shown === null) showLoading(this.element, "Reading the values …");
    this.requests.start(
      this.source.moduleValues(trace.id, path, first),
      (values) => {
        this.settled = true;
        this.draw(values, trace);
      },
      (message) => {
        this.settled = true;
        this.shown = null;
        this.matrices.destroy();
        showError(this.element, message, () => this.load(path, first));
      },
    );
  }

  /** @param {ModuleValues} values @param {Trace} trace */
  draw(values, trace) {
    const focused = this.element.contains(document.activeElement) ? (document.activeElement?.className ?? "") : null;
    this.matrices.destroy();
    this.shown = values;
    const rowName = rowNames(values, trace);
    const last = values.first + values.values[0].length;
    const hidden = values.rows - values.norms.length;
    const { limit } = values;
    setChildren(
      this.element,
      h(
        "figure",
        {},
        h("figcaption", {}, h("b", {}, "Values"), ` of dimensions ${values.first + 1}–${last} of ${formatCount(values.width)}`),
        this.pages(values),
        this.matrices.add(values.values, {
          label: `The values of dimensions ${values.first + 1} to ${last} that leave the box.`,
          rowName,
          columnName: (column) => String(values.first + column + 1),
          describe: (row, column) => formatNumber(values.values[row][column], 4),
          limit,
          maxHeight: MATRIX_HEIGHT,
        }),
        signedLegend(-limit, limit, limit),
      ),
      h(
        "figure",
        {},
        h("figcaption", {}, h("b", {}, "Norm"), " of each vector"),
        normTable(values.norms, rowName),
      ),
      hidden > 0 && h("p", { class: "note" }, `The first ${values.norms.length} of ${formatCount(values.rows)} rows.`),
    );
    if (focused !== null) this.focusPages(focused);
  }

  /** Buttons to the next dimensions. @param {ModuleValues} values */
  pages({ path, first, width }) {
    const button = (/** @type {string} */ name, /** @type {string} */ sign, /** @type {number} */ to) =>
      h(
        "button",
        {
          type: "button",
          class: name.toLowerCase(),
          disabled: to < 0 || to >= width,
          "aria-label": `${name} dimensions`,
          onclick: () => this.load(path, to),
        },
        sign,
      );
    const go = h("input", { type: "number", min: 1, max: width, value: first + 1, "aria-label": "First dimension" });
    go.addEventListener("change", () => {
      const dimension = Math.round(Number(go.value));
      if (dimension >= 1 && dimension <= width) this.load(path, dimension - 1);
      else go.value = String(first + 1);
    });
    const before = first > 0 ? Math.max(0, first - DIMENSIONS) : -1;
    return h(
      "div",
      { class: "pages", "data-no-export": true },
      button("Previous", "‹", before),
      go,
      button("Next", "›", first + DIMENSIONS),
    );
  }

  /** Focus the same control again after the page was turned, or another if there are no more pages. @param {string} name */
  focusPages(name) {
    const controls = [...this.element.querySelectorAll(".pages button:not(:disabled), .pages input")];
    const control = controls.find((each) => each.className === name) ?? controls[0];
    if (control instanceof HTMLElement) control.focus();
  }

  destroy() {
    this.clear();
    this.key = "";
  }
}

/**
 * The names of rows: tokens, or steps of a decoder.
 * @param {ModuleValues} values
 * @param {Trace} trace
 * @returns {(row: number) => string}
 */
function rowNames({ tokens, side, rows }, trace) {
  if (tokens.length === 0) return (row) => (rows === 1 ? "output" : String(row + 1));
  if (side === "source") return (row) => tokenLabel(tokens[row]);
  return (row) =>
    row + 1 < firstGenerated(trace)
      ? tokenLabel(tokens[row])
      : stepLabel(tokens[row], trace.target[row + 1] ?? null);
}

/** @param {number[]} norms @param {(row: number) => string} rowName */
function normTable(norms, rowName) {
  const limit = Math.max(...norms, 1e-12);
  const rows = norms.map((norm, row) =>
    h("tr", {}, h("th", { scope: "row" }, rowName(row)), h("td", {}, fractionBar(norm / limit, formatNumber(norm)))),
  );
  const head = h("tr", {}, ["row", "norm"].map((name) => h("th", { scope: "col" }, name)));
  return h(
    "table",
    { class: "norm-bars" },
    h("thead", { class: "visually-hidden" }, head),
    h("tbody", {}, rows),
  );
}
