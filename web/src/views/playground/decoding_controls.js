/**
 * The decoding settings of the next run. A setting that is left empty is the model's own.
 */

/** @import { ModelSummary, State, Store } from "../../contract" */

import { h, uniqueId } from "../../page/dom.js";
import { INPUT_FORM } from "../../page/input/input_box.js";
import { decodingSettings } from "../../page/runner.js";

/** @typedef {"beam_size" | "max_new_tokens" | "temperature" | "top_k" | "top_p" | "seed"} Setting */

/** @type {Record<Setting, { label: string, limits: { min: number, max?: number, step: number } }>} */
const NUMBERS = {
  beam_size: { label: "Beam size", limits: { min: 1, max: 32, step: 1 } },
  temperature: { label: "Temperature", limits: { min: 0.05, max: 5, step: 0.05 } },
  top_k: { label: "Top k (0: all)", limits: { min: 0, max: 1000, step: 1 } },
  top_p: { label: "Top p", limits: { min: 0.05, max: 1, step: 0.05 } },
  seed: { label: "Seed", limits: { min: 0, step: 1 } },
  max_new_tokens: { label: "Max. new tokens", limits: { min: 1, max: 4096, step: 1 } },
};

/** The settings that each method has. @type {Record<State["method"], Setting[]>} */
const SETTINGS = {
  beam: ["beam_size", "max_new_tokens"],
  greedy: ["max_new_tokens"],
  sample: ["temperature", "top_k", "top_p", "seed", "max_new_tokens"],
};

/** @param {Store} store */
export function decodingControls(store) {
  const method = h(
    "select",
    { id: uniqueId("method"), "data-control": "method" },
    h("option", { value: "beam" }, "Beam search"),
    h("option", { value: "greedy" }, "Greedy search"),
    h("option", { value: "sample" }, "Sampling"),
  );
  method.addEventListener("change", () => store.set({ method: /** @type {State["method"]} */ (method.value) }));
  const inputs = /** @type {Setting[]} */ (Object.keys(NUMBERS)).map((name) => ({ name, ...numberInput(store, name) }));
  const element = h(
    "section",
    { class: "panel controls", "aria-label": "Decoding settings" },
    h("div", { class: "field" }, h("label", { for: method.id }, "Decoding"), method),
    inputs.map(({ field }) => field),
    h("button", { type: "submit", form: INPUT_FORM }, "Run with these settings"),
  );
  return {
    element,
    /**
     * @param {State} state
     * @param {ModelSummary} model
     */
    update(state, model) {
      const settings = decodingSettings(state, model);
      method.value = state.method;
      for (const { name, field, input } of inputs) {
        field.hidden = !SETTINGS[state.method].includes(name);
        input.disabled = field.hidden; // so that it does not keep the form from being submitted
        const value = String(settings[name]);
        input.placeholder = value;
        if (input !== document.activeElement) input.value = value;
      }
    },
  };
}

/**
 * @param {Store} store
 * @param {Setting} name
 */
function numberInput(store, name) {
  const { label, limits } = NUMBERS[name];
  const input = h("input", { id: uniqueId(name), type: "number", form: INPUT_FORM, "data-control": name, ...limits });
  input.addEventListener("change", () => {
    if (input.checkValidity()) store.set({ [name]: input.value === "" ? null : Number(input.value) });
    else input.reportValidity();
  });
  input.addEventListener("blur", () => {
    if (input.validity.valid && input.value === "") input.value = input.placeholder;
  });
  return { input, field: h("div", { class: "field number" }, h("label", { for: input.id }, label), input) };
}
