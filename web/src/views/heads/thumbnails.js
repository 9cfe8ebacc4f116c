/**
 * All heads of an attention type as thumbnails: one row of small matrices per layer. A click selects a head; the button
 * in its corner, or Space, overlays it on the others that are drawn as lines.
 */

/** @import { Matrix, State, Trace, ViewContext } from "../../contract" */

import { currentTheme, hexToRgb, textColor, weightLimit } from "../../page/colors/scales.js";
import { h, setChildren } from "../../page/dom.js";
import { paintPixels } from "../../page/matrix_painter.js";
import { paletteColor } from "../../page/colors/palette.js";
import { headPlace } from "../../page/selected_heads.js";
import { aggregate } from "../../page/tokens.js";
import { causalMask, groupRowsAndColumns } from "./selection.js";

/** Rows and columns of a thumbnail at most. */
const MAX_SIZE = 64;

/** @param {ViewContext} context */
export function thumbnailGrid(context) {
  const { store, source } = context;
  const grid = h("div", {
    class: "thumbnails",
    role: "grid",
    "aria-label": "All heads: one row per layer, one column per head",
  });
  const note = h("p", { class: "note", hidden: true });
  const element = h("div", {}, grid, note);
  let builtFor = "";
  /** What was requested last; later responses to earlier requests are ignored. */
  let requested = "";
  let maxWeight = 1;
  let finished = Promise.resolve();

  grid.addEventListener("keydown", (event) => {
    const button = /** @type {Element} */ (event.target).closest("[data-head]");
    if (!(button instanceof HTMLElement)) return;
    const [layer, head] = [Number(button.dataset.layer), Number(button.dataset.head)];
    if (event.key === " ") {
      event.preventDefault();
      return toggleOverlay(layer, head);
    }
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const next = selectButton(layer + move[0], head + move[1]);
    if (next === null) return;
    for (const other of grid.querySelectorAll("button.select-head")) other.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  /** @type {(layer: number, head: number) => HTMLElement | null} */
  const selectButton = (layer, head) =>
    grid.querySelector(`button.select-head[data-layer="${layer}"][data-head="${head}"]`);

  /** @param {number} layer @param {number} head */
  function toggleOverlay(layer, head) {
    const state = store.get();
    const name = `${layer}.${head}`;
    const selected = `${state.layer}.${state.head}`;
    const before = state.heads.length === 0 && name !== selected ? [selected] : state.heads;
    const heads = before.includes(name) ? before.filter((each) => each !== name) : [...before, name];
    store.set({ heads: heads.length === 1 && heads[0] === selected ? [] : heads, average_heads: false });
  }

  /** @param {number} layers @param {number} heads */
  function build(layers, heads) {
    const header = h(
      "div",
      { role: "row", class: "row header" },
      h("span", { role: "columnheader", class: "corner" }, h("span", { class: "visually-hidden" }, "Layer")),
      Array.from({ length: heads }, (_, head) =>
        h("span", { role: "columnheader", class: "name" }, h("span", { class: "visually-hidden" }, "Head "), head + 1),
      ),
    );
    const rows = Array.from({ length: layers }, (_, layer) =>
      h(
        "div",
        { role: "row", class: "row" },
        h("span", { role: "rowheader", class: "name" }, h("span", {}, "Layer "), layer + 1),
        Array.from({ length: heads }, (_each, head) => thumbnail(layer, head)),
      ),
    );
    setChildren(grid, header, ...rows);
    grid.style.setProperty("--heads", String(heads));
  }

  /** @param {number} layer @param {number} head */
  function thumbnail(layer, head) {
    const select = h(
      "button",
      {
        type: "button",
        class: "select-head",
        "data-layer": layer,
        "data-head": head,
        tabindex: -1,
        "aria-label": `Layer ${layer + 1}, head ${head + 1}`,
      },
      h("canvas", { width: 1, height: 1, "aria-hidden": "true" }),
    );
    const overlay = h(
      "button",
      {
        type: "button",
        class: "overlay-head",
        tabindex: -1,
        "aria-label": `Overlay layer ${layer + 1}, head ${head + 1}`,
      },
      "+",
    );
    select.addEventListener("click", (event) => {
      if (event.shiftKey || event.metaKey || event.ctrlKey) return toggleOverlay(layer, head);
      return store.set({ layer, head, heads: [], average_heads: false });
    });
    overlay.addEventListener("click", () => toggleOverlay(layer, head));
    return h("div", { role: "gridcell", class: "thumbnail" }, select, overlay);
  }

  /** @param {State} state @param {Trace} trace */
  function mark(state, trace) {
    const selected = `${state.layer}.${state.head}`;
    for (const cell of grid.querySelectorAll(".thumbnail")) {
      const select = /** @type {HTMLElement} */ (cell.querySelector(".select-head"));
      const overlay = /** @type {HTMLElement} */ (cell.querySelector(".overlay-head"));
      const [layer, head] = [Number(select.dataset.layer), Number(select.dataset.head)];
      const name = `${layer}.${head}`;
      const isSelected = state.average_heads ? layer === state.layer : name === selected;
      const isOverlaid = !state.average_heads && state.heads.includes(name);
      cell.classList.toggle("selected", isSelected);
      cell.classList.toggle("overlaid", isOverlaid);
      select.setAttribute("aria-pressed", String(isSelected));
      overlay.setAttribute("aria-pressed", String(isOverlaid));
      const place = isOverlaid ? headPlace(state, trace.model, state.attention_type, layer, head) : -1;
      const color = place < 0 ? "" : paletteColor(place);
      overlay.textContent = place < 0 ? "+" : String(place + 1);
      overlay.style.backgroundColor = color;
      overlay.style.color = color && textColor(hexToRgb(color));
      if (!grid.contains(document.activeElement)) select.tabIndex = name === selected ? 0 : -1;
    }
    if (grid.querySelector('button.select-head[tabindex="0"]') === null)
      selectButton(0, 0)?.setAttribute("tabindex", "0");
  }

  /** @param {Matrix | undefined} matrix */
  function describePooling(matrix) {
    note.hidden = matrix === undefined || matrix.pooled === 1;
    if (matrix !== undefined)
      note.textContent = `The thumbnails are max-pooled: each pixel shows the largest weight among ${matrix.pooled} × ${matrix.pooled} tokens.`;
  }

  return {
    element,
    /** Resolves when all requested thumbnails are painted. */
    finished: () => finished,
    /** The weight that has the last color. */
    maxWeight: () => maxWeight,
    /**
     * @param {State} state
     * @param {Trace} trace
     */
    update(state, trace) {
      const spec = trace.model.attention.find((each) => each.attention_type === state.attention_type);
      if (spec === undefined) return;
      if (builtFor !== `${spec.layers}x${spec.heads}`) {
        build(spec.layers, spec.heads);
        builtFor = `${spec.layers}x${spec.heads}`;
        requested = "";
      }
      mark(state, trace);
      const key = JSON.stringify([
        trace.id,
        state.attention_type,
        state.merge_subwords,
        state.show_special,
        currentTheme(),
      ]);
      if (key === requested) return;
      requested = key;
      const layers = Array.from({ length: spec.layers }, (_, layer) =>
        source.thumbnails(trace.id, state.attention_type, layer, MAX_SIZE),
      );
      finished = Promise.all(layers).then(
        (loaded) => {
          if (key !== requested) return;
          maxWeight = weightLimit(loaded.flat().flatMap(({ values }) => values.reduce((a, b) => Math.max(a, b), 0)));
          loaded.forEach((matrices, layer) =>
            matrices.forEach((matrix, head) => paint(selectButton(layer, head), matrix, state, trace, maxWeight)),
          );
          describePooling(loaded[0]?.[0]);
        },
        (error) => {
          if (key !== requested) return;
          requested = "";
          context.notify(error.message, "error");
        },
      );
    },
  };
}

/**
 * @param {HTMLElement | null} button
 * @param {Matrix} matrix
 * @param {State} state
 * @param {Trace} trace
 * @param {number} maxWeight
 */
function paint(button, matrix, state, trace, maxWeight) {
  const canvas = button?.querySelector("canvas");
  if (!canvas) return;
  const { rows, columns } = groupRowsAndColumns(trace, state, matrix.pooled);
  const grouped = matrix.pooled > 1 ? matrix : aggregate(matrix, rows, columns);
  paintPixels(canvas, { matrix: grouped, scale: "weight", limit: maxWeight, isMasked: causalMask(state.attention_type, rows, columns) });
  canvas.dataset.pooled = String(matrix.pooled);
}
