/**
 * What a person asks of a model: a text or a picture, and how the answer is searched for.
 */

/** @import { ModelSummary, State, TaskKind, ViewContext } from "../../contract" */

import { h, put, unique } from "../../page/dom.js";
import { decodingOf } from "../../page/runner.js";

/** Bytes of a picture that is still sent. */
const LARGEST_PICTURE = 8 * 2 ** 20;

/** @type {Record<TaskKind, { ask: string, go: string }>} */
const WORDS = {
  translation: { ask: "A sentence to translate", go: "Translate" },
  language: { ask: "The beginning of a text", go: "Go on writing" },
  parsing: { ask: "A sentence to parse", go: "Parse" },
  pictures: { ask: "A picture", go: "Classify" },
  filling: { ask: "A text with [MASK] where a word is missing", go: "Fill the gaps" },
  labelling: { ask: "A text to classify", go: "Classify" },
  tagging: { ask: "A sentence to tag", go: "Tag" },
};
const WRITES = ["translation", "language", "parsing"];

/**
 * @param {ViewContext} context
 * @returns {{ element: HTMLElement, show: (state: State, model: ModelSummary | null) => void, destroy: () => void }}
 */
export function asking(context) {
  const { store, source } = context;
  const text = h("textarea", { id: unique("text"), rows: 2, spellcheck: "false" });
  const ask = h("label", { for: text.id, class: "ask" });
  const picture = pictureField(context);
  const go = h("button", { type: "submit", class: "strong" });
  const stop = h("button", { type: "button", hidden: true, onclick: () => context.running()?.stop() }, "Stop");
  const controls = h("div", { class: "controls" });
  const file = h("p", { class: "note" });
  const buttons = h("div", { class: "controls" }, go, stop);
  const form = h("form", { class: "panel asking" }, ask, text, picture.element, controls, buttons, file);
  /** @type {ModelSummary | null} */
  let model = null;
  let shownText = "";
  let shownControls = "";

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (model === null || !source.live) return;
    const decoding = WRITES.includes(model.task) ? decodingOf(store.get(), model) : undefined;
    if (model.task === "pictures") {
      if (picture.chosen() === "") return context.say("Choose a picture first.", "error");
      return void context.run({ text: "", picture: picture.chosen() });
    }
    if (text.value.trim() === "") return context.say("Write something first.", "error");
    return void context.run({ text: text.value, decoding });
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey || !event.shiftKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  const deaf = context.listen((running) => busy(running !== null));
  busy(context.running() !== null);

  /** @param {boolean} now */
  function busy(now) {
    stop.hidden = !now;
    go.disabled = now;
  }

  return {
    element: form,
    destroy: deaf,
    show(state, shown) {
      model = shown;
      if (model === null) return;
      const words = WORDS[model.task];
      const pictures = model.task === "pictures";
      ask.textContent = words.ask;
      go.textContent = words.go;
      text.hidden = pictures;
      picture.element.hidden = !pictures;
      text.readOnly = !source.live;
      const now = state.text || model.example;
      if (now !== shownText) text.value = shownText = now;
      file.textContent = source.live
        ? ""
        : `This page is a file and shows one run. To run sentences of your own: regard look ${model.name}`;
      file.hidden = source.live;
      buttons.hidden = controls.hidden = !source.live;
      const wanted = JSON.stringify([model.id, state.method]);
      if (wanted !== shownControls) {
        shownControls = wanted;
        const had = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset.control;
        put(controls, WRITES.includes(model.task) ? decodingFields(context, state, model) : []);
        const again = had === undefined ? null : controls.querySelector(`[data-control="${had}"]`);
        if (again instanceof HTMLElement) again.focus();
      }
    },
  };
}

/**
 * @param {ViewContext} context
 * @param {State} state
 * @param {ModelSummary} model
 */
function decodingFields({ store }, state, model) {
  const now = decodingOf(state, model);
  const method = h(
    "select",
    { id: unique("method"), "data-control": "method" },
    h("option", { value: "beam" }, "Beam: follow the best few"),
    h("option", { value: "greedy" }, "Greedy: always the likeliest"),
    h("option", { value: "sample" }, "Sample: draw by chance"),
  );
  method.value = state.method;
  method.addEventListener("change", () => store.set({ method: /** @type {State["method"]} */ (method.value) }));
  /** @type {(name: "beams" | "longest" | "temperature" | "top_k" | "top_p" | "seed", label: string, limits: object) => HTMLElement} */
  const number = (name, label, limits) => {
    const input = h("input", { id: unique(name), type: "number", value: now[name], "data-control": name, ...limits });
    input.addEventListener("change", () => {
      if (input.checkValidity()) store.set({ [name]: Number(input.value) });
      else input.reportValidity();
    });
    return h("div", { class: "field number" }, h("label", { for: input.id }, label), input);
  };
  return [
    h("div", { class: "field" }, h("label", { for: method.id }, "How to search"), method),
    state.method === "beam" && number("beams", "Beams", { min: 1, max: 32, step: 1 }),
    state.method === "sample" && [
      number("temperature", "Temperature", { min: 0.05, max: 5, step: 0.05 }),
      number("top_k", "Only the best k (0: all)", { min: 0, max: 1000, step: 1 }),
      number("top_p", "Only the top share", { min: 0.05, max: 1, step: 0.05 }),
      number("seed", "Seed", { min: 0, step: 1 }),
    ],
    number("longest", "Longest answer, tokens", { min: 1, max: 4096, step: 1 }),
  ].flat();
}

/** @param {ViewContext} context */
function pictureField(context) {
  let address = "";
  const input = h("input", { id: unique("picture"), type: "file", accept: "image/*" });
  const seen = h("img", { alt: "The picture that was chosen", hidden: true });
  /** @param {File | undefined} file */
  async function take(file) {
    if (file === undefined) return;
    if (file.size > LARGEST_PICTURE)
      return context.say("This picture is larger than 8 MB. Please take a smaller one.", "error");
    address = await new Promise((done) => {
      const reader = new FileReader();
      reader.addEventListener("load", () => done(String(reader.result)));
      reader.readAsDataURL(file);
    });
    seen.src = address;
    seen.hidden = false;
  }
  input.addEventListener("change", () => take(input.files?.[0]));
  const element = h(
    "div",
    { class: "picture", hidden: true },
    h("label", { for: input.id }, "Choose a picture, or drop one here"),
    input,
    seen,
  );
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    void take(event.dataTransfer?.files[0]);
  });
  return { element, chosen: () => address };
}
