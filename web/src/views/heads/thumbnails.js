/**
 * All heads of an attention type as thumbnails: one row of small matrices per layer, or in another order. A click selects
 * a head; the button in its corner, or Space, overlays it on the others that are drawn as lines. Tags below say what a
 * head does, once that was measured.
 */

/** @import { Matrix, State, Trace, ViewContext } from "../../contract" */
/** @import { Head, MeasuredHeads } from "./roles/measured.js" */

import { currentTheme, hexToRgb, textColor, weightLimit } from "../../page/colors/scales.js";
import { h, setChildren } from "../../page/dom.js";
import { formatPercent, headName } from "../../page/format.js";
import { paintPixels } from "../../page/matrix_painter.js";
import { paletteColor } from "../../page/colors/palette.js";
import { headPlace, selectedHead } from "../../page/selected_heads.js";
import { aggregate } from "../../page/tokens.js";
import { addTooltip } from "../../page/tooltip.js";
import { causalMask, groupRowsAndColumns } from "./selection.js";

/** Rows and columns of a thumbnail at most. */
const MAX_SIZE = 64;
/** Heads in a row at most, where they are not in the order of the layers. */
const MAX_COLUMNS = 4;

/** @param {ViewContext} context */
export function thumbnailGrid(context) {
  const { store, source } = context;
  const grid = h("div", { class: "thumbnails", role: "grid" });
  const note = h("p", { class: "note", hidden: true });
  const element = h("div", {}, grid, note);
  let builtFor = "";
  /** The cell of each head, by "layer.head". @type {Map<string, HTMLElement>} */
  const cells = new Map();
  /** The heads in rows, as they are displayed. @type {Head[][]} */
  let layout = [];
  let arrangedFor = "";
  /** @type {MeasuredHeads | null} */
  let measured = null;
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
    const row = layout.findIndex((each) => each.some((other) => other.layer === layer && other.head === head));
    const column = layout[row]?.findIndex((other) => other.layer === layer && other.head === head) ?? -1;
    const target = layout[row + move[0]]?.[column + move[1]];
    const next = target === undefined ? null : selectButton(target.layer, target.head);
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
    store.set({ heads: heads.length === 1 && heads[0] === selected ? [] : heads, average_heads: false, rollout: false });
  }

  /** @param {Head[]} heads all of them */
  function build(heads) {
    cells.clear();
    for (const { layer, head } of heads) cells.set(`${layer}.${head}`, thumbnail(layer, head));
    arrangedFor = "";
  }

  /**
   * Put the heads into rows: one per layer, or where they are sorted or filtered, in their order.
   * @param {Head[]} heads @param {number} columns @param {boolean} byLayer
   */
  function arrange(heads, columns, byLayer) {
    const key = JSON.stringify([heads, columns, byLayer]);
    if (key === arrangedFor) return;
    arrangedFor = key;
    const rowCount = Math.ceil(heads.length / columns);
    layout = Array.from({ length: rowCount }, (_, row) => heads.slice(row * columns, (row + 1) * columns));
    const header = h(
      "div",
      { role: "row", class: "row header" },
      h("span", { role: "columnheader", class: "corner" }, h("span", { class: "visually-hidden" }, "Layer")),
      Array.from({ length: columns }, (_, head) =>
        h("span", { role: "columnheader", class: "name" }, h("span", { class: "visually-hidden" }, "Head "), head + 1),
      ),
    );
    const rows = layout.map((row, index) => {
      const [first, last] = [index * columns + 1, index * columns + row.length];
      const name = byLayer
        ? [h("span", {}, "Layer "), index + 1]
        : [h("span", { class: "visually-hidden" }, "Heads "), first === last ? first : `${first}–${last}`];
      return h(
        "div",
        { role: "row", class: "row" },
        h("span", { role: "rowheader", class: "name" }, name),
        row.map(({ layer, head }) => cells.get(`${layer}.${head}`)),
      );
    });
    const focused = document.activeElement;
    setChildren(grid, byLayer && header, ...rows);
    if (focused instanceof HTMLElement && grid.contains(focused)) focused.focus();
    const order = byLayer ? "one row per layer, one column per head" : "in the chosen order";
    grid.setAttribute("aria-label", `All heads: ${order}`);
    grid.style.setProperty("--heads", String(columns));
  }

  /**
   * The tags of all heads, and under each its name and number where they are sorted.
   * @param {string} sorted the measure that they are sorted by
   * @param {boolean} byLayer
   */
  function label(sorted, byLayer) {
    for (const [name, cell] of cells) {
      const [layer, head] = name.split(".").map(Number);
      const tags = measured?.tags({ layer, head }) ?? [];
      const role = measured?.role({ layer, head }, sorted);
      const caption = byLayer ? "" : `${layer + 1}.${head + 1}${role ? ` · ${formatPercent(role.value)}` : ""}`;
      const text = JSON.stringify([caption, tags.map((tag) => tag.name)]);
      if (cell.dataset.label === text) continue;
      cell.dataset.label = text;
      setChildren(
        /** @type {Element} */ (cell.querySelector(".head-tags")),
        caption && h("span", { class: "head-caption" }, caption),
        tags.map((tag) => h("span", { class: "head-tag" }, tag.tag)),
      );
      const does = tags.length === 0 ? "" : `: ${tags.map((tag) => (tag.is_error ? tag.tag : tag.label)).join(", ")}`;
      selectIn(cell).setAttribute("aria-label", `Layer ${layer + 1}, head ${head + 1}${does}`);
    }
  }

  /** What was measured of a head. @param {number} layer @param {number} head */
  function describe(layer, head) {
    const roles = measured?.heads.get(`${layer}.${head}`) ?? [];
    const title = headName(layer, head);
    const sorted = store.get().sort_heads;
    const shown = roles.filter((role) => role.tagged || role.measure === sorted);
    const lines = shown.flatMap((role) => {
      const measure = measured?.measure(role.measure);
      return measure === undefined ? [] : h("p", {}, measured?.describe(measure, role) ?? "");
    });
    const nothing = roles.some((role) => role.tagged) ? null : h("p", {}, "No tag: it beats no baseline clearly.");
    return [h("p", {}, h("strong", {}, title.charAt(0).toUpperCase() + title.slice(1))), ...lines, nothing];
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
      return store.set({ layer, head, heads: [], average_heads: false, rollout: false });
    });
    overlay.addEventListener("click", () => toggleOverlay(layer, head));
    addTooltip(select, () => (measured === null ? null : describe(layer, head)));
    const tags = h("div", { class: "head-tags", "aria-hidden": "true" });
    return h("div", { role: "gridcell", class: "head-cell" }, h("div", { class: "thumbnail" }, select, overlay), tags);
  }

  /** @param {Element} cell */
  const selectIn = (cell) => /** @type {HTMLElement} */ (cell.querySelector(".select-head"));

  /** @param {State} state @param {Trace} trace */
  function mark(state, trace) {
    const selected = `${state.layer}.${state.head}`;
    const showsLayer = typeof selectedHead(state, trace.model).head !== "number";
    for (const cell of [...cells.values()].flatMap((each) => each.querySelector(".thumbnail") ?? [])) {
      const select = /** @type {HTMLElement} */ (cell.querySelector(".select-head"));
      const overlay = /** @type {HTMLElement} */ (cell.querySelector(".overlay-head"));
      const [layer, head] = [Number(select.dataset.layer), Number(select.dataset.head)];
      const name = `${layer}.${head}`;
      const isSelected = showsLayer ? layer === state.layer : name === selected;
      const isOverlaid = !showsLayer && state.heads.includes(name);
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
      grid.querySelector("button.select-head")?.setAttribute("tabindex", "0");
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
    /** The displayed heads, in order. */
    order: () => layout.flat(),
    /**
     * @param {State} state
     * @param {Trace} trace
     * @param {MeasuredHeads | null} nowMeasured what was measured of this attention type's heads
     */
    update(state, trace, nowMeasured) {
      const spec = trace.model.attention.find((each) => each.attention_type === state.attention_type);
      if (spec === undefined) return;
      if (builtFor !== `${spec.layers}x${spec.heads}`) {
        build(allHeads(spec));
        builtFor = `${spec.layers}x${spec.heads}`;
        requested = "";
      }
      measured = nowMeasured;
      const heads = measured?.select(allHeads(spec), state.sort_heads, state.head_tag) ?? allHeads(spec);
      const byLayer = measured?.measure(state.sort_heads) === undefined && heads.length === cells.size;
      arrange(heads, byLayer ? spec.heads : Math.min(spec.heads, MAX_COLUMNS), byLayer);
      label(state.sort_heads, byLayer);
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
            matrices.forEach((matrix, head) =>
              paint(cells.get(`${layer}.${head}`), matrix, state, trace, maxWeight),
            ),
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

/** @param {{ layers: number, heads: number }} spec @returns {Head[]} */
function allHeads({ layers, heads }) {
  return Array.from({ length: layers * heads }, (_, index) => ({ layer: Math.floor(index / heads), head: index % heads }));
}

/**
 * @param {HTMLElement | undefined} cell
 * @param {Matrix} matrix
 * @param {State} state
 * @param {Trace} trace
 * @param {number} maxWeight
 */
function paint(cell, matrix, state, trace, maxWeight) {
  const canvas = cell?.querySelector("canvas");
  if (!canvas) return;
  const { rows, columns } = groupRowsAndColumns(trace, state, matrix.pooled);
  const grouped = matrix.pooled > 1 ? matrix : aggregate(matrix, rows, columns);
  paintPixels(canvas, { matrix: grouped, scale: "weight", limit: maxWeight, isMasked: causalMask(state.attention_type, rows, columns) });
  canvas.dataset.pooled = String(matrix.pooled);
}
