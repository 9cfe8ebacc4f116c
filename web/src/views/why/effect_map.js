/**
 * A map of layers × heads: how the margin changes without each head and each feed-forward network. All cells have one
 * color scale. A head's cell opens the head in the heads view.
 */

/** @import { AttentionType, Contrast, ModelSummary } from "../../contract" */

import { h, setChildren } from "../../page/dom.js";
import { formatChange } from "../../page/format.js";
import { divergingColor, textColor, toCss } from "../shared/diverging_colors.js";
import { heatmapLegend } from "../shared/heatmap.js";
import { moveInTable } from "../shared/roving_focus.js";
import { feedForwardLabel, headLabel } from "./names.js";

/** @type {Record<AttentionType, string>} */
const COLUMNS = { encoder: "self-attention", decoder: "self-attention", cross: "cross-attention" };

export class EffectMap {
  /** @param {(type: AttentionType, layer: number, head: number) => void} onHead */
  constructor(onHead) {
    this.onHead = onHead;
    this.tables = h("div", { class: "head-tables" });
    this.legend = h("p", { class: "note" });
    this.element = h("div", { class: "effect-map" }, this.tables, this.legend);
    this.element.addEventListener("keydown", moveInTable);
    /** @type {Map<string, { cell: HTMLElement, name: string }>} */
    this.cells = new Map();
    this.builtFor = "";
  }

  /** @param {ModelSummary} model @param {Contrast} contrast @param {string} written @param {string} other */
  update(model, contrast, written, other) {
    const key = JSON.stringify(model.attention);
    if (key !== this.builtFor) {
      this.builtFor = key;
      this.build(model);
    }
    const changes = new Map([
      ...contrast.heads.map(({ attention_type: type, layer, head, change }) => entry(`${type}.${layer}.${head}`, change)),
      ...contrast.feed_forwards.map(({ stack, layer, change }) => entry(`${stack}.${layer}.feed-forward`, change)),
    ]);
    const limit = Math.max(1e-9, ...[...changes.values()].map(Math.abs));
    for (const [name, { cell, name: label }] of this.cells) {
      const change = changes.get(name);
      const color = change === undefined ? null : divergingColor(-change, limit);
      cell.style.backgroundColor = color ? toCss(color) : "";
      cell.style.color = color ? textColor(color) : "";
      const text = change === undefined ? "…" : formatChange(change);
      setChildren(cell, text);
      cell.setAttribute("aria-label", `${text} without ${label}`);
      if (change === undefined) delete cell.dataset.change;
      else cell.dataset.change = String(change);
    }
    setChildren(
      this.legend,
      `speaks for “${other}”: without it the margin rises `,
      heatmapLegend(-limit, limit, limit, [formatChange(limit), formatChange(-limit)]),
      ` speaks for “${written}”: without it the margin falls. The numbers are the changes of the margin.`,
    );
  }

  /** @param {ModelSummary} model */
  build(model) {
    this.cells.clear();
    const specs = model.attention.filter((spec) => !spec.weights_only);
    const stacks = /** @type {const} */ (["encoder", "decoder"]).map((stack) => ({
      stack,
      specs: specs.filter(({ attention_type: type }) => (type === "encoder") === (stack === "encoder")),
    }));
    setChildren(
      this.tables,
      stacks.filter((each) => each.specs.length > 0).map((each) => this.table(each.stack, each.specs)),
    );
    this.tables.querySelector("button")?.setAttribute("tabindex", "0");
  }

  /** @param {"encoder" | "decoder"} stack @param {ModelSummary["attention"]} specs */
  table(stack, specs) {
    const groups = specs.map((spec) => h("th", { scope: "colgroup", colspan: spec.heads }, COLUMNS[spec.attention_type]));
    const numbers = specs.flatMap((spec) =>
      Array.from({ length: spec.heads }, (_, head) =>
        h("th", { scope: "col", class: head === 0 ? "group-start" : "" }, `${head + 1}`),
      ),
    );
    const header = [
      h("tr", {}, h("td"), groups, h("th", { scope: "colgroup" }, "feed-forward")),
      h("tr", {}, h("td"), numbers, h("td", { class: "group-start" })),
    ];
    const rows = Array.from({ length: specs[0].layers }, (_, layer) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, `layer ${layer + 1}`),
        specs.flatMap((spec) =>
          Array.from({ length: spec.heads }, (_each, head) => this.headCell(spec.attention_type, layer, head)),
        ),
        this.feedForwardCell(stack, layer),
      ),
    );
    return h(
      "div",
      { class: "head-table" },
      h("h3", {}, stack === "encoder" ? "Encoder" : "Decoder"),
      h("div", { class: "scrollable" }, h("table", {}, h("thead", {}, header), h("tbody", {}, rows))),
    );
  }

  /** @param {AttentionType} type @param {number} layer @param {number} head */
  headCell(type, layer, head) {
    const name = `${type}.${layer}.${head}`;
    const cell = h("button", {
      type: "button",
      class: "effect",
      tabindex: -1,
      "data-effect": name,
      onclick: () => this.onHead(type, layer, head),
    });
    this.cells.set(name, { cell, name: headLabel({ attention_type: type, layer, head }) });
    return h("td", { class: head === 0 ? "group-start" : "" }, cell);
  }

  /** @param {"encoder" | "decoder"} stack @param {number} layer */
  feedForwardCell(stack, layer) {
    const name = `${stack}.${layer}.feed-forward`;
    const cell = h("span", { class: "effect", role: "img", "data-effect": name });
    this.cells.set(name, { cell, name: feedForwardLabel({ stack, layer }) });
    return h("td", { class: "group-start" }, cell);
  }
}

/** @param {string} name @param {number} change @returns {[string, number]} */
function entry(name, change) {
  return [name, change];
}
