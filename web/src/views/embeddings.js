/**
 * Embeddings: the nearest neighbors of a token, words of several sentences on a map after each layer, and what the layers
 * do to the vectors of the text.
 */

/** @import { Mounted, State, Trace, View, ViewContext } from "../contract" */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { NeighborTable } from "./embeddings/neighbor_table.js";
import { ResidualMatrices } from "./embeddings/residual_matrices.js";
import { WordsInContext } from "./embeddings/words_in_context.js";

/** @type {View} */
export const view = {
  name: "embeddings",
  title: "Embeddings",
  fits: (model) => model === null || model.input === "text",
  mount: (element, context) => new EmbeddingsView(element, context),
};

/** @implements {Mounted} */
class EmbeddingsView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    this.neighbors = new NeighborTable(context);
    this.words = new WordsInContext(context);
    this.matrices = new ResidualMatrices(context.source);
    this.message = h("div");
    this.needsModel = h("p", { class: "note", role: "status" });
    this.figure = h(
      "div",
      {},
      this.neighbors.element,
      this.needsModel,
      this.words.element,
      this.matrices.element,
    );
    this.body = h(
      "div",
      { class: "embeddings-view" },
      explanation(
        "embeddings",
        "What does a model know about a word?",
        "A model looks each [[token]] up in a table: its static [[embedding]], the same in every sentence. Tokens that are used " +
          "alike have similar embeddings. Choose a token to see its neighbors.",
        "Then each [[layer]] mixes in what the other tokens say. Load the example and move the slider: the occurrences of " +
          "bank start as one point, and part into those of rivers and of money. Then add river and money to the words on the map.",
      ),
      this.figure,
    );
    setChildren(element, this.message, this.body);
    this.exports = {
      svg: () => domToSvg(this.figure),
      csv: () => ({ name: "embeddings", rows: [...this.neighbors.rows(), ...this.words.rows()] }),
    };
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    this.body.hidden = trace === null;
    const hint = h("p", { class: "note", role: "status" }, "Run a text in “Try it” to see the embeddings of its tokens.");
    setChildren(this.message, trace === null ? hint : null);
    if (trace === null) return;
    const { live } = this.context.source;
    this.needsModel.hidden = live;
    setChildren(
      this.needsModel,
      "Maps of words in their sentences, and the residual stream, need the running model, and this page is a standalone " +
        `file. Run: regard look ${trace.model.name}`,
    );
    this.neighbors.update(state, trace);
    this.words.element.hidden = this.matrices.element.hidden = !live;
    if (!live) return;
    this.words.update(state, trace);
    this.matrices.update(trace);
  }

  destroy() {
    this.neighbors.requests.cancel();
    this.words.leave();
    this.matrices.requests.cancel();
    this.matrices.matrices.destroy();
  }

  read() {
    const { live } = this.context.source;
    const parts = live ? [this.neighbors, this.words, this.matrices] : [this.neighbors];
    if (parts.some(({ settled }) => !settled)) return null;
    return {
      neighbors: this.neighbors.shown,
      sentences: this.words.sentences,
      vectors: this.words.shown,
      stream: this.matrices.shown,
    };
  }
}
