/**
 * The nearest neighbors of a token of the current text in the static embeddings.
 */

/** @import { Neighbors, Side, State, Token, Trace, ViewContext } from "../../contract" */

import { h, setChildren } from "../../page/dom.js";
import { formatCount, formatFixed } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { fractionBar } from "../shared/bars.js";
import { LatestRequest } from "../shared/latest_request.js";
import { showError, showLoading } from "../shared/placeholders.js";
import { scrollable, section } from "../shared/section.js";
import { tokenPages } from "../shared/token_pages.js";

export class NeighborTable {
  /** @param {ViewContext} context */
  constructor(context) {
    this.context = context;
    this.requests = new LatestRequest();
    this.rowsOfTokens = h("div", { class: "token-choice" });
    this.table = h("div");
    this.element = section(
      "Nearest neighbors",
      "Each token is a row of a table of vectors: its static embedding, before its position and the layers are added. Near " +
        "means a high cosine similarity: 1 for the same direction, 0 for unrelated ones. Choose a token.",
      this.rowsOfTokens,
      this.table,
    );
    /** @type {Neighbors | null} */
    this.shown = null;
    this.settled = false;
    this.key = "";
    this.chosen = "";
    /** @type {Trace | null} */
    this.trace = null;
  }

  /** @param {State} state @param {Trace} trace */
  update(state, trace) {
    const rows = tokenRows(trace);
    if (trace !== this.trace) this.drawTokens(rows);
    this.trace = trace;
    const known = rows.flatMap(({ side, tokens }) => tokens.map(({ id }) => `${side}.${id}`));
    const chosen = known.includes(state.neighbors_of) ? state.neighbors_of : longest(rows.slice(0, 1));
    this.chosen = chosen;
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (this.rowsOfTokens.querySelectorAll("[data-token]")))
      button.setAttribute("aria-pressed", String(button.dataset.token === chosen));
    const key = `${trace.model.id} ${chosen}`;
    if (chosen !== "" && key !== this.key) this.load(trace, chosen, key);
    if (chosen === "") this.settled = true;
  }

  /** @param {Trace} trace @param {string} chosen @param {string} key */
  load(trace, chosen, key) {
    this.key = key;
    this.settled = false;
    this.shown = null;
    const [side, id] = chosen.split(".");
    if (this.table.childElementCount === 0) showLoading(this.table, "Comparing embeddings …");
    this.requests.start(
      this.context.source.neighbors(trace.model.id, /** @type {Side} */ (side), Number(id)),
      (neighbors) => {
        this.shown = neighbors;
        this.settled = true;
        this.draw(neighbors);
      },
      (message) => {
        this.settled = true;
        showError(this.table, message, () => this.load(trace, chosen, key));
      },
    );
  }

  /** @param {{ side: Side, title: string, tokens: Token[] }[]} rows */
  drawTokens(rows) {
    setChildren(
      this.rowsOfTokens,
      rows.map(({ side, title, tokens }) => {
        const row = tokenPages(title, tokens.length, (index) => this.tokenButton(side, tokens[index]));
        return h("div", {}, h("h3", {}, title), row);
      }),
    );
  }

  /** @param {Side} side @param {Token} token */
  tokenButton(side, token) {
    const value = `${side}.${token.id}`;
    return h(
      "button",
      {
        type: "button",
        class: token.special ? "token special" : "token",
        "aria-pressed": String(value === this.chosen),
        "data-token": value,
        onclick: () => this.context.store.set({ neighbors_of: value }),
      },
      h("span", { class: "token-text" }, tokenLabel(token)),
    );
  }

  /** @param {Neighbors} shown */
  draw({ token, vocab_size, width, neighbors }) {
    const header = h(
      "tr",
      {},
      ["", "token", "tokenizer’s spelling", "cosine similarity"].map((title) => h("th", { scope: "col" }, title || "rank")),
    );
    const rows = neighbors.map(({ token: other, similarity }, index) =>
      h(
        "tr",
        { "data-neighbor": other.id, "data-similarity": similarity },
        h("td", { class: "soft" }, index + 1),
        h("th", { scope: "row" }, tokenLabel(other)),
        h("td", { class: "soft" }, h("code", {}, other.piece)),
        h("td", {}, fractionBar(similarity, formatFixed(similarity, 3))),
      ),
    );
    setChildren(
      this.table,
      h(
        "p",
        {},
        "Nearest to ",
        h("b", {}, tokenLabel(token)),
        ` (${token.piece}) among ${formatCount(vocab_size)} embeddings with ${formatCount(width)} dimensions:`,
      ),
      scrollable(
        "Nearest neighbors",
        h("table", { class: "numbers neighbors" }, h("thead", {}, header), h("tbody", {}, rows)),
      ),
    );
  }

  /** @returns {(string | number)[][]} */
  rows() {
    if (this.shown === null) return [];
    const { token, neighbors } = this.shown;
    return [
      ["token", "neighbor", "cosine similarity"],
      ...neighbors.map((each) => [token.piece, each.token.piece, each.similarity]),
    ];
  }
}

/**
 * The tokens to choose from. The text of a language model begins with its input, so that is not listed twice.
 * @param {Trace} trace
 * @returns {{ side: Side, title: string, tokens: Token[] }[]}
 */
function tokenRows({ source, target }) {
  const continues = target.length > 0 && source.every(({ id }, index) => target[index]?.id === id);
  /** @type {{ side: Side, title: string, tokens: Token[] }[]} */
  const rows = [];
  if (!continues) rows.push({ side: "source", title: "Tokens of the input", tokens: source });
  if (target.length > 0)
    rows.push({ side: "target", title: continues ? "Tokens of the text" : "Tokens of the output", tokens: target });
  return rows;
}

/** The first choice: a token that is probably a word. @param {{ side: Side, tokens: Token[] }[]} rows */
function longest(rows) {
  const words = rows.flatMap(({ side, tokens }) => tokens.map((token) => ({ side, token })));
  const sorted = words.sort((a, b) => length(b.token) - length(a.token));
  return sorted.length === 0 ? "" : `${sorted[0].side}.${sorted[0].token.id}`;
}

/** @param {Token} token */
function length(token) {
  return token.special ? 0 : token.text.trim().length;
}
