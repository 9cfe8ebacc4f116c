/**
 * The controls of the heads view: the attention type, aggregation, and the minimum weight of a line.
 */

/** @import { AttentionType, State, Trace, ViewContext } from "../../contract" */

import { h, setChildren, uniqueId } from "../../page/dom.js";
import { ATTENTION_NAMES, formatPercent } from "../../page/format.js";
import { hasRollout, selectedHead } from "../../page/selected_heads.js";
import { STEP_NAMES } from "../../page/tokens.js";
import { dropDown } from "../shared/choices.js";

/** @type {Record<AttentionType, string>} */
const DESCRIPTIONS = {
  encoder: "Tokens of the source attend to each other.",
  decoder: `At each step the decoder attends to the token that it reads and to those before it. ${STEP_NAMES}`,
  cross: `At each step the decoder attends to the tokens of the source. ${STEP_NAMES}`,
};

/** @param {ViewContext} context */
export function headControls({ store }) {
  const group = uniqueId("attention-type");
  const tabs = h("div", { class: "attention-types", role: "radiogroup", "aria-label": "Attention type" });
  const description = h("p", { class: "note" });
  const mergeSubwords = checkbox("Merge subwords into words", (checked) => store.set({ merge_subwords: checked }));
  const averageHeads = checkbox("Average the layer’s heads", (checked) =>
    store.set({ average_heads: checked, rollout: false }),
  );
  const rollout = dropDown("Attention rollout", (layer) =>
    store.set(layer === "" ? { rollout: false } : { rollout: true, average_heads: false, layer: Number(layer) }),
  );
  const showSpecial = checkbox("Show special tokens", (checked) => store.set({ show_special: checked }));
  const threshold = h("input", { type: "range", min: 0, max: 0.98, step: 0.01, id: uniqueId("threshold") });
  const thresholdValue = h("output", { for: threshold.id });
  // The slider is the square root of the threshold, which leaves room for the small weights of long texts.
  threshold.addEventListener("input", () =>
    store.set({ threshold: Number((Number(threshold.value) ** 2).toPrecision(3)) }),
  );
  const thresholdField = h(
    "div",
    { class: "field" },
    h("label", { for: threshold.id }, "Minimum weight: ", thresholdValue),
    threshold,
  );
  const element = h(
    "div",
    { class: "head-controls", "data-no-export": true },
    tabs,
    description,
    h("div", { class: "controls" }, mergeSubwords.element, averageHeads.element, rollout.element, showSpecial.element, thresholdField),
  );
  let builtFor = "";

  return {
    element,
    /** @param {State} state @param {Trace | null} trace */
    update(state, trace) {
      const types = (trace?.model.attention ?? []).map((spec) => spec.attention_type);
      threshold.setAttribute("aria-valuetext", formatPercent(state.threshold));
      if (types.join() !== builtFor) {
        builtFor = types.join();
        setChildren(
          tabs,
          types.map((type) =>
            radio(group, type, () => store.set({ attention_type: type, layer: 0, head: 0, heads: [], token: -1 })),
          ),
        );
      }
      for (const input of tabs.querySelectorAll("input")) input.checked = input.value === state.attention_type;
      const isImage = trace?.grid !== undefined;
      const text = isImage ? "Patches of the image attend to each other." : DESCRIPTIONS[state.attention_type];
      description.textContent = types.length === 0 ? "" : text;
      mergeSubwords.element.hidden = thresholdField.hidden = isImage;
      mergeSubwords.input.checked = state.merge_subwords;
      const layers = trace?.model.attention.find((spec) => spec.attention_type === state.attention_type)?.layers ?? 0;
      const shown = trace === null ? null : selectedHead(state, trace.model).head;
      averageHeads.input.checked = shown === "mean";
      rollout.element.hidden = trace === null || !hasRollout(trace.model, state.attention_type);
      rollout.update(
        [{ value: "", label: "off" }, ...Array.from({ length: layers }, (_, layer) => rolloutChoice(layer))],
        shown === "rollout" ? String(state.layer) : "",
      );
      showSpecial.input.checked = state.show_special;
      threshold.value = String(Math.sqrt(state.threshold));
      thresholdValue.textContent = formatPercent(state.threshold);
    },
  };
}

/** @param {number} layer */
function rolloutChoice(layer) {
  return { value: String(layer), label: `up to layer ${layer + 1}` };
}

/** @param {string} name @param {AttentionType} type @param {() => void} onSelect */
function radio(name, type, onSelect) {
  const input = h("input", { type: "radio", name, value: type, class: "visually-hidden" });
  input.addEventListener("change", onSelect);
  return h("label", { class: "attention-type" }, input, h("span", {}, ATTENTION_NAMES[type]));
}

/** @param {string} label @param {(checked: boolean) => void} onChange */
function checkbox(label, onChange) {
  const input = h("input", { type: "checkbox" });
  input.addEventListener("change", () => onChange(input.checked));
  return { input, element: h("label", { class: "check" }, input, label) };
}
