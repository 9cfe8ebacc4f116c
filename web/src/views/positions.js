/**
 * Positions: how each scheme tells a model where its words stand, how alike two positions are, and what a lecture asks of
 * such a code.
 */

import { h, put } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { ASKED, horseNumbers, horses } from "./parts/horses.js";
import { Latest } from "./parts/latest.js";
import { pictureOf } from "./parts/picture.js";
import { showProblem, showWaiting } from "./parts/problem.js";
import { scroller, section } from "./parts/section.js";
import { extremes, largest, tiles, tilesLegend } from "./parts/tiles.js";

/** @import { Mounted, Positions, State, View, ViewContext } from "../contract.d.ts" */
/** @import { Scheme } from "./parts/horses.js" */

/** How far length and width go. */
const [SHORTEST, LONGEST, WIDEST] = [8, 256, 256];
/** How wide and high a picture is, in pixels. */
const ROOM = 250;
/** How long a slider may move before it is computed, in milliseconds. */
const PATIENCE = 200;

/** @type {View} */
export const view = {
  name: "positions",
  title: "Positions",
  fits: () => true,
  mount: (element, context) => new PositionsView(element, context),
};

/** @implements {Mounted} */
class PositionsView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    this.answers = new Latest();
    this.horses = new Latest();
    /** @type {Positions | null} */
    this.shown = null;
    /** @type {ReturnType<typeof horseNumbers> | null} */
    this.numbers = null;
    this.theme = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.waiting = undefined;
    this.asked = "";
    this.length = slider("Words", SHORTEST, LONGEST, 1, (words) => context.store.set({ words }));
    this.width = slider("Numbers for each", 4, WIDEST, 2, (numbers) => context.store.set({ numbers }));
    this.cards = h("div", { class: "schemes" });
    this.table = h("div");
    this.example = h("div");
    put(
      element,
      h(
        "div",
        { class: "positions" },
        explanation(
          "positions",
          "Where does a word stand?",
          "Attention by itself sees a bag of words: it does not know which comes first. So each position gets " +
            "a code of its own, in one of these ways.",
          "Change the length and the width, and point at the pictures to read their numbers.",
        ),
        h("div", { class: "controls" }, this.length.element, this.width.element),
        section(
          "Each scheme as a picture",
          "First the codes: a row for each position, a column for each of its numbers. Then how alike two " +
            "positions are. Point at a picture, or use the arrow keys in it, to read its numbers.",
          this.cards,
        ),
        section(
          "What a code should be",
          "Five requirements of the lecture, computed for each scheme with codes of 8 numbers, made for 64 " +
            "words. Every cell says what was found.",
          this.table,
        ),
        section(
          "Dark horses",
          "The lecture's two sentences differ by one word. A good code gives the same words the same " +
            "distances in both.",
          this.example,
        ),
      ),
    );
    this.exports = {
      svg: () => pictureOf(this.cards),
      csv: () => ({ name: "positions", rows: this.rows() }),
    };
  }

  /** @param {State} state */
  update(state) {
    const theme = document.documentElement.dataset.theme ?? "";
    this.length.show(state.words);
    this.width.show(state.numbers);
    const wanted = `${this.length.value()} × ${this.width.value()}`;
    if (this.theme === "") {
      this.theme = theme || "none";
      this.asked = wanted;
      this.ask();
      this.askHorses();
      return;
    }
    if (wanted !== this.asked) {
      this.asked = wanted;
      this.later();
    }
    if (theme && theme !== this.theme) {
      this.theme = theme;
      if (this.shown) this.draw(this.shown);
    }
  }

  destroy() {
    clearTimeout(this.waiting);
    this.answers.forget();
    this.horses.forget();
  }

  read() {
    const { shown, numbers } = this;
    const there = shown?.length === this.length.value() && shown.width === this.width.value();
    return there && numbers ? { positions: shown, horses: numbers } : null;
  }

  later() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.ask(), PATIENCE);
  }

  ask() {
    if (!this.shown) showWaiting(this.cards, "Computing …");
    this.answers.take(
      this.context.source.positions(this.length.value(), this.width.value()),
      (found) => this.draw(found),
      (sentence) => {
        this.shown = null;
        put(this.table);
        showProblem(this.cards, `The codes could not be computed: ${sentence}`, () => this.ask());
      },
    );
  }

  askHorses() {
    const { source } = this.context;
    const [short, long] = ASKED.lengths;
    this.horses.take(
      Promise.all([short, long, ASKED.bits].map((length) => source.positions(length, ASKED.width))),
      ([one, other, many]) => {
        this.numbers = horseNumbers(one, other, many);
        put(this.example, horses(one, other, many));
      },
      (sentence) => showProblem(this.example, `The example could not be computed: ${sentence}`, () => this.askHorses()),
    );
  }

  /** @param {Positions} found */
  draw(found) {
    this.shown = found;
    put(this.cards, found.schemes.map(card));
    put(this.table, requirementTable(found.schemes));
  }

  /** Every code and every similarity, for a table. @returns {(string | number)[][]} */
  rows() {
    const head = ["scheme", "what", "position", "values"];
    const schemes = this.shown?.schemes ?? [];
    const lines = schemes.flatMap(({ name, encoding, similarity }) => [
      ...encoding.map((code, at) => [name, "code", at, ...code]),
      ...similarity.map((row, at) => [name, "similarity", at, ...row]),
    ]);
    return [head, ...lines];
  }
}

/** @param {Scheme} scheme */
function card(scheme) {
  return h(
    "article",
    { class: "panel scheme", "data-scheme": scheme.name },
    h("h3", {}, scheme.name),
    h("p", {}, scheme.about),
    h(
      "div",
      { class: "pair-of-pictures" },
      picture(scheme.encoding, "The codes", "number") ??
        h("p", { class: "note" }, "Nothing is put into the words themselves."),
      picture(scheme.similarity, scheme.similarity_of, "position") ??
        h("p", { class: "note" }, "There is nothing to compare."),
    ),
  );
}

/** @param {number[][]} values @param {string} caption @param {string} across */
function picture(values, caption, across) {
  if (values.length === 0 || values[0].length === 0) return null;
  const [low, high] = extremes(values);
  const most = largest(values);
  if (low === high) return h("p", { class: "note" }, `${caption}: ${low} everywhere, so no two can be told apart.`);
  return h(
    "figure",
    {},
    h("figcaption", {}, h("small", {}, caption[0].toUpperCase() + caption.slice(1))),
    tiles(values, {
      label: `${caption}.`,
      rowName: (row) => `position ${row}`,
      columnName: (column) => `${across} ${across === "number" ? column + 1 : column}`,
      room: ROOM,
      tall: ROOM,
      most,
    }),
    tilesLegend(Math.min(0, low), Math.max(0, high), most),
  );
}

/** @param {Scheme[]} schemes */
function requirementTable(schemes) {
  const names = schemes[0]?.requirements.map(({ name }) => name) ?? [];
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "scheme"),
    names.map((name) => h("th", { scope: "col" }, name)),
  );
  const rows = schemes.map((scheme) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, scheme.name),
      scheme.requirements.map(({ holds, found, name }) =>
        h(
          "td",
          { class: holds ? "holds" : "fails", "data-requirement": name, "data-holds": String(holds) },
          h("b", {}, holds ? "✓ yes" : "✕ no"),
          h("small", {}, found),
        ),
      ),
    ),
  );
  return scroller("Requirements", h("table", { class: "requirements" }, h("thead", {}, head), h("tbody", {}, rows)));
}

/** @param {string} label @param {number} min @param {number} max @param {number} step @param {(value: number) => void} hear */
function slider(label, min, max, step, hear) {
  const shown = h("output");
  const input = h("input", {
    type: "range",
    min,
    max,
    step,
    "aria-label": label,
    oninput: () => hear(Number(input.value)),
  });
  return {
    element: h("label", { class: "choice" }, h("span", {}, label), input, shown),
    value: () => Number(input.value),
    /** The nearest value there is. @param {number} value */
    show(value) {
      input.value = String(value);
      put(shown, input.value);
    },
  };
}
