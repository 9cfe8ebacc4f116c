/**
 * One cell opened: the attention of one token in one head, computed before one's eyes with the model's own numbers.
 */

import { h, put } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { ends, label } from "../page/tokens.js";
import { SIDES } from "../page/words.js";
import { choiceList, radioRow } from "./parts/choose.js";
import { Latest } from "./parts/latest.js";
import { short } from "./parts/numbers.js";
import { pictureOf } from "./parts/picture.js";
import { showProblem, showWaiting } from "./parts/problem.js";
import { section } from "./parts/section.js";
import { stageTable } from "./parts/stages.js";
import { extremes, largest, tiles, tilesLegend } from "./parts/tiles.js";
import { workedExample } from "./parts/worked.js";

/** @import { Cell, CellRequest, Mounted, Side, State, Token, Trace, View, ViewContext } from "../contract.d.ts" */

/** @type {View} */
export const view = {
  name: "cell",
  title: "One cell",
  fits: (model) => model === null || model.attention.length > 0,
  mount: (element, context) => new OneCell(element, context),
};

/** @implements {Mounted} */
class OneCell {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store } = context;
    this.answers = new Latest();
    /** @type {Cell | null} */
    this.shown = null;
    this.drawn = "";
    this.waiting = false;
    this.side = radioRow("Attention", (value) =>
      store.set({ side: /** @type {Side} */ (value), layer: 0, head: 0, token: -1 }),
    );
    this.layer = choiceList("Layer", (value) => store.set({ layer: Number(value) }));
    this.head = choiceList("Head", (value) => store.set({ head: Number(value) }));
    this.query = choiceList("Token that looks", (value) => store.set({ token: Number(value), token_side: "query" }));
    this.controls = h(
      "div",
      { class: "controls" },
      this.side.element,
      this.layer.element,
      this.head.element,
      this.query.element,
    );
    this.body = h("div");
    put(
      element,
      h(
        "div",
        { class: "cell-view" },
        explanation(
          "cell",
          "One attention, opened",
          "One token asks a question, its query q. Every token has a key k and a value v. The better a key " +
            "fits the query, the more of its value is taken.",
          "Follow a line from left to right. Choose another token, head or layer; click a token's name to see " +
            "all its numbers.",
        ),
        this.controls,
        this.body,
      ),
    );
    this.exports = {
      svg: () => pictureOf(this.body),
      csv: () => ({ name: "cell", rows: this.rows() }),
    };
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    this.controls.hidden = trace === null;
    if (trace === null) {
      this.drawn = "";
      this.nothing("There is no attention to open yet. Write a text in the box and run it.");
      return;
    }
    const request = choose(state, trace);
    if (request === null) {
      this.drawn = "";
      this.nothing(
        "This trace has no attention in it: it is an old one, or of a model without any. Run the text again.",
      );
      return;
    }
    const { queries, keys } = ends(trace, request.side);
    this.offer(trace, request, queries);
    const wanted = JSON.stringify([trace.id, request, document.documentElement.dataset.theme]);
    if (wanted === this.drawn) return;
    this.drawn = wanted;
    if (!this.shown) showWaiting(this.body, "Computing …");
    this.waiting = true;
    this.answers.take(
      this.context.source.cell(trace.id, request),
      (cell) => this.draw(cell, queries, keys),
      (sentence) => {
        this.shown = null;
        this.waiting = false;
        this.drawn = "";
        showProblem(this.body, `This attention could not be opened: ${sentence}`, () =>
          this.update(this.context.store.get(), trace),
        );
      },
    );
  }

  destroy() {
    this.answers.forget();
  }

  read() {
    return this.waiting ? null : this.shown;
  }

  /** What can be chosen. @param {Trace} trace @param {CellRequest} request @param {Token[]} queries */
  offer(trace, request, queries) {
    const sides = trace.model.attention;
    const here = sides.find(({ side }) => side === request.side);
    const count = (/** @type {number} */ many) =>
      Array.from({ length: many }, (_, index) => ({ value: String(index), label: String(index + 1) }));
    this.side.show(
      sides.map(({ side }) => ({ value: side, label: SIDES[side].split(":")[0] })),
      request.side,
    );
    this.layer.show(count(here?.layers ?? 1), String(request.layer));
    this.head.show(count(here?.heads ?? 1), String(request.head));
    this.query.show(
      queries.map((token, index) => ({ value: String(index), label: `${index + 1} · ${label(token)}` })),
      String(request.query),
    );
  }

  /** @param {Cell} cell @param {Token[]} queries @param {Token[]} keys */
  draw(cell, queries, keys) {
    this.shown = cell;
    this.waiting = false;
    const query = queries[cell.request.query];
    put(
      this.body,
      section(
        "In one line",
        "The slides write it out for two words. The same with the two tokens that this one looks at most:",
        workedExample(cell, query, keys),
      ),
      section(
        "Step by step",
        `Every token that could be looked at, from its key to its part of the sum. ${scoreInWords(cell)} ` +
          "Bars are the numbers of a vector: blue up, orange down. Click a token to read all of them.",
        stageTable(cell, query, keys),
      ),
      section(
        "The same for all tokens",
        "Each row is a token that looks, each column one that is looked at. The framed row is the one above. " +
          "Grey may not be seen. Point at a tile, or use the arrow keys, to read it; a click or Enter opens its " +
          "row.",
        this.squares(cell, queries, keys),
      ),
    );
  }

  /** @param {Cell} cell @param {Token[]} queries @param {Token[]} keys */
  squares({ square, request }, queries, keys) {
    const name = (/** @type {Token | undefined} */ token) => (token ? label(token) : "–");
    const room = Math.min(380, this.body.clientWidth || 380);
    /** @type {[string, string, (number | null)[][]][]} */
    const pictures = [
      ["Scores", "query · key, scaled", square.scores],
      ["Masked scores", "what may not be seen taken out", square.masked],
      ["Weights", "each row a softmax: it adds up to 1", square.weights],
    ];
    return h(
      "div",
      { class: "squares" },
      pictures.map(([title, about, values]) => {
        const most = title === "Weights" ? 1 : largest(values);
        const [low, high] = title === "Weights" ? [0, 1] : extremes(values);
        return h(
          "figure",
          { "data-square": title },
          h("figcaption", {}, h("b", {}, title), " ", h("small", {}, about)),
          tiles(values, {
            label: `${title}: ${about}.`,
            rowName: (row) => name(queries[square.first_query + row]),
            columnName: (column) => name(keys[square.first_key + column]),
            labels: true,
            room,
            tall: 420,
            most,
            chosen: request.query - square.first_query,
            choose: (row) => this.context.store.set({ token: square.first_query + row, token_side: "query" }),
          }),
          Number.isFinite(low) ? tilesLegend(low, high, most) : null,
        );
      }),
    );
  }

  /** @param {string} sentence */
  nothing(sentence) {
    this.answers.forget();
    this.shown = null;
    put(this.body, h("p", { class: "note", role: "status" }, sentence));
  }

  /** Every number of the opened row, for a table. */
  rows() {
    const cell = this.shown;
    if (!cell) return [["key"]];
    const trace = this.context.trace();
    const keys = trace ? ends(trace, cell.request.side).keys : [];
    const wide = (/** @type {string} */ name, /** @type {number[]} */ values) =>
      values.map((_, index) => `${name}${index + 1}`);
    const head = [
      "key",
      "token",
      "product",
      "scaled",
      "masked",
      "weight",
      ...wide("k", cell.keys[0] ?? []),
      ...wide("v", cell.values[0] ?? []),
    ];
    const lines = cell.keys.map((key, index) => {
      const token = keys[index] ? label(keys[index]) : "";
      const scores = [cell.products[index], cell.scaled[index], cell.masked[index] ?? "", cell.weights[index]];
      return [index, token, ...scores, ...key, ...cell.values[index]];
    });
    return [
      head,
      ...lines,
      ["query", "", "", "", "", "", ...cell.query],
      ["result", "", "", "", "", "", ...cell.query.map(() => ""), ...cell.result],
    ];
  }
}

/** @param {Cell} cell */
function scoreInWords({ similarity, scale, query }) {
  if (similarity === "cosine")
    return "The score is the cosine between query and key, which are first made equally long.";
  const root = Math.abs(scale - 1 / Math.sqrt(query.length)) < 1e-6;
  const times = root ? `divided by √${query.length}, the square root of their width` : `times ${short(scale, 4)}`;
  return `The score is the product of query and key, ${times}.`;
}

/**
 * What the state asks for, as far as there is such a thing.
 * @param {State} state
 * @param {Trace} trace
 * @returns {CellRequest | null}
 */
function choose(state, trace) {
  const there = trace.model.attention.filter(({ side }) => ends(trace, side).queries.length > 0);
  const here = there.find(({ side }) => side === state.side) ?? there[0];
  if (here === undefined) return null;
  const { queries } = ends(trace, here.side);
  const asked = state.token_side === "query" && state.token >= 0 && state.token < queries.length;
  const usual = Math.min(queries.length - 1, Math.floor(queries.length / 2));
  return {
    side: here.side,
    layer: Math.min(Math.max(0, state.layer), here.layers - 1),
    head: Math.min(Math.max(0, state.head), here.heads - 1),
    query: asked ? state.token : usual,
  };
}
