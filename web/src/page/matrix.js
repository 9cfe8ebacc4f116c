/**
 * A matrix on a canvas: labels on both sides, a cursor for the mouse and for arrow keys, and room to scroll where there
 * are more cells than pixels. Only what is in sight is painted, so size does not matter.
 */

/** @import { Shown } from "./matrix_paint.js" */

import { h, s } from "./dom.js";
import { fill, margins, matrixDrawing, paintMatrix } from "./matrix_paint.js";
import { drawn } from "./sketch.js";

/**
 * @typedef {object} Asks
 * @property {string} label for who cannot see it
 * @property {(row: number, column: number) => string} say a cell in words
 * @property {(row: number) => void} pin
 */

/** A cell is never larger than this, unless asked for. */
const LARGE = 42;

/** @param {Asks} asks */
export function matrixPanel(asks) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const room = h("div", { class: "room" }, canvas);
  const scroller = h(
    "div",
    { class: "scroller", tabindex: 0, role: "application", "aria-roledescription": "matrix", "aria-label": asks.label },
    room,
  );
  const said = h("p", { class: "cell-said", "aria-live": "polite" });
  const larger = h("button", { type: "button", "aria-label": "Larger cells" }, "+");
  const smaller = h("button", { type: "button", "aria-label": "Smaller cells" }, "−");
  const zoom = h("div", { class: "zoom", "data-sketch": "no" }, smaller, larger);
  const element = h("div", { class: "matrix" }, h("div", { class: "matrix-head" }, said, zoom), scroller);

  /** @type {Shown | null} */
  let shown = null;
  /** One pixel for each cell. */
  const small = document.createElement("canvas");
  let factor = 1;
  let cell = 10;
  let margin = { left: 100, top: 100, right: 20 };
  let cursor = { row: -1, column: -1 };
  let painting = 0;

  larger.addEventListener("click", () => resize(factor * 1.5));
  smaller.addEventListener("click", () => resize(factor / 1.5));
  scroller.addEventListener("scroll", () => later());
  const watcher = new ResizeObserver(() => {
    measure();
    later();
  });
  watcher.observe(scroller);

  /** @param {number} to */
  function resize(to) {
    factor = Math.max(1, Math.min(40, to));
    measure();
    later();
  }

  function later() {
    cancelAnimationFrame(painting);
    painting = requestAnimationFrame(paint);
  }

  /** Sizes, from how much there is to show and how much room there is. */
  function measure() {
    const pen = canvas.getContext("2d");
    if (shown === null || pen === null || scroller.clientWidth === 0) return;
    margin = margins(pen, shown);
    const wide = (scroller.clientWidth - margin.left - margin.right) / Math.max(1, shown.columns.length);
    cell = Math.max(1, Math.min(LARGE, wide)) * factor;
    room.style.width = `${Math.floor(margin.left + cell * shown.columns.length + margin.right)}px`;
    room.style.height = `${Math.ceil(margin.top + cell * shown.rows.length + 8)}px`;
    smaller.disabled = factor <= 1;
    larger.disabled = cell >= 2 * LARGE;
  }

  const sight = () => ({ cell, margin, cursor, scrolled: { x: scroller.scrollLeft, y: scroller.scrollTop } });

  function paint() {
    const pen = canvas.getContext("2d");
    const size = { width: scroller.clientWidth, height: scroller.clientHeight };
    if (shown === null || pen === null || size.width === 0 || size.height === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      canvas.style.width = `${size.width}px`;
      canvas.style.height = `${size.height}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    paintMatrix(pen, size, small, shown, sight());
  }

  /**
   * @param {number} row
   * @param {number} column
   */
  function go(row, column) {
    if (shown === null) return;
    cursor = {
      row: Math.max(0, Math.min(shown.rows.length - 1, row)),
      column: Math.max(0, Math.min(shown.columns.length - 1, column)),
    };
    said.textContent = asks.say(cursor.row, cursor.column);
    later();
  }

  /** Scroll as far as the cursor is out of sight. */
  function follow() {
    const x = margin.left + cursor.column * cell;
    const y = margin.top + cursor.row * cell;
    if (x - scroller.scrollLeft < margin.left) scroller.scrollLeft = x - margin.left;
    if (x + cell - scroller.scrollLeft > scroller.clientWidth) scroller.scrollLeft = x + cell - scroller.clientWidth;
    if (y - scroller.scrollTop < margin.top) scroller.scrollTop = y - margin.top;
    if (y + cell - scroller.scrollTop > scroller.clientHeight) scroller.scrollTop = y + cell - scroller.clientHeight;
  }

  scroller.addEventListener("keydown", (event) => {
    if (shown === null) return;
    const { row, column } = cursor.row < 0 ? { row: Math.max(0, shown.pinnedRow), column: -1 } : cursor;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, shown.columns.length - 1],
      PageUp: [row - 10, column],
      PageDown: [row + 10, column],
    };
    const move = moves[event.key];
    if (move !== undefined) {
      event.preventDefault();
      go(...move);
      follow();
    } else if ((event.key === "Enter" || event.key === " ") && cursor.row >= 0) {
      event.preventDefault();
      asks.pin(cursor.row);
    }
  });
  /** @param {MouseEvent} event */
  const under = (event) => {
    const box = scroller.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const row = Math.floor((y - margin.top + scroller.scrollTop) / cell);
    const column = Math.floor((x - margin.left + scroller.scrollLeft) / cell);
    const inside = shown !== null && y > margin.top && row < shown.rows.length && column < shown.columns.length;
    return { row, column, inside, cells: x > margin.left };
  };
  scroller.addEventListener("pointermove", (event) => {
    const at = under(event);
    if (at.inside && at.cells && (at.row !== cursor.row || at.column !== cursor.column)) go(at.row, at.column);
  });
  scroller.addEventListener("click", (event) => {
    const at = under(event);
    if (at.inside) asks.pin(at.row);
  });
  drawn(scroller, () => (shown === null ? s("g", {}) : matrixDrawing(small, shown, sight())));

  return {
    element,
    /** @param {Shown} next */
    show(next) {
      const sizes = `${next.rows.length}x${next.columns.length}`;
      if (shown === null || sizes !== `${shown.rows.length}x${shown.columns.length}`) {
        cursor = { row: -1, column: -1 };
        factor = 1;
      }
      shown = next;
      said.textContent =
        cursor.row < 0 ? `${next.rowTitle}; ${next.columnTitle}.` : asks.say(cursor.row, cursor.column);
      fill(small, next);
      measure();
      cancelAnimationFrame(painting);
      paint();
    },
    destroy: () => watcher.disconnect(),
    read: () =>
      shown === null
        ? null
        : {
            rows: shown.rows.map((row) => row.label),
            columns: shown.columns.map((column) => column.label),
            values: Array.from(shown.matrix.values),
            top: shown.top,
            cell,
            left: margin.left - scroller.scrollLeft,
            above: margin.top - scroller.scrollTop,
          },
  };
}
