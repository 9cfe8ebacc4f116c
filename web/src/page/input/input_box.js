/**
 * The input in the header of every view: a text with examples, or an image. Running it stays in the view that is open.
 *
 * What the user has typed stays until another run is shown, also when the view or the model changes. Of a text of several
 * sentences, a model that reads single ones runs the first, and the others can be chosen below.
 */

/** @import { ModelSummary, State, ViewContext } from "../../contract" */

import { h, uniqueId } from "../dom.js";
import { createMenu, menuItem } from "../menu.js";
import { decodingSettings } from "../runner.js";
import { errorMessage } from "../messages.js";
import { imageInput } from "./image_input.js";
import { firstSentence, sentenceRow } from "./sentences.js";

/** The form's id; controls elsewhere on the page belong to it by their attribute `form`. */
export const INPUT_FORM = "input-form";

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

/** @param {ViewContext} context */
export function createInputBox(context) {
  const { store, source } = context;
  const text = h("textarea", { id: uniqueId("text"), rows: 1, spellcheck: "false" });
  const label = h("label", { for: text.id });
  const textField = h("div", { class: "field text-field" }, label, text);
  const image = imageInput(context.notify);
  const submit = h("button", { type: "submit", class: "strong" });
  const stop = h("button", { type: "button", hidden: true, onclick: () => context.running()?.stop() }, "Stop");
  const examples = createMenu("Examples");
  const fail = (/** @type {unknown} */ error) => context.notify(errorMessage(error), "error");
  const sentences = sentenceRow(source, runSentence, fail);
  const form = h(
    "form",
    { id: INPUT_FORM, class: "input-form", "aria-label": "Input", hidden: true },
    textField,
    image.element,
    submit,
    stop,
    examples.element,
    sentences.element,
  );
  /** @type {ModelSummary | null} */
  let model = null;
  /** The model that the text was last shown for. @type {ModelSummary | null} */
  let textModel = null;
  let shownText = "";
  let latestSubmit = 0;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (model === null) return;
    if (model.input === "image") {
      if (image.url() === "") return context.notify("Choose an image first.", "error");
      return void context.run({ text: "", image: image.url() });
    }
    if (text.value.trim() === "") return context.notify("Enter a text first.", "error");
    return void runText(model, text.value);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  context.onRunning((running) => {
    stop.hidden = running === null;
    submit.disabled = running !== null;
  });

  /** Run the text as it is typed, or its first sentence. @param {ModelSummary} runModel @param {string} typed */
  async function runText(runModel, typed) {
    shownText = typed;
    const started = ++latestSubmit;
    try {
      const { request, change } = await firstSentence(source, runModel, { text: typed, decoding: decoding(runModel) });
      if (started === latestSubmit && model === runModel) await context.run(request, change);
    } catch (error) {
      fail(error);
    }
  }

  /** @param {string} sentence @param {string} passage @param {number} index */
  function runSentence(sentence, passage, index) {
    if (model === null) return;
    latestSubmit += 1;
    text.value = shownText = passage;
    void context.run({ text: sentence, decoding: decoding(model) }, { passage, sentence: index });
  }

  /** @param {ModelSummary} runModel */
  function decoding(runModel) {
    return runModel.generates ? decodingSettings(store.get(), runModel) : undefined;
  }

  /** @param {string} example */
  function runExample(example) {
    text.value = example;
    examples.close();
    form.requestSubmit();
  }

  return {
    element: form,
    /** The image that was chosen, as a data: URL; "" before. */
    image: image.url,
    /**
     * The text in the box, if it is one that another model takes as well; else "".
     * @param {ModelSummary} other
     */
    textFor: (other) => (textModel !== null && takeSameText(textModel, other) ? text.value.trim() && text.value : ""),
    /**
     * @param {State} state
     * @param {ModelSummary | null} current
     */
    update(state, current) {
      form.hidden = current === null || !source.live;
      if (current === null) return;
      if (current !== model) {
        const { input, submit: verb } = TASK_LABELS[current.task] ?? { input: "Input", submit: "Run" };
        label.textContent = input;
        submit.textContent = verb;
        const items = current.examples ?? [];
        examples.setItems(items.map((example) => menuItem(example, () => runExample(example))));
        examples.element.hidden = items.length === 0;
      }
      model = current;
      const takesImage = model.input === "image";
      textField.hidden = takesImage;
      image.element.hidden = !takesImage;
      if (takesImage) return;
      textModel = model;
      void sentences.update(model, state.passage, state.sentence);
      const value = state.passage || state.text || model.example;
      if (value !== shownText) text.value = shownText = value;
    },
  };
}

/**
 * Whether two models take texts of the same kind: in the same language as far as it is known, and both with masks or
 * both without.
 * @param {ModelSummary} one
 * @param {ModelSummary} other
 */
function takeSameText(one, other) {
  if (one.input !== "text" || other.input !== "text") return false;
  if ((one.task === "masked-lm") !== (other.task === "masked-lm")) return false;
  return one.language === undefined || other.language === undefined || one.language === other.language;
}
