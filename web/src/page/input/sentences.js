/**
 * The sentences of a text, for a model that runs them one by one: a row of buttons to choose the one to look at, or the whole
 * text as one input.
 */

/** @import { ModelSummary, RunRequest, Sentences, Source, State } from "../../contract" */

import { rowFocus } from "../../views/shared/roving_focus.js";
import { h, setChildren } from "../dom.js";
import { formatCount } from "../format.js";

/** Buttons of a long text, around the chosen one; the others are reached with the buttons beside the row. */
const MAX_BUTTONS = 24;
/** A line break or an end mark with more behind it, or a long text; any other is one sentence, so the server is not asked. */
const MAY_HAVE_SENTENCES = /[\r\n.!?…؟۔।。！？｡].*\S|.{500}/s;
/** The index of the whole text as one input. */
const WHOLE_TEXT = -1;

/**
 * What is run for a text: its first sentence, or the text itself if it is a single one.
 * @param {Source} source
 * @param {ModelSummary} model
 * @param {RunRequest} request
 * @returns {Promise<{ request: RunRequest, change: Partial<State> }>}
 */
export async function firstSentence(source, model, request) {
  if (model.splits_sentences && MAY_HAVE_SENTENCES.test(request.text)) {
    const { sentences } = await source.sentences(model.id, request.text);
    if (sentences.length > 1)
      return { request: { ...request, text: sentences[0] }, change: { passage: request.text, sentence: 0 } };
  }
  return { request, change: { passage: "", sentence: WHOLE_TEXT } };
}

/**
 * @param {Source} source
 * @param {(text: string, passage: string, sentence: number) => void} choose
 * @param {(error: unknown) => void} onError
 */
export function sentenceRow(source, choose, onError) {
  const row = h("span", { class: "sentence-buttons", role: "group", "aria-label": "Sentences" });
  const step = (/** @type {number} */ by) => () => select(shown.sentence + by);
  const previous = h("button", { type: "button", "aria-label": "Previous sentence", onclick: step(-1) }, "←");
  const next = h("button", { type: "button", "aria-label": "Next sentence", onclick: step(1) }, "→");
  const position = h("span", { class: "sentence-position" });
  const whole = h("button", { type: "button", onclick: () => select(WHOLE_TEXT) }, "Whole text as one input");
  const note = h("small", {});
  const element = h(
    "div",
    { class: "sentences", role: "group", "aria-label": "The sentence to look at", hidden: true },
    position,
    previous,
    row,
    next,
    whole,
    note,
  );
  rowFocus(row);
  const shown = { model: "", passage: "", sentence: WHOLE_TEXT };
  /** @type {Sentences} */
  let split = { sentences: [] };

  /** @param {number} index */
  function select(index) {
    choose(split.sentences[index] ?? shown.passage, shown.passage, index);
  }

  function draw() {
    const { sentences } = split;
    const { sentence } = shown;
    element.hidden = sentences.length < 2;
    if (element.hidden) return setChildren(row);
    const count = formatCount(sentences.length);
    position.textContent = sentence < 0 ? `All ${count} sentences` : `Sentence ${formatCount(sentence + 1)} of ${count}`;
    previous.disabled = sentence < 1;
    next.disabled = sentence === sentences.length - 1;
    whole.setAttribute("aria-pressed", String(sentence < 0));
    note.textContent = split.note ?? "";
    const hadFocus = row.contains(document.activeElement);
    const first = Math.max(0, Math.min(sentence - MAX_BUTTONS / 2, sentences.length - MAX_BUTTONS));
    const buttons = sentences.slice(first, first + MAX_BUTTONS).map((text, offset) => {
      const attributes = { type: "button", title: text, onclick: () => select(first + offset) };
      const isChosen = first + offset === sentence;
      const number = h("small", {}, formatCount(first + offset + 1));
      return h("button", { ...attributes, "aria-pressed": String(isChosen), tabindex: -1 }, number, " ", text);
    });
    setChildren(row, buttons);
    const chosen = buttons[Math.max(0, sentence - first)];
    chosen.tabIndex = 0;
    if (hadFocus) chosen.focus();
    row.scrollLeft = chosen.offsetLeft - row.offsetLeft - (row.clientWidth - chosen.offsetWidth) / 2;
  }

  return {
    element,
    /**
     * Show the sentences of the passage; "" hides them.
     * @param {ModelSummary} model
     * @param {string} passage
     * @param {number} sentence
     */
    async update(model, passage, sentence) {
      if (model.id === shown.model && passage === shown.passage && sentence === shown.sentence) return;
      const isSplit = model.id === shown.model && passage === shown.passage;
      Object.assign(shown, { model: model.id, passage, sentence });
      if (isSplit) return draw();
      split = { sentences: [] };
      draw();
      if (passage === "" || !source.live || !model.splits_sentences) return;
      try {
        const found = await source.sentences(model.id, passage);
        if (shown.passage !== passage || shown.model !== model.id) return;
        split = found;
        draw();
      } catch (error) {
        Object.assign(shown, { passage: "" }); // the next update tries again
        onError(error);
      }
    },
  };
}
