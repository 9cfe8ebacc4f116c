/**
 * What the current model uses of the pairs that its pattern allows: those with an attention weight above a threshold.
 */

/** @import { AttentionType, Matrix, ModelPatterns, State, Trace, ViewContext } from "../../contract" */

import { h, setChildren } from "../../page/dom.js";
import { ATTENTION_NAMES, formatCount, formatPercent, formatWeight, headName } from "../../page/format.js";
import { queriesAndKeys, queryLabel, tokenLabel } from "../../page/tokens.js";
import { dropDown } from "../shared/choices.js";
import { NumberMatrices } from "../shared/number_matrix.js";
import { LatestRequest } from "../shared/latest_request.js";
import { showError } from "../shared/placeholders.js";
import { section } from "../shared/section.js";
import { slider } from "../shared/slider.js";
import { MASKED_VALUE, swatch } from "./pattern_card.js";

/** @typedef {ModelPatterns["layers"][number]} LayerPattern */
/** @typedef {{ layer: LayerPattern, head: number, threshold: number, used: number, allowed: number }} Use */

export class ModelUse {
  /** @param {ViewContext} context */
  constructor(context) {
    this.context = context;
    const { store } = context;
    this.requests = new LatestRequest();
    this.type = dropDown("Attention", (type) =>
      store.set({ attention_type: /** @type {AttentionType} */ (type), layer: 0, head: 0 }),
    );
    this.layer = dropDown("Layer", (layer) => store.set({ layer: Number(layer) }));
    this.head = dropDown("Head", (head) => store.set({ head: Number(head) }));
    this.threshold = slider("Weights above", 0, 0.5, 0.01, (threshold) => store.set({ threshold }));
    this.controls = h(
      "div",
      { class: "controls" },
      this.type.element,
      this.layer.element,
      this.head.element,
      this.threshold.element,
    );
    this.answer = h("p", { role: "status" });
    this.matrices = new NumberMatrices();
    this.drawing = h("div");
    this.element = section(
      "Used by this model",
      "What one head makes of the pairs that its pattern allows in the current text. A pair counts as used if its attention " +
        "weight is above the threshold.",
      this.controls,
      this.answer,
      this.drawing,
    );
    /** @type {Use | null} */
    this.shown = null;
    this.settled = true;
    this.key = "";
  }

  /** @param {State} state @param {Trace | null} trace @param {ModelPatterns | null} patterns */
  update(state, trace, patterns) {
    if (trace === null || patterns === null) return;
    const layer = patterns.layers.find(
      (each) => each.attention_type === state.attention_type && each.layer === state.layer,
    );
    this.controls.hidden = layer === undefined;
    if (layer === undefined) return this.explain(trace, patterns);
    this.showControls(state, trace, patterns);
    const key = [trace.id, layer.attention_type, layer.layer, state.head, this.threshold.value(), document.documentElement.dataset.theme].join();
    if (key === this.key) return;
    this.key = key;
    this.settled = false;
    this.requests.start(
      this.context.source.matrix(trace.id, layer.attention_type, layer.layer, state.head),
      (matrix) => {
        this.settled = true;
        this.draw(trace, layer, state.head, matrix);
      },
      (message) => {
        this.settled = true;
        this.shown = null;
        setChildren(this.answer);
        showError(this.drawing, message);
      },
    );
  }

  /** @param {State} state @param {Trace} trace @param {ModelPatterns} patterns */
  showControls(state, trace, patterns) {
    const types = [...new Set(patterns.layers.map(({ attention_type }) => attention_type))];
    const spec = trace.model.attention.find((each) => each.attention_type === state.attention_type);
    const numbered = (/** @type {number} */ count) =>
      Array.from({ length: count }, (_, index) => ({ value: String(index), label: String(index + 1) }));
    this.type.update(
      types.map((value) => ({ value, label: ATTENTION_NAMES[value] })),
      state.attention_type,
    );
    this.layer.update(numbered(spec?.layers ?? 0), String(state.layer));
    this.head.update(numbered(spec?.heads ?? 0), String(state.head));
    this.threshold.show(state.threshold, formatPercent);
  }

  /** Why nothing is shown. @param {Trace} trace @param {ModelPatterns} patterns */
  explain(trace, patterns) {
    const text =
      patterns.layers.length === 0
        ? `${trace.model.name} has no attention with a pattern: it is no Transformer.`
        : "Choose an attention type in “Attention heads”.";
    this.shown = null;
    this.settled = true;
    this.key = "";
    setChildren(this.answer, text);
    setChildren(this.drawing);
  }

  /** @param {string} message */
  fail(message) {
    this.controls.hidden = true;
    this.settled = true;
    setChildren(this.answer);
    showError(this.drawing, message);
  }

  /** @param {Trace} trace @param {LayerPattern} layer @param {number} head @param {Matrix} matrix */
  draw(trace, layer, head, { rows, columns, pooled, values }) {
    const threshold = this.threshold.value();
    const where = `${ATTENTION_NAMES[layer.attention_type]}, ${headName(layer.layer, head)}`;
    const pattern = h("code", {}, layer.pattern);
    if (pooled > 1) {
      this.shown = null;
      const text = ". This text is long, so its weights are pooled, and the used pairs cannot be counted. Run a shorter one.";
      setChildren(this.answer, `${where}: `, pattern, text);
      return void setChildren(this.drawing);
    }
    let used = 0;
    for (const weight of values) if (weight > threshold) used += 1;
    this.shown = { layer, head, threshold, used, allowed: layer.pairs };
    setChildren(
      this.answer,
      `${where}: `,
      pattern,
      ` allows ${formatCount(layer.pairs)} of ${formatCount(layer.dense)} pairs. The head uses `,
      h("b", { "data-used": used }, formatCount(used)),
      ` of them (${formatPercent(used / layer.pairs)}) with a weight above ${formatPercent(threshold)}.`,
    );
    const { queries, keys } = queriesAndKeys(trace, layer.attention_type);
    const weight = (/** @type {number} */ row, /** @type {number} */ column) => values[row * columns + column];
    // A weight of exactly 0 is that of a pair which the mask excludes, or that is too small for float16.
    const isUsed = (/** @type {number} */ row, /** @type {number} */ column) => weight(row, column) > threshold;
    const cells = Array.from({ length: rows }, (_, row) =>
      Array.from({ length: columns }, (_each, column) => {
        if (isUsed(row, column)) return 0.3 + 0.6 * weight(row, column);
        return weight(row, column) > 0 ? MASKED_VALUE : null;
      }),
    );
    this.matrices.destroy();
    return void setChildren(
      this.drawing,
      h(
        "ul",
        { class: "region-legend" },
        swatch(0.7, "used (stronger: a larger weight)"),
        swatch(MASKED_VALUE, "allowed, but not used"),
        swatch(null, "no weight: not allowed, or nearly 0"),
      ),
      this.matrices.add(cells, {
        label: `${where}: ${used} used pairs of ${layer.pairs} allowed ones.`,
        rowName: (row) => (queries[row] ? queryLabel(queries[row]) : `query ${row}`),
        columnName: (column) => (keys[column] ? tokenLabel(keys[column]) : `key ${column}`),
        describe: (row, column) =>
          weight(row, column) === 0
            ? "no weight"
            : `${isUsed(row, column) ? "used" : "not used"}, weight ${formatWeight(weight(row, column))}`,
        limit: 1,
        maxHeight: 460,
      }),
    );
  }
}
