/**
 * The controls above two panes: what the second run is, comparisons that one click opens, and closing the second pane.
 */

/** @import { ModelSummary, State, Trace } from "../contract" */
/** @import { Preset } from "./presets.js" */

import { h, setChildren, uniqueId } from "../page/dom.js";
import { presets } from "./presets.js";

/**
 * @typedef {object} SetupOptions
 * @property {(preset: Preset) => void} choose
 * @property {(text: string) => void} setText
 * @property {(model: string) => void} setModel
 * @property {() => void} swap
 * @property {() => void} stop the second run
 * @property {() => void} close
 */

/** @param {SetupOptions} options */
export function createSetup(options) {
  const text = h("textarea", { id: uniqueId("second-text"), rows: 1, spellcheck: "false" });
  const model = h("select", { id: uniqueId("second-model"), onchange: () => options.setModel(model.value) });
  const textField = h("div", { class: "field text-field" }, h("label", { for: text.id }, "Text of the second run"), text);
  const submit = h("button", { type: "submit", class: "strong" }, "Run");
  const stop = h("button", { type: "button", hidden: true, onclick: options.stop }, "Stop");
  const form = h(
    "form",
    { class: "input-form", "aria-label": "Second run" },
    h("div", { class: "field" }, h("label", { for: model.id }, "Its model"), model),
    textField,
    submit,
    stop,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (text.value.trim() !== "") options.setText(text.value);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  const presetRow = h("div", { class: "presets", role: "group", "aria-label": "Comparisons" });
  const swap = h("button", { type: "button", onclick: options.swap }, "Swap both runs");
  const element = h(
    "section",
    { class: "side-by-side-setup panel", "aria-label": "The second run" },
    h(
      "div",
      { class: "setup-header" },
      h("h2", {}, "Two runs side by side"),
      h("div", { class: "setup-actions" }, swap, h("button", { type: "button", onclick: options.close }, "Close the second pane")),
    ),
    form,
    presetRow,
  );
  let shownText = "";
  let shownModels = "";
  let shownPresets = "";

  return {
    element,
    /** @param {boolean} isRunning */
    showRunning(isRunning) {
      stop.hidden = !isRunning;
      submit.disabled = isRunning;
    },
    focus: () => (textField.hidden ? model : text).focus(),
    /**
     * @param {State} state
     * @param {Trace | null} trace the first run's
     * @param {{ first: ModelSummary | null, second: ModelSummary | null, models: ModelSummary[], text: string, canSwap: boolean }} runs
     */
    update(state, trace, { first, second, models, text: value, canSwap }) {
      const fitting = models.filter((each) => each.input === (first?.input ?? "text"));
      const names = JSON.stringify(fitting.map(({ id, name }) => [id, name]));
      if (names !== shownModels) {
        shownModels = names;
        setChildren(
          model,
          fitting.map(({ id, name }) => h("option", { value: id }, name)),
        );
      }
      model.value = second?.id ?? "";
      model.disabled = fitting.length < 2;
      textField.hidden = submit.hidden = second?.input === "image";
      if (value !== shownText) text.value = shownText = value;
      swap.disabled = !canSwap;
      const offered = presets(state, trace, first, models);
      const key = JSON.stringify(offered);
      if (key === shownPresets) return;
      shownPresets = key;
      const focused = presetRow.contains(document.activeElement);
      setChildren(
        presetRow,
        offered.map((preset) => h("button", { type: "button", onclick: () => options.choose(preset) }, preset.label)),
      );
      presetRow.hidden = offered.length === 0;
      if (focused) presetRow.querySelector("button")?.focus();
    },
  };
}
