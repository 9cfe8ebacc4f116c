/**
 * Inside a head: how the attention of one token in one head is computed, step by step with the model's own numbers.
 */

import { weightLimit } from "../page/colors/scales.js";
import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { ATTENTION_NAMES, formatNumber } from "../page/format.js";
import { signedLegend, weightLegend } from "../page/colors/legend.js";
import { matrixPanel } from "../page/matrix_panel.js";
import { STEP_NAMES, queriesAndKeys, queryLabel, tokenLabel } from "../page/tokens.js";
import { attentionTable } from "./cell/attention_table.js";
import { workedExample } from "./cell/worked_example.js";
import { dropDown, radioRow } from "./shared/choices.js";
import { hasHeads } from "./shared/heads.js";
import { LatestRequest } from "./shared/latest_request.js";
import { signedRange, toLabels, toMatrix } from "./shared/number_matrix.js";
import { showError, showLoading } from "./shared/placeholders.js";
import { section } from "./shared/section.js";

/** @import { Scale } from "../page/colors/scales.js" */
/** @import { AttentionType, Cell, CellRequest, Mounted, State, Token, Trace, View, ViewContext } from "../contract.d.ts" */
/** @import { Query } from "../page/tokens.js" */

/** The height of the cells of a matrix, at most. */
const WINDOW_HEIGHT = 420;

/** @type {View} */
export const view = {
  name: "cell",
  title: "Inside a head",
  fits: (model) => model === null || hasHeads(model),
  mount: (element, context) => new CellView(element, context),
};

/** @implements {Mounted} */
class CellView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store } = context;
    this.request = new LatestRequest();
    /** @type {Cell | null} */
    this.shown = null;
    /** The name of its row. */
    this.label = "";
    this.requested = "";
    this.isLoading = false;
    /** @type {{ destroy(): void }[]} */
    this.panels = [];
    this.typeRow = radioRow("Attention", (value) =>
      store.set({ attention_type: /** @type {AttentionType} */ (value), layer: 0, head: 0, token: -1 }),
    );
    this.layerList = dropDown("Layer", (value) => store.set({ layer: Number(value) }));
    this.headList = dropDown("Head", (value) => store.set({ head: Number(value) }));
    this.queryList = dropDown("Query", (value) => store.set({ token: Number(value), token_role: "query" }));
    this.controls = h(
      "div",
      { class: "controls" },
      this.typeRow.element,
      this.layerList.element,
      this.headList.element,
      this.queryList.element,
    );
    this.body = h("div");
    setChildren(
      element,
      h(
        "div",
        { class: "cell-view" },
        explanation(
          "cell",
          "How one attention row is computed",
          "The token's [[query]] q is compared with the [[key]] k of every token. The better a key matches the query, the " +
            "larger the [[attention weight]] of that token's [[value]] v in the output of the [[head]].",
          "Read a row from left to right. Choose another query, head or layer; click a token to see all its numbers. " +
            `In the decoder the query is that of a step. ${STEP_NAMES}`,
        ),
        this.controls,
        this.body,
      ),
    );
    this.exports = {
      svg: () => domToSvg(this.body),
      csv: () => ({ name: "attention-row", rows: this.rows() }),
    };
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    this.controls.hidden = trace === null;
    if (trace === null) {
      this.requested = "";
      this.showNote("There is no attention to show yet. Run a text at the top of the page.");
      return;
    }
    const cellRequest = selectCell(state, trace);
    if (cellRequest === null) {
      this.requested = "";
      this.showNote("This trace contains no attention that can be opened: it is an old one, or of a model that is no Transformer. Run the text again.");
      return;
    }
    const { queries, keys } = queriesAndKeys(trace, cellRequest.attention_type);
    this.updateControls(trace, cellRequest, queries);
    const key = JSON.stringify([trace.id, cellRequest, document.documentElement.dataset.theme]);
    if (key === this.requested) return;
    this.requested = key;
    if (!this.shown) showLoading(this.body, "Computing …");
    this.isLoading = true;
    this.request.start(
      this.context.source.cell(trace.id, cellRequest),
      (cell) => this.draw(cell, queries, keys),
      (message) => {
        this.shown = null;
        this.isLoading = false;
        this.requested = "";
        showError(this.body, `This attention row could not be computed: ${message}`, () =>
          this.update(this.context.store.get(), trace),
        );
      },
    );
  }

  destroy() {
    this.destroyPanels();
    this.request.cancel();
  }

  read() {
    return this.isLoading || this.shown === null ? null : { ...this.shown, label: this.label };
  }

  /** @param {Trace} trace @param {CellRequest} request @param {Query[]} queries */
  updateControls(trace, request, queries) {
    const specs = trace.model.attention;
    const spec = specs.find((each) => each.attention_type === request.attention_type);
    const numbered = (/** @type {number} */ count) =>
      Array.from({ length: count }, (_, index) => ({ value: String(index), label: String(index + 1) }));
    this.typeRow.update(
      specs.map((each) => ({ value: each.attention_type, label: ATTENTION_NAMES[each.attention_type] })),
      request.attention_type,
    );
    this.layerList.update(numbered(spec?.layers ?? 1), String(request.layer));
    this.headList.update(numbered(spec?.heads ?? 1), String(request.head));
    this.queryList.update(
      queries.map((query, index) => ({ value: String(index), label: `${index + 1} · ${queryLabel(query)}` })),
      String(request.query),
    );
  }

  /** @param {Cell} cell @param {Query[]} queries @param {Token[]} keys */
  draw(cell, queries, keys) {
    this.shown = cell;
    this.isLoading = false;
    this.label = queryLabel(queries[cell.request.query]);
    const isStep = cell.request.attention_type !== "encoder";
    const focused = document.activeElement?.closest("[data-window]")?.getAttribute("data-window");
    setChildren(
      this.body,
      section(
        "Worked example",
        "The steps for the two tokens with the largest weights, and below them an example for two words that can be " +
          "computed by hand.",
        workedExample(cell, this.label, keys),
      ),
      section(
        "Step by step",
        `Every key token, from its key to its part of the output. The scores become weights by [[softmax]]. ${describeScore(cell)} ` +
          "Bars are the values of a vector: blue for positive, orange for negative. Click a token to see all its numbers.",
        attentionTable(cell, this.label, isStep, keys),
      ),
      section(
        "All queries",
        "Each row is a query, each column a key. The framed row is the one above; gray cells are hidden by the [[mask]]. Point at a " +
          "cell, or use the arrow keys, to read its value; a click or Enter selects its row.",
        this.matrices(cell, queries, keys),
      ),
    );
    const matrix = focused && this.body.querySelector(`[data-window="${focused}"] .matrix-scroller`);
    if (matrix instanceof HTMLElement) matrix.focus({ preventScroll: true }); // a row was selected by keyboard
  }

  /** @param {Cell} cell @param {Query[]} queries @param {Token[]} keys */
  matrices({ window: part, request }, queries, keys) {
    const name = (/** @type {Token | undefined} */ token) => (token ? tokenLabel(token) : "–");
    const rows = toLabels(part.weights.length, (row) => queryLabel(queries[part.first_query + row]));
    const columns = toLabels(part.weights[0]?.length ?? 0, (column) => name(keys[part.first_key + column]));
    const pins = { pinnedRow: request.query - part.first_query, pinnedColumn: -1 };
    const pin = (/** @type {number} */ row) =>
      this.context.store.set({ token: part.first_query + row, token_role: "query" });
    const hidden = (/** @type {number} */ row, /** @type {number} */ column) => part.masked_scores[row][column] === null;
    this.destroyPanels();
    /** @type {(title: string, description: string, scale: Scale, numbers: (number | null)[][]) => HTMLElement} */
    const figure = (title, description, scale, numbers) => {
      const matrix = toMatrix(numbers);
      const isMasked = numbers === part.scaled_scores ? undefined : hidden;
      const { lowest, highest, limit } =
        scale === "weight" ? { lowest: 0, highest: 1, limit: weightLimit(part.weights.flat()) } : signedRange(matrix.values);
      const panel = matrixPanel({
        label: `${title}: ${description}. Arrow keys move from cell to cell, Enter selects the row.`,
        describe: (row, column) => {
          const value = isMasked?.(row, column) ? "masked" : formatNumber(numbers[row][column], 4);
          return `${rows[row].label} · ${columns[column].label}: ${value}`;
        },
        pin,
        maxHeight: WINDOW_HEIGHT,
      });
      this.panels.push(panel);
      panel.show({ matrix, rows, columns, scale, limit, isMasked, ...pins }, "rows: queries, columns: keys");
      return h(
        "figure",
        { "data-window": title },
        h("figcaption", {}, h("b", {}, title), " ", h("small", {}, description)),
        scale === "weight" ? weightLegend(limit, part.masked_scores.flat().includes(null)) : Number.isFinite(lowest) && signedLegend(lowest, highest, limit),
        panel.element,
      );
    };
    return h(
      "div",
      { class: "attention-windows" },
      figure("Scores", "q · k, scaled", "signed", part.scaled_scores),
      figure("Masked scores", "masked keys removed", "signed", part.masked_scores),
      figure("Weights", "softmax of each row", "weight", part.weights),
    );
  }

  destroyPanels() {
    for (const panel of this.panels) panel.destroy();
    this.panels = [];
  }

  /** @param {string} text */
  showNote(text) {
    this.request.cancel();
    this.shown = null;
    setChildren(this.body, h("p", { class: "note", role: "status" }, text));
  }

  /** All numbers of the row, as a table. */
  rows() {
    const cell = this.shown;
    if (!cell) return [["key"]];
    const trace = this.context.trace();
    const keys = trace ? queriesAndKeys(trace, cell.request.attention_type).keys : [];
    const columns = (/** @type {string} */ name, /** @type {number[]} */ values) =>
      values.map((_, index) => `${name}${index + 1}`);
    const header = [
      "key",
      "token",
      "score",
      "scaled score",
      "masked score",
      "weight",
      ...columns("k", cell.keys[0] ?? []),
      ...columns("v", cell.values[0] ?? []),
    ];
    const rows = cell.keys.map((key, index) => {
      const token = keys[index] ? tokenLabel(keys[index]) : "";
      const scores = [cell.scores[index], cell.scaled_scores[index], cell.masked_scores[index] ?? ""];
      return [index, token, ...scores, cell.weights[index], ...key, ...cell.values[index]];
    });
    return [
      header,
      ...rows,
      ["query", this.label, "", "", "", "", ...cell.query],
      ["output", "", "", "", "", "", ...cell.query.map(() => ""), ...cell.output],
    ];
  }
}

/** @param {Cell} cell */
function describeScore({ similarity, scale, query }) {
  if (similarity === "cosine") return "The score is the cosine similarity of query and key, times a learned scale.";
  const isStandard = Math.abs(scale - 1 / Math.sqrt(query.length)) < 1e-6;
  const factor = isStandard ? `divided by √${query.length}, the square root of their dimension` : `times ${formatNumber(scale, 4)}`;
  return `The score is the dot product of query and key, ${factor}.`;
}

/**
 * The row that the state selects, or the nearest that the trace has.
 * @param {State} state
 * @param {Trace} trace
 * @returns {CellRequest | null}
 */
function selectCell(state, trace) {
  const specs = trace.model.attention.filter(
    (spec) => !spec.weights_only && queriesAndKeys(trace, spec.attention_type).queries.length > 0,
  );
  const spec = specs.find((each) => each.attention_type === state.attention_type) ?? specs[0];
  if (spec === undefined) return null;
  const { queries } = queriesAndKeys(trace, spec.attention_type);
  const isSelected = state.token_role === "query" && state.token >= 0 && state.token < queries.length;
  const middle = Math.min(queries.length - 1, Math.floor(queries.length / 2));
  return {
    attention_type: spec.attention_type,
    layer: Math.min(Math.max(0, state.layer), spec.layers - 1),
    head: Math.min(Math.max(0, state.head), spec.heads - 1),
    query: isSelected ? state.token : middle,
  };
}
