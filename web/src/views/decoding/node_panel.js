/**
 * The selected node of the search tree, and what the model attends to after it.
 */

import { h, setChildren } from "../../page/dom.js";
import { ATTENTION_NAMES, formatFixed, formatPercent } from "../../page/format.js";
import { weightLegend } from "../../page/colors/legend.js";
import { paletteColor } from "../../page/colors/palette.js";
import { weightLimit } from "../../page/colors/scales.js";
import { matrixPanel } from "../../page/matrix_panel.js";
import { headPlace } from "../../page/selected_heads.js";
import { tokenLabel } from "../../page/tokens.js";
import { radioRow } from "../shared/choices.js";
import { LatestRequest } from "../shared/latest_request.js";
import { toLabels, toMatrix } from "../shared/number_matrix.js";
import { showError, showLoading } from "../shared/placeholders.js";
import { scrollable } from "../shared/section.js";
import { attentionBars } from "./attention_bars.js";
import { lastCharacters, stateSymbol } from "./candidate_table.js";
import { displayState } from "./search_tree.js";

/** @import { AttentionType, BeamNode, NodeAttention, Token, ViewContext } from "../../contract.d.ts" */
/** @import { SearchTree } from "./search_tree.js" */

/** Attention to more tokens is a matrix: its cells' sizes, in pixels. */
const [MAX_BARS, CELL_WIDTH, ROW_HEIGHT] = [60, 14, 20];
/** The last characters of a long hypothesis that are shown. */
const MAX_PREFIX_LENGTH = 160;

export class NodePanel {
  /** @param {ViewContext} context @param {(id: number) => Promise<NodeAttention>} load @param {() => void} retry */
  constructor(context, load, retry) {
    this.context = context;
    this.load = load;
    this.retry = retry;
    this.request = new LatestRequest();
    /** @type {NodeAttention | null} */
    this.shown = null;
    /** The node that is shown or being loaded. */
    this.requested = NaN;
    this.layerRow = radioRow("Layer", (value) => context.store.set({ layer: Number(value) }));
    this.title = h("p", { class: "node-title" });
    /** The step whose attention is shown. */
    this.label = "";
    this.bars = h("div");
    /** @type {ReturnType<typeof matrixPanel>[]} */
    this.panels = [];
    this.element = h("div", {}, h("div", { class: "controls" }, this.layerRow.element), this.title, this.bars);
  }

  /** @param {SearchTree} tree @param {BeamNode | undefined} node @param {Token[]} source @param {number} layer */
  show(tree, node, source, layer) {
    if (!node) {
      this.clear();
      setChildren(this.title, "No node is selected in this step.");
      return;
    }
    setChildren(
      this.title,
      stateSymbol(displayState(node)),
      ` ${lastCharacters(tree.text(node.parent), MAX_PREFIX_LENGTH)} `,
      h("strong", {}, tokenLabel(node.token)),
      ` · step ${node.step}, ${tree.describe(node)} · probability ${formatPercent(Math.exp(node.log_probability))} · `,
      `total log-probability ${formatFixed(node.total_log_probability)}`,
    );
    this.label = tree.stepAfter(node);
    this.requested = node.id;
    if (this.shown?.node !== node.id) showLoading(this.bars, "Computing the attention …");
    this.request.start(
      this.load(node.id),
      (attention) => this.draw(attention, source, layer),
      (message) => {
        this.shown = null;
        showError(this.bars, `The attention of this node could not be loaded: ${message}`, this.retry);
      },
    );
  }

  /** What is shown, or null while it is loading. */
  read() {
    return this.shown?.node === this.requested ? { ...this.shown, label: this.label } : null;
  }

  clear() {
    this.request.cancel();
    this.requested = NaN;
    this.shown = null;
    this.destroyPanels();
    setChildren(this.title);
    setChildren(this.bars);
  }

  /** @param {NodeAttention} attention @param {Token[]} source @param {number} selectedLayer */
  draw(attention, source, selectedLayer) {
    this.shown = attention;
    this.destroyPanels();
    const layers = Math.max(attention.cross.length, attention.decoder.length);
    const layer = Math.min(Math.max(0, selectedLayer), layers - 1);
    const choices = Array.from({ length: layers }, (_, index) => ({ value: String(index), label: String(index + 1) }));
    this.layerRow.update(choices, String(layer));
    const next = attention.next_tokens
      .slice(0, 5)
      .map(({ token, probability }) => `${tokenLabel(token)} ${formatPercent(probability)}`);
    setChildren(
      this.bars,
      layers > 0 && h("p", { class: "step-name" }, "Step ", h("strong", {}, this.label)),
      this.attentionBars("cross", `${ATTENTION_NAMES.cross}, over the source`, attention.cross[layer], source, layer),
      this.attentionBars(
        "decoder",
        `${ATTENTION_NAMES.decoder}, over the prefix`,
        attention.decoder[layer],
        attention.prefix,
        layer,
      ),
      layers === 0 ? h("p", { class: "note" }, "This model has no attention to show here.") : null,
      next.length ? h("p", { class: "note" }, `The likeliest next tokens: ${next.join(", ")}.`) : null,
    );
  }

  /**
   * @param {AttentionType} type
   * @param {string} title
   * @param {number[][] | undefined} heads
   * @param {Token[]} tokens
   * @param {number} layer
   */
  attentionBars(type, title, heads, tokens, layer) {
    if (!heads?.length) return [];
    if (tokens.length > MAX_BARS) return this.attentionMatrix(type, title, heads, tokens);
    const maxWidth = Math.max(280, this.bars.clientWidth - 8);
    const [state, trace] = [this.context.store.get(), this.context.trace()];
    const place = (/** @type {number} */ head) => (trace ? headPlace(state, trace.model, type, layer, head) : -1);
    const color = (/** @type {number} */ head) => (place(head) < 0 ? "var(--ink-soft)" : paletteColor(place(head)));
    const frame = scrollable(title, attentionBars(heads, tokens, { label: `Step ${this.label}. ${title}.`, color, maxWidth }));
    frame.dataset.bars = type;
    return [h("h3", {}, title), frame];
  }

  /**
   * The same for many tokens, on a canvas.
   * @param {AttentionType} type
   * @param {string} title
   * @param {number[][]} heads
   * @param {Token[]} tokens
   */
  attentionMatrix(type, title, heads, tokens) {
    const name = (/** @type {number} */ head) => `head ${head + 1}`;
    const labels = tokens.map(tokenLabel);
    const panel = matrixPanel({
      label: `Step ${this.label}. ${title}. Arrow keys move from cell to cell.`,
      describe: (row, column) => `${name(row)} → ${labels[column]} (${column + 1}): ${formatFixed(heads[row][column], 3)}`,
      minWidth: CELL_WIDTH,
      maxHeight: ROW_HEIGHT * heads.length,
    });
    this.panels.push(panel);
    panel.element.dataset.bars = type;
    const limit = weightLimit(heads.flat());
    const [rows, columns] = [toLabels(heads.length, name), toLabels(labels.length, (index) => labels[index])];
    const matrix = toMatrix(heads);
    requestAnimationFrame(() =>
      panel.show({ matrix, rows, columns, scale: "weight", limit, pinnedRow: -1, pinnedColumn: -1 }, "Rows: heads, columns: tokens. Point at a cell to read its weight."),
    );
    return [h("h3", {}, title), weightLegend(limit), panel.element];
  }

  destroyPanels() {
    for (const panel of this.panels) panel.destroy();
    this.panels = [];
  }
}
