/**
 * Every head of a side at a glance: a row of small matrices for each layer. A click looks at one; the sign in its corner,
 * or Space, lays it over the others that are drawn as lines.
 */

/** @import { Matrix, State, Trace, ViewContext } from "../../contract" */

import { theme } from "../../page/colour.js";
import { h, put } from "../../page/dom.js";
import { fill } from "../../page/matrix_paint.js";
import { folded } from "../../page/tokens.js";
import { ahead, sides } from "./selection.js";

/** Rows and columns of a thumbnail at most. */
const SIZE = 64;

/** @param {ViewContext} context */
export function thumbnailGrid(context) {
  const { store, source } = context;
  const grid = h("div", {
    class: "thumbnails",
    role: "grid",
    "aria-label": "All heads: a row for each layer, a column for each head",
  });
  const note = h("p", { class: "note", hidden: true });
  const element = h("div", { class: "thumbnails-place" }, grid, note);
  let built = "";
  /** What was asked for, so that what comes late is not drawn. */
  let wanted = "";
  /** The weight that has the last colour: 1, or the largest that there is where all are small. */
  let top = 1;
  let settled = Promise.resolve();

  grid.addEventListener("keydown", (event) => {
    const cell = /** @type {Element} */ (event.target).closest("[data-head]");
    if (!(cell instanceof HTMLElement)) return;
    const [layer, head] = [Number(cell.dataset.layer), Number(cell.dataset.head)];
    if (event.key === " ") {
      event.preventDefault();
      return toggle(layer, head);
    }
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const next = find(layer + move[0], head + move[1]);
    if (next === null) return;
    for (const button of grid.querySelectorAll("button.look")) button.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  /** @param {number} layer @param {number} head */
  const find = (layer, head) =>
    /** @type {HTMLElement | null} */ (grid.querySelector(`button.look[data-layer="${layer}"][data-head="${head}"]`));

  /** @param {number} layer @param {number} head */
  function toggle(layer, head) {
    const state = store.get();
    const name = `${layer}.${head}`;
    const now =
      state.heads.length === 0 && name !== `${state.layer}.${state.head}`
        ? [`${state.layer}.${state.head}`]
        : state.heads;
    const next = now.includes(name) ? now.filter((each) => each !== name) : [...now, name];
    store.set({ heads: next.length === 1 && next[0] === `${state.layer}.${state.head}` ? [] : next, averaged: false });
  }

  /** @param {number} layers @param {number} heads */
  function build(layers, heads) {
    const head = h(
      "div",
      { role: "row", class: "row names" },
      h("span", { role: "columnheader", class: "corner" }, h("span", { class: "visually-hidden" }, "Layer")),
      Array.from({ length: heads }, (_, number) =>
        h(
          "span",
          { role: "columnheader", class: "name" },
          h("span", { class: "visually-hidden" }, "Head "),
          number + 1,
        ),
      ),
    );
    const rows = Array.from({ length: layers }, (_, layer) =>
      h(
        "div",
        { role: "row", class: "row" },
        h("span", { role: "rowheader", class: "name" }, h("span", {}, "Layer "), layer + 1),
        Array.from({ length: heads }, (_each, number) => {
          const look = h(
            "button",
            {
              type: "button",
              class: "look",
              "data-layer": layer,
              "data-head": number,
              tabindex: -1,
              "aria-label": `Layer ${layer + 1}, head ${number + 1}`,
            },
            h("canvas", { width: 1, height: 1, "aria-hidden": "true" }),
          );
          const over = h(
            "button",
            {
              type: "button",
              class: "over",
              tabindex: -1,
              "aria-label": `Lay layer ${layer + 1}, head ${number + 1} over the others`,
            },
            "+",
          );
          look.addEventListener("click", (event) => {
            if (event.shiftKey || event.metaKey || event.ctrlKey) return toggle(layer, number);
            return store.set({ layer, head: number, heads: [], averaged: false });
          });
          over.addEventListener("click", () => toggle(layer, number));
          return h("div", { role: "gridcell", class: "thumbnail" }, look, over);
        }),
      ),
    );
    put(grid, head, ...rows);
    grid.style.setProperty("--heads", String(heads));
  }

  /** @param {State} state */
  function mark(state) {
    const one = `${state.layer}.${state.head}`;
    for (const cell of grid.querySelectorAll(".thumbnail")) {
      const look = /** @type {HTMLElement} */ (cell.querySelector(".look"));
      const over = /** @type {HTMLElement} */ (cell.querySelector(".over"));
      const name = `${look.dataset.layer}.${look.dataset.head}`;
      const here = state.averaged ? Number(look.dataset.layer) === state.layer : name === one;
      const laid = !state.averaged && state.heads.includes(name);
      cell.classList.toggle("here", here);
      cell.classList.toggle("laid", laid);
      look.setAttribute("aria-pressed", String(here));
      over.setAttribute("aria-pressed", String(laid));
      over.textContent = laid ? "✓" : "+";
      const colour = context.colour(Number(look.dataset.layer), Number(look.dataset.head));
      over.style.setProperty("--head", colour);
      if (!grid.contains(document.activeElement)) look.tabIndex = name === one ? 0 : -1;
    }
    if (grid.querySelector('button.look[tabindex="0"]') === null) find(0, 0)?.setAttribute("tabindex", "0");
  }

  return {
    element,
    /** When all that was asked for is drawn. */
    settled: () => settled,
    top: () => top,
    /**
     * @param {State} state
     * @param {Trace} trace
     */
    show(state, trace) {
      const shape = trace.model.attention.find((each) => each.side === state.side);
      if (shape === undefined) return;
      if (built !== `${shape.layers}x${shape.heads}`) {
        build(shape.layers, shape.heads);
        built = `${shape.layers}x${shape.heads}`;
        wanted = "";
      }
      mark(state);
      const now = JSON.stringify([trace.id, state.side, state.merged, state.special, theme()]);
      if (now === wanted) return;
      wanted = now;
      const layers = Array.from({ length: shape.layers }, (_, layer) =>
        source.thumbnails(trace.id, state.side, layer, SIZE),
      );
      settled = Promise.all(layers).then(
        (found) => {
          if (now !== wanted) return;
          top = highest(found.flat());
          found.forEach((matrices, layer) =>
            matrices.forEach((matrix, head) => paint(find(layer, head), matrix, state, trace, top)),
          );
          say(found[0]?.[0]);
        },
        (problem) => {
          if (now !== wanted) return;
          wanted = "";
          context.say(problem.message, "error");
        },
      );
    },
  };

  /** @param {Matrix | undefined} matrix */
  function say(matrix) {
    note.hidden = matrix === undefined || matrix.pooled === 1;
    if (matrix !== undefined)
      note.textContent = `Small pictures: each dot stands for ${matrix.pooled} × ${matrix.pooled} tokens and shows the largest weight among them.`;
  }
}

/**
 * @param {HTMLElement | null} button
 * @param {Matrix} matrix
 * @param {State} state
 * @param {Trace} trace
 * @param {number} top
 */
function paint(button, matrix, state, trace, top) {
  const canvas = button?.querySelector("canvas");
  if (!canvas) return;
  const { rows, columns } = sides(trace, state, matrix.pooled);
  const shown = matrix.pooled > 1 ? matrix : folded(matrix, rows, columns);
  fill(canvas, { matrix: shown, top, masked: ahead(state.side, rows, columns) });
  canvas.dataset.pooled = String(matrix.pooled);
}

/**
 * Colours go up to 1, so that heads can be compared. Where no weight comes near, as in a long text, they go up to the
 * largest.
 * @param {Matrix[]} matrices
 */
function highest(matrices) {
  let most = 0;
  for (const { values } of matrices) for (const value of values) if (value > most) most = value;
  return most >= 0.25 || most === 0 ? 1 : Number(most.toPrecision(2));
}
