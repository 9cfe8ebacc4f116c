/**
 * The residual stream of the current text by layer and token: its norm, and its cosine to the vector before the layer.
 */

/** @import { ResidualStream, Source, Trace } from "../../contract" */

import { signedLegend } from "../../page/colors/legend.js";
import { h, setChildren } from "../../page/dom.js";
import { formatNumber } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { LatestRequest } from "../shared/latest_request.js";
import { NumberMatrices, signedRange } from "../shared/number_matrix.js";
import { showError, showLoading } from "../shared/placeholders.js";
import { section } from "../shared/section.js";

/** The height of the cells of a matrix, at most. */
const MATRIX_HEIGHT = 360;

export class ResidualMatrices {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    this.requests = new LatestRequest();
    this.matrices = new NumberMatrices();
    this.figures = h("div", { class: "residual-matrices" });
    this.element = section(
      "The residual stream",
      "What the layers do to the vector of each token of the text that the model reads. The norm is its length. The cosine " +
        "compares it with the vector before the layer: near 1 the layer changes little, lower it turns the vector. The last " +
        "layer includes the final norm, if the model has one. The view “Why” has the same of the steps of a decoder.",
      this.figures,
    );
    /** @type {ResidualStream | null} */
    this.shown = null;
    this.settled = false;
    this.key = "";
    this.theme = "";
  }

  /** @param {Trace} trace */
  update(trace) {
    const theme = document.documentElement.dataset.theme ?? "";
    if (trace.id !== this.key) this.load(trace);
    else if (theme !== this.theme && this.shown !== null) this.draw(this.shown);
    this.theme = theme;
  }

  /** @param {Trace} trace */
  load(trace) {
    this.key = trace.id;
    this.settled = false;
    this.shown = null;
    showLoading(this.figures, "Reading the text …");
    this.requests.start(
      this.source.residualStream(trace.id),
      (stream) => {
        this.shown = stream;
        this.settled = true;
        this.draw(stream);
      },
      (message) => {
        this.settled = true;
        showError(this.figures, message);
      },
    );
  }

  /** @param {ResidualStream} stream */
  draw({ tokens, norms, cosines }) {
    this.matrices.destroy();
    const columnName = (/** @type {number} */ index) => tokenLabel(tokens[index]);
    const turned = cosines.map((row, index) => ({ row, layer: index + 1 })).filter(({ row }) => row.length > 0);
    setChildren(
      this.figures,
      normFigure(this.matrices, norms, columnName),
      turned.length > 0 &&
        cosineFigure(
          this.matrices,
          turned.map(({ row }) => row),
          (row) => `layer ${turned[row].layer}`,
          columnName,
        ),
    );
  }
}

/**
 * Norms on a logarithmic scale: those of the end of a text may be a hundred times as large as the others.
 * @param {NumberMatrices} matrices
 * @param {number[][]} norms
 * @param {(column: number) => string} columnName
 */
function normFigure(matrices, norms, columnName) {
  const { lowest, highest } = signedRange(norms.flat());
  const level = (/** @type {number} */ norm) => Math.log10(Math.max(norm, 1e-9) / Math.max(lowest, 1e-9));
  const limit = level(highest) || 1;
  return h(
    "figure",
    {},
    h("figcaption", {}, h("b", {}, "Norm")),
    matrices.add(
      norms.map((row) => row.map(level)),
      {
        label: `The norm of each token’s vector, from ${formatNumber(lowest)} to ${formatNumber(highest)}.`,
        rowName: (row) => (row === 0 ? "input" : `layer ${row}`),
        columnName,
        describe: (row, column) => formatNumber(norms[row][column], 4),
        limit,
        maxHeight: MATRIX_HEIGHT,
      },
    ),
    signedLegend(0, limit, limit, [formatNumber(lowest), `${formatNumber(highest)} (logarithmic)`]),
  );
}

/**
 * Cosines: a strong color where a layer turns the vector, so 1 − cosine.
 * @param {NumberMatrices} matrices
 * @param {number[][]} cosines
 * @param {(row: number) => string} rowName
 * @param {(column: number) => string} columnName
 */
function cosineFigure(matrices, cosines, rowName, columnName) {
  const { lowest, highest } = signedRange(cosines.flat());
  const limit = 1 - lowest || 1;
  return h(
    "figure",
    {},
    h("figcaption", {}, h("b", {}, "Cosine to the vector before the layer")),
    matrices.add(
      cosines.map((row) => row.map((cosine) => 1 - cosine)),
      {
        label: `The cosine of each token’s vector to that before the layer, from ${formatNumber(lowest)} to ${formatNumber(highest)}.`,
        rowName,
        columnName,
        describe: (row, column) => formatNumber(cosines[row][column], 4),
        limit,
        maxHeight: MATRIX_HEIGHT,
      },
    ),
    signedLegend(0, limit, limit, ["1", `${formatNumber(lowest)}: turned most`]),
  );
}
