/**
 * Heads: who looks at whom. All of them small, one of them large, as lines between the words and as a matrix, and the row
 * of a word as the sum that it is.
 */

/** @import { Side, State, Trace, View } from "../contract" */
/** @import { Selection } from "./heads/selection.js" */
/** @import { Pin } from "./heads/lines.js" */

import { h, put } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { weightLegend } from "../page/legend.js";
import { matrixPanel } from "../page/matrix.js";
import { sketch } from "../page/sketch.js";
import { headName, weight } from "../page/words.js";
import { editRow } from "./heads/edit.js";
import { headControls } from "./heads/controls.js";
import { linesPanel } from "./heads/lines.js";
import { patchPanel } from "./heads/patches.js";
import { remarksOn, table } from "./heads/remarks.js";
import { ahead, select, sides } from "./heads/selection.js";
import { headKey, sumLine, sums } from "./heads/sum.js";
import { thumbnailGrid } from "./heads/thumbnails.js";

/** @type {Record<Side, { rows: string, columns: string, says: string }>} */
const READS = {
  encoder: { rows: "A row is a token that looks", columns: "a column is a token that it looks at", says: "looks at" },
  decoder: {
    rows: "A row is a token that was written",
    columns: "a column is one before it that it looks back at",
    says: "looks back at",
  },
  cross: {
    rows: "A row is a step of writing, named after the word it wrote",
    columns: "a column is a word that was read",
    says: "was written while looking at",
  },
};

/** @type {View} */
export const view = {
  name: "heads",
  title: "Heads",
  fits: (model) => model === null || model.attention.length > 0,
  mount(element, context) {
    const { store, source } = context;
    const controls = headControls(context);
    const thumbnails = thumbnailGrid(context);
    const edit = editRow(context);
    const reading = h("div", { class: "sums", "aria-live": "polite" });
    const remarks = h("div", { class: "remarks" });
    const lines = linesPanel({ pin, point: (pin) => readOut(pin) });
    const patches = patchPanel(pin);
    const name = h("h2", {});
    const legend = h("div", { class: "legend-place" });
    const matrix = matrixPanel({
      label: "Attention as a matrix. Arrow keys move from cell to cell, Enter pins the row.",
      say,
      pin: (row) => pin({ side: "query", group: row }),
    });
    const linesName = h("h2", {});
    const linesPart = h(
      "section",
      { class: "panel lines-panel", "aria-label": "As lines" },
      linesName,
      patches.element,
      lines.element,
      reading,
    );
    const matrixPart = h(
      "section",
      { class: "panel matrix-panel", "aria-label": "As a matrix" },
      name,
      legend,
      matrix.element,
    );
    const smallPart = h(
      "section",
      { class: "panel small-panel", "aria-label": "All heads" },
      h("h2", {}, "All heads"),
      h(
        "p",
        { class: "note" },
        "The stronger the colour, the more weight. Click a head to look at it; + lays several over each other (Space on the keyboard).",
      ),
      thumbnails.element,
    );
    const waiting = h("p", { class: "note" }, "Here the heads will be, as soon as the model has read something.");
    const body = h(
      "div",
      { class: "heads-body", hidden: true },
      h("div", { class: "heads-left" }, smallPart, h("div", { class: "panel" }, edit.element)),
      h("div", { class: "heads-right" }, remarks, linesPart, matrixPart),
    );
    element.append(
      explanation(
        "heads",
        "Where the model looks",
        "A model reads a word in the light of others. How much of each it takes in is called attention: for every word, weights on the words it looks at, which add up to 1.",
        "It does so many times at once. Each time is a head, and every head has learnt to look for something else. Choose a word on the left of the lines to see where it looks.",
      ),
      controls.element,
      waiting,
      body,
    );

    /** @type {Selection | null} */
    let selection = null;
    let wanted = "";
    let begun = 0;

    /** @param {Pin | null} chosen */
    function pin(chosen) {
      if (selection === null) return;
      if (chosen === null) return store.set({ token: -1 });
      const groups = chosen.side === "query" ? selection.rows : selection.columns;
      store.set({ token: groups[chosen.group]?.tokens[0] ?? -1, token_side: chosen.side });
    }

    /** @param {State} state @returns {Pin | null} */
    function pinned(state) {
      if (selection === null || state.token < 0) return null;
      const groups = state.token_side === "query" ? selection.rows : selection.columns;
      const group = groups.findIndex((each) => each.tokens.includes(state.token));
      return group < 0 ? null : { side: state.token_side, group };
    }

    /** @param {number} row @param {number} column */
    function say(row, column) {
      if (selection === null) return "";
      const { side } = store.get();
      const hidden = ahead(side, selection.rows, selection.columns)?.(row, column);
      const [from, to] = [selection.rows[row].label, selection.columns[column].label];
      if (hidden) return `“${from}” may not look at “${to}”: it comes later.`;
      return `“${from}” ${READS[side].says} “${to}”: ${weight(selection.main.matrix.values[row * selection.main.matrix.columns + column])}`;
    }

    /** @param {Pin | null} pointed what the mouse is on, before what is pinned */
    function readOut(pointed = null) {
      if (selection === null) return;
      const at = pointed ?? pinned(store.get());
      const over = selection.over;
      const colours = over.map(({ layer, head }) => colourOf(layer, head));
      if (at === null) {
        const keys = over.map(({ layer, head }, number) => headKey(headName(layer, head), colours[number]));
        return put(
          reading,
          h("p", { class: "note" }, "The strongest links. Choose a word to see its own."),
          h("p", { class: "head-keys" }, keys),
        );
      }
      if (at.side === "query" && selection.pooled > 1) return void readExactly(colours, pointed === null);
      if (at.side === "query") {
        const word = selection.rows[at.group].label;
        return put(
          reading,
          sums(selection, at.group).map((sum, number) => sumLine(word, sum, colours[number])),
        );
      }
      const looked = selection.columns[at.group].label;
      return put(
        reading,
        h(
          "p",
          { class: "note" },
          `Who looks at “${looked}”, and with how much weight. (Choose a word on the left to read its row as a sum.)`,
        ),
      );
    }

    /**
     * A row of a long text is several tokens' in the picture; what is read out is the row of one, from the source.
     * @param {string[]} colours
     * @param {boolean} isPinned
     */
    async function readExactly(colours, isPinned) {
      const trace = context.trace();
      if (selection === null || trace === null) return;
      if (!isPinned)
        return put(
          reading,
          h("p", { class: "note" }, `${selection.pooled} tokens stand here. Choose them to read the row of the first.`),
        );
      const { side, token } = store.get();
      const mine = selection;
      const rows = await Promise.all(
        mine.over.map(({ layer, head }) => source.row(trace.id, side, layer, head, token)),
      ).catch(() => null);
      if (rows === null || selection !== mine || store.get().token !== token) return;
      const { rows: queries, columns } = sides(trace, { side, merged: false, special: true }, 1);
      const over = mine.over.map((each, number) => ({ ...each, matrix: rows[number] }));
      const exact = sums({ ...mine, columns, over }, 0);
      put(
        reading,
        exact.map((sum, number) => sumLine(queries[token]?.label ?? "", sum, colours[number])),
      );
    }

    /** @param {number} layer @param {number | "mean"} head */
    const colourOf = (layer, head) => context.colour(layer, head === "mean" ? 0 : head);

    /** @param {State} state @param {Trace} trace */
    function draw(state, trace) {
      if (selection === null) return;
      const { main, rows, columns } = selection;
      const at = pinned(state);
      name.textContent = `${capital(headName(main.layer, main.head))} as a matrix`;
      put(
        legend,
        weightLegend(thumbnails.top()),
        state.side === "decoder" &&
          h("span", { class: "masked-key" }, h("span", { class: "spot" }), "may not be looked at: it comes later"),
      );
      put(
        remarks,
        remarksOn(state, trace, selection).map((text) => h("p", { class: "note" }, text)),
      );
      const colours = selection.over.map(({ layer, head }) => colourOf(layer, head));
      patches.show(trace, selection, colours, at);
      lines.element.hidden = !patches.element.hidden;
      linesName.textContent = lines.element.hidden ? "On the picture" : "Lines between words";
      if (patches.element.hidden) lines.show(selection, colours, state.threshold, at);
      readOut();
      matrix.show({
        matrix: main.matrix,
        rows,
        columns,
        top: thumbnails.top(),
        masked: ahead(state.side, rows, columns),
        pinnedRow: at?.side === "query" ? at.group : -1,
        pinnedColumn: at?.side === "key" ? at.group : -1,
        rowTitle: READS[state.side].rows,
        columnTitle: READS[state.side].columns,
      });
    }

    return {
      update(state, trace) {
        controls.show(state, trace);
        body.hidden = trace === null;
        waiting.hidden = trace !== null;
        if (trace === null) return;
        if (!trace.model.attention.some((each) => each.side === state.side)) return;
        thumbnails.show(state, trace);
        edit.show(trace);
        const now = JSON.stringify([
          trace.id,
          state.side,
          state.layer,
          state.averaged || state.head,
          state.heads,
          state.merged,
          state.special,
        ]);
        if (now === wanted && selection !== null) return draw(state, trace);
        if (now === wanted) return;
        wanted = now;
        begun = performance.now();
        delete body.dataset.painted;
        select(source, trace, state).then(
          (found) => {
            if (now !== wanted) return;
            selection = found;
            const before = thumbnails.top();
            draw(store.get(), trace);
            void thumbnails.settled().then(() => {
              if (now !== wanted) return;
              if (thumbnails.top() !== before) draw(store.get(), trace);
              body.dataset.painted = (performance.now() - begun).toFixed(0); // milliseconds, all heads included
            });
          },
          (problem) => {
            if (now !== wanted) return;
            wanted = "";
            context.say(problem.message, "error");
          },
        );
      },
      destroy() {
        lines.destroy();
        matrix.destroy();
      },
      exports: {
        svg: () => sketch(linesPart, matrixPart),
        csv: () => ({ name: "regard-attention", rows: table(selection, store.get().side) }),
      },
      read: () =>
        selection === null || body.dataset.painted === undefined
          ? null
          : {
              side: store.get().side,
              layer: selection.main.layer,
              head: selection.main.head,
              pooled: selection.pooled,
              matrix: matrix.read(),
              over: selection.over.map(({ layer, head }) => ({ layer, head })),
              lines: lines.read(),
              sums: [...reading.querySelectorAll("[data-sum]")].map((line) => line.textContent),
              milliseconds: Number(body.dataset.painted),
            },
    };
  },
};

/** @param {string} text */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
