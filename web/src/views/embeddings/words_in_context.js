/**
 * Words in their sentences: the form for sentences, the map with its slider for the layers, and the similarities.
 */

/** @import { ContextualVectors, State, Trace, ViewContext } from "../../contract" */
/** @import { Grouped, Sentence } from "./sentences.js" */

import { paletteColor } from "../../page/colors/palette.js";
import { h, s, setChildren, uniqueId } from "../../page/dom.js";
import { dropDown } from "../shared/choices.js";
import { LatestRequest } from "../shared/latest_request.js";
import { showError, showLoading } from "../shared/placeholders.js";
import { section } from "../shared/section.js";
import { slider } from "../shared/slider.js";
import { EXAMPLE, listedWords, MAX_SENTENCES, readSentences, repeatedWords } from "./sentences.js";
import { Similarities } from "./similarities.js";
import { shape, WordMap } from "./word_map.js";

export class WordsInContext {
  /** @param {ViewContext} context */
  constructor(context) {
    this.context = context;
    const { store } = context;
    this.requests = new LatestRequest();
    const id = uniqueId("sentences");
    this.lines = h("textarea", { id, rows: 8, maxlength: 20_000, spellcheck: "false" });
    this.mapWords = h("input", { type: "text", maxlength: 500, autocomplete: "off", spellcheck: "false" });
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      store.set({ sentences: this.lines.value.trim(), map_words: this.mapWords.value.trim() });
    };
    this.form = h(
      "form",
      { class: "sentence-form", onsubmit: submit, "data-no-export": true },
      h("label", { for: id }, "Sentences to compare with the current text, one in a line. “# river” names a group."),
      this.lines,
      h("label", { class: "choice" }, h("span", {}, "Words on the map (empty: all)"), this.mapWords),
      h(
        "div",
        { class: "controls" },
        h("button", { type: "submit" }, "Show"),
        h("button", { type: "button", onclick: () => store.set(EXAMPLE) }, "Example: bank by a river, bank with money"),
      ),
    );
    this.word = dropDown("Compare the occurrences of", (word) => store.set({ word }));
    this.stage = slider("Layer", 0, 0, 1, (stage) => store.set({ stage }));
    this.controls = h("div", { class: "controls" }, this.stage.element, this.word.element);
    this.status = h("div");
    this.map = new WordMap(paletteColor);
    this.variance = h("p", { class: "note" });
    this.legend = h("ol", { class: "sentence-legend" });
    this.similarities = new Similarities();
    this.figure = h(
      "div",
      { class: "word-figure" },
      h("div", { class: "map-and-legend" }, h("div", {}, this.map.element, this.variance), this.legend),
      this.similarities.element,
    );
    this.element = section(
      "Words in their sentences",
      "The same word in several sentences, as the model sees it: in the static embeddings, with its position (the input of " +
        "layer 1), and after each layer. A word of several tokens has the mean of their vectors. The map shows the two " +
        "principal components of the vectors, normalized to a length of 1. Its scale is the same for all layers. The axes show what " +
        "differs most: among many words the words themselves, among the occurrences of one word their sentences.",
      this.form,
      this.controls,
      this.status,
      this.figure,
    );
    /** @type {ContextualVectors | null} */
    this.shown = null;
    /** @type {Sentence[]} */
    this.sentences = [];
    this.settled = false;
    this.key = "";
    this.drawn = "";
  }

  /** @param {State} state @param {Trace} trace */
  update(state, trace) {
    if (document.activeElement !== this.lines) this.lines.value = state.sentences;
    if (document.activeElement !== this.mapWords) this.mapWords.value = state.map_words;
    const grouped = readSentences(trace.request.text, state.sentences);
    const words = repeatedWords(grouped.sentences);
    const word = words.includes(state.word.toLowerCase()) ? state.word.toLowerCase() : (words[0] ?? "");
    this.word.element.hidden = words.length === 0;
    this.word.update(
      words.map((value) => ({ value, label: value })),
      word,
    );
    const request = { sentences: grouped.sentences, words: listedWords(state.map_words), word };
    const key = JSON.stringify([trace.model.id, request]);
    if (key !== this.key) this.load(trace, grouped, request, key);
    else this.draw(state, grouped, word);
  }

  /**
   * @param {Trace} trace
   * @param {Grouped} grouped
   * @param {{ sentences: Sentence[], words: string[], word: string }} request
   * @param {string} key
   */
  load(trace, grouped, { sentences, words, word }, key) {
    this.key = key;
    this.settled = false;
    this.shown = null;
    this.sentences = sentences;
    this.drawn = "";
    if (sentences.length === 0 || sentences.length > MAX_SENTENCES) {
      this.settled = true;
      this.figure.hidden = this.controls.hidden = true;
      const few = "The current text is too long for a map. Add some sentences.";
      showError(this.status, sentences.length === 0 ? few : `A map has at most ${MAX_SENTENCES} sentences; remove some.`);
      return;
    }
    showLoading(this.status, "Reading the sentences …");
    const request = { sentences, ...(words.length > 0 ? { words } : {}), ...(word === "" ? {} : { word }) };
    this.requests.start(
      this.context.source.contextualVectors(trace.model.id, request),
      (vectors) => {
        this.shown = vectors;
        this.settled = true;
        setChildren(this.status);
        this.figure.hidden = this.controls.hidden = false;
        this.draw(this.context.store.get(), grouped, word);
      },
      (message) => {
        this.settled = true;
        this.figure.hidden = this.controls.hidden = true;
        showError(this.status, message);
      },
    );
  }

  /** @param {State} state @param {Grouped} grouped @param {string} word */
  draw(state, { sentences, groups }, word) {
    const { shown } = this;
    if (shown === null) return;
    const last = shown.layers.length - 1;
    const stage = Math.max(0, Math.min(last, Math.trunc(state.stage)));
    const key = `${stage} ${document.documentElement.dataset.theme}`;
    if (key === this.drawn) return;
    this.drawn = key;
    this.stage.setMax(last);
    this.stage.show(stage, (index) => shown.layers[index].name);
    this.map.show(shown, sentences, stage, word);
    const { name, variance, points } = shown.layers[stage];
    const isOnePoint = points.every(([x, y]) => Math.hypot(x, y) < 1e-5);
    const percent = `the two axes have ${Math.round(100 * variance)} % of the variance`;
    setChildren(this.variance, `${name}: ${isOnePoint ? "all of these words have the same vector" : percent}.`);
    setChildren(
      this.legend,
      sentences.map(({ text, group }, index) => this.legendItem(text, group, index, groups)),
    );
    this.similarities.show(shown, groups, stage, word);
  }

  /** @param {string} text @param {number} group @param {number} index @param {string[]} groups */
  legendItem(text, group, index, groups) {
    const mark = s(
      "svg",
      { viewBox: "-8 -8 16 16", width: 16, height: 16, "aria-hidden": "true" },
      s("path", { d: shape(group), style: { fill: paletteColor(index) } }),
    );
    return h("li", {}, mark, h("span", {}, h("b", {}, index + 1), ` ${text} `, h("small", { class: "soft" }, groups[group])));
  }

  leave() {
    this.requests.cancel();
    this.map.leave();
    this.similarities.matrices.destroy();
  }

  /** The coordinates of all layers, as a table. @returns {(string | number)[][]} */
  rows() {
    const { shown } = this;
    if (shown === null) return [];
    const rows = shown.layers.flatMap(({ name, points }) =>
      points.map(([x, y], index) => {
        const { sentence, text } = shown.words[shown.shown[index]];
        return [name, sentence + 1, text, x, y];
      }),
    );
    return [["layer", "sentence", "word", "x", "y"], ...rows];
  }
}
