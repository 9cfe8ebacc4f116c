/**
 * The input form: a text or an image, and the decoding settings.
 */

/** @import { ModelSummary, State, ViewContext } from "../../contract" */

import { h, setChildren, uniqueId } from "../../page/dom.js";
import { decodingSettings } from "../../page/runner.js";

/** Bytes of an image that may be sent. */
const MAX_IMAGE_BYTES = 8 * 2 ** 20;

/** The labels of the form for each task; a task that is not listed has generic ones. */
const TASK_LABELS = /** @type {Record<string, { input: string, submit: string }>} */ ({
  translation: { input: "Sentence to translate", submit: "Translate" },
  "language-modeling": { input: "Prompt", submit: "Generate" },
  parsing: { input: "Sentence to parse", submit: "Parse" },
  "image-classification": { input: "Image", submit: "Classify" },
  "masked-lm": { input: "Text with [MASK] for each missing word", submit: "Fill the masks" },
  "text-classification": { input: "Text to classify", submit: "Classify" },
  "token-classification": { input: "Sentence to tag", submit: "Tag" },
});

/**
 * @param {ViewContext} context
 * @returns {{ element: HTMLElement, update: (state: State, model: ModelSummary | null) => void, destroy: () => void }}
 */
export function inputForm(context) {
  const { store, source } = context;
  const text = h("textarea", { id: uniqueId("text"), rows: 2, spellcheck: "false" });
  const label = h("label", { for: text.id, class: "input-label" });
  const image = imageInput(context);
  const submit = h("button", { type: "submit", class: "strong" });
  const stop = h("button", { type: "button", hidden: true, onclick: () => context.running()?.stop() }, "Stop");
  const controls = h("div", { class: "controls" });
  const fileNote = h("p", { class: "note" });
  const buttons = h("div", { class: "controls" }, submit, stop);
  const form = h("form", { class: "panel input-form" }, label, text, image.element, controls, buttons, fileNote);
  /** @type {ModelSummary | null} */
  let model = null;
  let shownText = "";
  let shownControls = "";

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (model === null || !source.live) return;
    const decoding = model.generates ? decodingSettings(store.get(), model) : undefined;
    if (model.input === "image") {
      if (image.url() === "") return context.notify("Choose an image first.", "error");
      return void context.run({ text: "", image: image.url() });
    }
    if (text.value.trim() === "") return context.notify("Enter a text first.", "error");
    return void context.run({ text: text.value, decoding });
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey || !event.shiftKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  const unsubscribe = context.onRunning((running) => setRunning(running !== null));
  setRunning(context.running() !== null);

  /** @param {boolean} running */
  function setRunning(running) {
    stop.hidden = !running;
    submit.disabled = running;
  }

  return {
    element: form,
    destroy: unsubscribe,
    update(state, current) {
      model = current;
      if (model === null) return;
      const labels = TASK_LABELS[model.task] ?? { input: "Input", submit: "Run" };
      const takesImage = model.input === "image";
      label.textContent = labels.input;
      submit.textContent = labels.submit;
      text.hidden = takesImage;
      image.element.hidden = !takesImage;
      text.readOnly = !source.live;
      const value = state.text || model.example;
      if (value !== shownText) text.value = shownText = value;
      fileNote.textContent = source.live
        ? ""
        : `This page is a standalone file with a single run. To run other inputs: regard look ${model.name}`;
      fileNote.hidden = source.live;
      buttons.hidden = controls.hidden = !source.live;
      const controlsKey = JSON.stringify([model.id, state.method]);
      if (controlsKey !== shownControls) {
        shownControls = controlsKey;
        const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset.control;
        setChildren(controls, model.generates ? decodingControls(context, state, model) : []);
        const control = focused === undefined ? null : controls.querySelector(`[data-control="${focused}"]`);
        if (control instanceof HTMLElement) control.focus();
      }
    },
  };
}

/**
 * @param {ViewContext} context
 * @param {State} state
 * @param {ModelSummary} model
 */
function decodingControls({ store }, state, model) {
  const settings = decodingSettings(state, model);
  const method = h(
    "select",
    { id: uniqueId("method"), "data-control": "method" },
    h("option", { value: "beam" }, "Beam search"),
    h("option", { value: "greedy" }, "Greedy search"),
    h("option", { value: "sample" }, "Sampling"),
  );
  method.value = state.method;
  method.addEventListener("change", () => store.set({ method: /** @type {State["method"]} */ (method.value) }));
  /** @type {(name: "beam_size" | "max_new_tokens" | "temperature" | "top_k" | "top_p" | "seed", label: string, limits: object) => HTMLElement} */
  const numberInput = (name, label, limits) => {
    const input = h("input", {
      id: uniqueId(name),
      type: "number",
      value: settings[name],
      "data-control": name,
      ...limits,
    });
    input.addEventListener("change", () => {
      if (input.checkValidity()) store.set({ [name]: Number(input.value) });
      else input.reportValidity();
    });
    return h("div", { class: "field number" }, h("label", { for: input.id }, label), input);
  };
  return [
    h("div", { class: "field" }, h("label", { for: method.id }, "Decoding"), method),
    state.method === "beam" && numberInput("beam_size", "Beam size", { min: 1, max: 32, step: 1 }),
    state.method === "sample" && [
      numberInput("temperature", "Temperature", { min: 0.05, max: 5, step: 0.05 }),
      numberInput("top_k", "Top k (0: all)", { min: 0, max: 1000, step: 1 }),
      numberInput("top_p", "Top p", { min: 0.05, max: 1, step: 0.05 }),
      numberInput("seed", "Seed", { min: 0, step: 1 }),
    ],
    numberInput("max_new_tokens", "Max. new tokens", { min: 1, max: 4096, step: 1 }),
  ].flat();
}

/** @param {ViewContext} context */
function imageInput(context) {
  let url = "";
  const input = h("input", { id: uniqueId("image"), type: "file", accept: "image/*" });
  const preview = h("img", { alt: "The chosen image", hidden: true });
  /** @param {File | undefined} file */
  async function read(file) {
    if (file === undefined) return;
    if (file.size > MAX_IMAGE_BYTES)
      return context.notify("This image is larger than 8 MB. Please choose a smaller one.", "error");
    url = await new Promise((resolve) => {
      const reader = new FileReader();
      reader.addEventListener("load", () => resolve(String(reader.result)));
      reader.readAsDataURL(file);
    });
    preview.src = url;
    preview.hidden = false;
  }
  input.addEventListener("change", () => read(input.files?.[0]));
  const element = h(
    "div",
    { class: "image-input", hidden: true },
    h("label", { for: input.id }, "Choose an image, or drop one here"),
    input,
    preview,
  );
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    void read(event.dataTransfer?.files[0]);
  });
  return { element, url: () => url };
}
