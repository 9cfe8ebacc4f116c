/**
 * All heads of a model as toggles: one row per layer, one column per head. Once a head's importance was measured, its
 * toggle shows it as a number and a color.
 */

import { colorCell } from "../../page/colors/scales.js";
import { h, setChildren } from "../../page/dom.js";
import { ATTENTION_NAMES, formatChange, headLabel } from "../../page/format.js";
import { signedLegend } from "../../page/colors/legend.js";
import { headTable } from "../shared/head_table.js";
import { moveInTable } from "../shared/roving_focus.js";

/** @import { AttentionType, HeadImportance, ModelSummary } from "../../contract.d.ts" */

/** How much worse the model is without a head: the increase of the loss, or the decrease of BLEU. @param {HeadImportance} importance @param {{ change: number }} head */
export function harm(importance, head) {
  return importance.metric === "loss" ? head.change : -head.change;
}

export class HeadGrid {
  /** @param {(key: string) => void} onToggle */
  constructor(onToggle) {
    this.onToggle = onToggle;
    this.tables = h("div", { class: "head-tables" });
    this.legend = h("div", { class: "head-legend" });
    this.element = h("div", { class: "head-grid" }, this.tables, this.legend);
    this.element.addEventListener("keydown", moveInTable);
    /** @type {Map<string, HTMLButtonElement>} */
    this.toggles = new Map();
    this.builtFor = "";
  }

  /** @param {ModelSummary} model @param {string[]} ablated @param {HeadImportance | null} importance */
  update(model, ablated, importance) {
    const key = JSON.stringify(model.attention);
    if (key !== this.builtFor) {
      this.builtFor = key;
      this.build(model);
    }
    const heads = importance?.heads ?? [];
    const scores = new Map(heads.map((head) => [`${head.attention_type}.${head.layer}.${head.head}`, head]));
    const limit = Math.max(1e-9, ...heads.map((head) => Math.abs(head.change)));
    for (const [name, toggle] of this.toggles) {
      const score = scores.get(name);
      const isOn = !ablated.includes(name);
      toggle.setAttribute("aria-checked", String(isOn));
      const change = score && importance ? formatChange(score.change, importance.metric === "loss" ? 3 : 2) : "";
      setChildren(
        toggle,
        h("span", { class: "toggle-state" }, isOn ? "on" : "off"),
        change && h("span", { class: "toggle-importance" }, change),
      );
      toggle.classList.toggle("measured", change !== "");
      colorCell(toggle, "signed", score && importance ? harm(importance, score) : null, limit);
      const [type, layer, head] = name.split(".");
      const label = headLabel({ attention_type: /** @type {AttentionType} */ (type), layer: Number(layer), head: Number(head) });
      const result = change ? `, ${importance?.metric} changes by ${change} without it` : "";
      toggle.setAttribute("aria-label", `${label}${result}`);
      if (score) toggle.dataset.change = String(score.change);
      else delete toggle.dataset.change;
    }
    setChildren(this.legend, importance && scores.size > 0 ? legend(importance, limit) : null);
  }

  /** @param {ModelSummary} model */
  build(model) {
    this.toggles.clear();
    setChildren(
      this.tables,
      model.attention.map((spec) => this.table(spec.attention_type, spec.layers, spec.heads)),
    );
  }

  /** @param {AttentionType} type @param {number} layers @param {number} heads */
  table(type, layers, heads) {
    const columns = Array.from({ length: heads }, (_, head) => `head ${head + 1}`);
    const cell = (/** @type {number} */ layer, /** @type {number} */ head) =>
      this.toggle(`${type}.${layer}.${head}`, layer + head === 0);
    return headTable(ATTENTION_NAMES[type], layers, [{ columns, cell }]);
  }

  /** @param {string} key @param {boolean} isTabStop */
  toggle(key, isTabStop) {
    const attributes = { class: "head-toggle", "data-head": key, tabindex: isTabStop ? 0 : -1 };
    const toggle = h("button", {
      type: "button",
      role: "switch",
      ...attributes,
      onclick: () => this.onToggle(key),
    });
    this.toggles.set(key, toggle);
    return toggle;
  }
}

/** @param {HeadImportance} importance @param {number} limit */
function legend(importance, limit) {
  const effect = importance.metric === "loss" ? "the loss rises" : "BLEU falls";
  return h(
    "p",
    { class: "note" },
    "better without it ",
    signedLegend(-limit, limit, limit),
    ` important: without it ${effect}`,
  );
}
