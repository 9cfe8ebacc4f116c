/**
 * Positional encodings: the encodings of each scheme, the similarity of positions, and what is required of an encoding.
 */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { capitalize, formatNumber } from "../page/format.js";
import { signedLegend } from "../page/colors/legend.js";
import { matrixPanel } from "../page/matrix_panel.js";
import { EXAMPLE_SIZES, exampleNumbers, sentenceExample } from "./positions/sentence_example.js";
import { LatestRequest } from "./shared/latest_request.js";
import { signedRange, toLabels, toMatrix } from "./shared/number_matrix.js";
import { showError, showLoading } from "./shared/placeholders.js";
import { scrollable, section } from "./shared/section.js";
import { slider } from "./shared/slider.js";

/** @import { Mounted, Positions, State, View, ViewContext } from "../contract.d.ts" */
/** @import { Scheme } from "./positions/sentence_example.js" */

/** @typedef {{ destroy(): void }} Panel */

const [MIN_LENGTH, MAX_LENGTH, MAX_WIDTH] = [8, 256, 256];
/** The height of the cells of a matrix, at most. */
const MATRIX_HEIGHT = 220;
/** Milliseconds after the last movement of a slider until the encodings are computed. */
const DELAY = 200;

/** @type {View} */
export const view = {
  name: "positions",
  title: "Positional encodings",
  fits: () => true,
  single: () => "Positional encodings do not depend on a run, so there is one pane.",
  mount: (element, context) => new PositionsView(element, context),
};

/** @implements {Mounted} */
class PositionsView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    this.request = new LatestRequest();
    this.exampleRequest = new LatestRequest();
    /** @type {Positions | null} */
    this.shown = null;
    /** @type {ReturnType<typeof exampleNumbers> | null} */
    this.exampleNumbers = null;
    /** @type {Panel[]} */
    this.panels = [];
    this.theme = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.requested = "";
    this.length = slider("Positions", MIN_LENGTH, MAX_LENGTH, 1, (length) => context.store.set({ length }));
    this.width = slider("Dimensions", 4, MAX_WIDTH, 2, (width) => context.store.set({ width }));
    this.cards = h("div", { class: "schemes" });
    this.table = h("div");
    this.example = h("div");
    setChildren(
      element,
      h(
        "div",
        { class: "positions" },
        explanation(
          "positions",
          "How does a model know the order of tokens?",
          "[[Attention]] by itself treats its input as a set: it does not know which [[token]] comes first. So the position " +
            "of each token is encoded ([[positional encoding]]), in one of these ways.",
          "Change the number of positions and dimensions, and point at the matrices to read their values.",
        ),
        h("div", { class: "controls" }, this.length.element, this.width.element),
        section(
          "Schemes",
          "On the left the encodings: one row per position, one column per dimension. On the right the similarity of " +
            "any two positions. Point at a matrix, or use the arrow keys in it, to read its values.",
          this.cards,
        ),
        section(
          "Requirements",
          "What is required of a positional encoding, checked for each scheme with encodings of 8 dimensions built for " +
            "64 positions. Every cell gives the evidence.",
          this.table,
        ),
        section(
          "An example",
          "Two sentences that differ in length by one word. A good encoding keeps the distances between " +
            "positions the same in both.",
          this.example,
        ),
      ),
    );
    this.exports = {
      svg: () => domToSvg(this.cards),
      csv: () => ({ name: "positional-encodings", rows: this.rows() }),
      caption: () => "", // no run of a model is shown
    };
  }

  /** @param {State} state */
  update(state) {
    const theme = document.documentElement.dataset.theme ?? "";
    this.length.show(state.length);
    this.width.show(state.width);
    const key = `${this.length.value()} × ${this.width.value()}`;
    if (this.theme === "") {
      this.theme = theme || "none";
      this.requested = key;
      this.load();
      this.loadExample();
      return;
    }
    if (key !== this.requested) {
      this.requested = key;
      this.loadLater();
    }
    if (theme && theme !== this.theme) {
      this.theme = theme;
      if (this.shown) this.draw(this.shown);
    }
  }

  destroyPanels() {
    for (const panel of this.panels) panel.destroy();
    this.panels = [];
  }

  destroy() {
    this.destroyPanels();
    clearTimeout(this.timer);
    this.request.cancel();
    this.exampleRequest.cancel();
  }

  read() {
    const { shown, exampleNumbers: example } = this;
    const isCurrent = shown?.length === this.length.value() && shown.width === this.width.value();
    return isCurrent && example ? { positions: shown, example } : null;
  }

  loadLater() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), DELAY);
  }

  load() {
    if (!this.shown) showLoading(this.cards, "Computing …");
    this.request.start(
      this.context.source.positions(this.length.value(), this.width.value()),
      (positions) => this.draw(positions),
      (message) => {
        this.shown = null;
        setChildren(this.table);
        showError(this.cards, `The encodings could not be computed: ${message}`, () => this.load());
      },
    );
  }

  loadExample() {
    const { source } = this.context;
    const { width, short, long, bits } = EXAMPLE_SIZES;
    this.exampleRequest.start(
      Promise.all([short, long, bits].map((length) => source.positions(length, width))),
      ([shorter, longer, sixteen]) => {
        this.exampleNumbers = exampleNumbers(shorter, longer, sixteen);
        setChildren(this.example, sentenceExample(shorter, longer, sixteen));
      },
      (message) => showError(this.example, `The example could not be computed: ${message}`, () => this.loadExample()),
    );
  }

  /** @param {Positions} positions */
  draw(positions) {
    this.shown = positions;
    this.destroyPanels();
    setChildren(
      this.cards,
      positions.schemes.map((scheme) => schemeCard(scheme, this.panels)),
    );
    setChildren(this.table, requirementTable(positions.schemes));
  }

  /** All encodings and similarities, as a table. @returns {(string | number)[][]} */
  rows() {
    const rows = (this.shown?.schemes ?? []).flatMap(({ name, encoding, similarity }) => [
      ...encoding.map((values, position) => [name, "encoding", position, ...values]),
      ...similarity.map((values, position) => [name, "similarity", position, ...values]),
    ]);
    return [["scheme", "kind", "position", "values"], ...rows];
  }
}

/** @param {Scheme} scheme @param {Panel[]} panels to which its matrices are added */
function schemeCard(scheme, panels) {
  return h(
    "article",
    { class: "panel scheme", "data-scheme": scheme.name },
    h("h3", {}, scheme.name),
    h("p", {}, scheme.description),
    h(
      "div",
      { class: "scheme-heatmaps" },
      labeledMatrix(scheme.encoding, "Encodings", "dimension", panels) ??
        h("p", { class: "note" }, "Nothing is added to the embeddings."),
      labeledMatrix(scheme.similarity, scheme.similarity_description, "position", panels) ??
        h("p", { class: "note" }, "There is nothing to compare."),
    ),
  );
}

/**
 * @param {number[][]} numbers
 * @param {string} caption
 * @param {"dimension" | "position"} columnKind
 * @param {Panel[]} panels
 */
function labeledMatrix(numbers, caption, columnKind, panels) {
  if (numbers.length === 0 || numbers[0].length === 0) return null;
  const matrix = toMatrix(numbers);
  const { lowest, highest, limit } = signedRange(matrix.values);
  if (lowest === highest)
    return h("p", { class: "note" }, `${capitalize(caption)}: ${lowest} everywhere, so all positions are alike.`);
  const rows = toLabels(matrix.rows, String);
  const columns = toLabels(matrix.columns, (column) => String(columnKind === "dimension" ? column + 1 : column));
  const panel = matrixPanel({
    label: `${capitalize(caption)}. Arrow keys move from cell to cell.`,
    describe: (row, column) =>
      `position ${row} · ${columnKind} ${columns[column].label}: ${formatNumber(numbers[row][column], 4)}`,
    maxHeight: MATRIX_HEIGHT,
  });
  panels.push(panel);
  panel.show({ matrix, rows, columns, scale: "signed", limit, pinnedRow: -1, pinnedColumn: -1 }, `rows: positions, columns: ${columnKind}s`);
  return h(
    "figure",
    {},
    h("figcaption", {}, h("small", {}, capitalize(caption))),
    signedLegend(Math.min(0, lowest), Math.max(0, highest), limit),
    panel.element,
  );
}

/** @param {Scheme[]} schemes */
function requirementTable(schemes) {
  const names = schemes[0]?.requirements.map(({ name }) => name) ?? [];
  const header = h(
    "tr",
    {},
    h("th", { scope: "col" }, "scheme"),
    names.map((name) => h("th", { scope: "col" }, name)),
  );
  const rows = schemes.map((scheme) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, scheme.name),
      scheme.requirements.map(({ holds, evidence, name }) =>
        h(
          "td",
          { class: holds ? "holds" : "fails", "data-requirement": name, "data-holds": String(holds) },
          h("b", {}, holds ? "✓ yes" : "✕ no"),
          h("small", {}, evidence),
        ),
      ),
    ),
  );
  return scrollable(
    "Requirements",
    h("table", { class: "requirements" }, h("thead", {}, header), h("tbody", {}, rows)),
  );
}
