/**
 * A map of layers × heads: how the margin changes without each head and each feed-forward network. All cells have one
 * color scale. A head's cell opens the head in the heads view.
 */

/** @import { AttentionType, Contrast, ModelSummary } from "../../contract" */

import { colorCell } from "../../page/colors/scales.js";
import { h, setChildren } from "../../page/dom.js";
import { attentionInStack, capitalize, feedForwardLabel, formatChange, headLabel } from "../../page/format.js";
import { signedLegend } from "../../page/colors/legend.js";
import { headTable } from "../shared/head_table.js";
import { moveInTable } from "../shared/roving_focus.js";

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
      colorCell(cell, "signed", change === undefined ? null : -change, limit);
      const text = change === undefined ? "…" : formatChange(change);
      setChildren(cell, text);
      cell.setAttribute("aria-label", `${text} without ${label}`);
      if (change === undefined) delete cell.dataset.change;
      else cell.dataset.change = String(change);
    }
    setChildren(
      this.legend,
      `speaks for “${other}”: without it the margin rises `,
      signedLegend(-limit, limit, limit, [formatChange(limit), formatChange(-limit)]),
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
    const groups = specs.map(({ attention_type: type, heads }) => ({
      title: attentionInStack(type),
      columns: Array.from({ length: heads }, (_, head) => `${head + 1}`),
      cell: (/** @type {number} */ layer, /** @type {number} */ head) => this.headCell(type, layer, head),
    }));
    const networks = { title: "feed-forward", columns: [""], cell: (/** @type {number} */ layer) => this.feedForwardCell(stack, layer) };
    return headTable(capitalize(stack), specs[0].layers, [...groups, networks]);
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
    return cell;
  }

  /** @param {"encoder" | "decoder"} stack @param {number} layer */
  feedForwardCell(stack, layer) {
    const name = `${stack}.${layer}.feed-forward`;
    const cell = h("span", { class: "effect", role: "img", "data-effect": name });
    this.cells.set(name, { cell, name: feedForwardLabel({ stack, layer }) });
    return cell;
  }
}

/** @param {string} name @param {number} change @returns {[string, number]} */
function entry(name, change) {
  return [name, change];
}
