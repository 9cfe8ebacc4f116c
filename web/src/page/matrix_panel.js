/**
 * A matrix of attention weights or signed numbers on a canvas: labels for rows and columns, a cursor for mouse and arrow
 * keys, zoom, and scrolling. Only the visible part is painted, so the size of the matrix does not matter.
 */

/** @import { MatrixView } from "./matrix_painter.js" */

import { h, s } from "./dom.js";
import { registerSvg } from "./dom_to_svg.js";
import { labelMargins, matrixToSvg, paintMatrix, paintPixels } from "./matrix_painter.js";

/**
 * @typedef {object} MatrixOptions
 * @property {string} label for screen readers
 * @property {(row: number, column: number) => string} describe a cell in words
 * @property {(row: number) => void} [pin] called for the row that a click or Enter selects
 * @property {number} [minWidth] the width of a cell, if there is a `maxHeight`; more cells than fit then scroll
 * @property {number} [maxHeight] the height of all cells; without it, cells are square, and there are buttons to zoom
 */

/** The size of a cell before zooming, at most. */
const MAX_CELL_SIZE = 42;
const MAX_SMALL_CELL_SIZE = 26;

/** @param {MatrixOptions} options */
export function matrixPanel({ label, describe, pin = () => {}, minWidth = 0, maxHeight }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const content = h("div", { class: "matrix-content" }, canvas);
  const scroller = h(
    "div",
    { class: "matrix-scroller", tabindex: 0, role: "application", "aria-roledescription": "matrix", "aria-label": label },
    content,
  );
  const cellValue = h("output", { class: "cell-value" });
  const larger = h("button", { type: "button", "aria-label": "Larger cells" }, "+");
  const smaller = h("button", { type: "button", "aria-label": "Smaller cells" }, "−");
  const zoomButtons = h("div", { class: "zoom", "data-no-export": true, hidden: maxHeight !== undefined }, smaller, larger);
  const element = h("div", { class: "matrix" }, h("div", { class: "matrix-header" }, cellValue, zoomButtons), scroller);

  /** @type {MatrixView | null} */
  let view = null;
  /** One pixel for each cell. */
  const bitmap = document.createElement("canvas");
  let zoom = 1;
  let cell = { width: 10, height: 10 };
  let margin = { left: 100, top: 100, right: 20 };
  let cursor = { row: -1, column: -1 };
  let frame = 0;

  larger.addEventListener("click", () => setZoom(zoom * 1.5));
  smaller.addEventListener("click", () => setZoom(zoom / 1.5));
  scroller.addEventListener("scroll", () => requestPaint());
  const observer = new ResizeObserver(() => {
    layout();
    requestPaint();
  });
  observer.observe(scroller);

  /** @param {number} value */
  function setZoom(value) {
    zoom = Math.max(1, Math.min(40, value));
    layout();
    requestPaint();
  }

  function requestPaint() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(paint);
  }

  /** Compute sizes from the number of cells and the available room. */
  function layout() {
    const context = canvas.getContext("2d");
    if (view === null || context === null || scroller.clientWidth === 0) return;
    margin = labelMargins(context, view, scroller.clientWidth);
    const [rows, columns] = [Math.max(1, view.rows.length), Math.max(1, view.columns.length)];
    const available = (scroller.clientWidth - margin.left - margin.right) / columns;
    const size = Math.max(1, Math.min(MAX_CELL_SIZE, available)) * zoom;
    cell =
      maxHeight === undefined
        ? { width: size, height: size }
        : { width: Math.max(minWidth, Math.min(MAX_SMALL_CELL_SIZE, available)), height: Math.min(MAX_SMALL_CELL_SIZE, maxHeight / rows) };
    content.style.width = `${Math.floor(margin.left + cell.width * columns + margin.right)}px`;
    content.style.height = `${Math.ceil(margin.top + cell.height * rows + 8)}px`;
    smaller.disabled = zoom <= 1;
    larger.disabled = cell.width >= 2 * MAX_CELL_SIZE;
  }

  const viewport = () => ({ cell, margin, cursor, scroll: { x: scroller.scrollLeft, y: scroller.scrollTop } });

  function paint() {
    const context = canvas.getContext("2d");
    const size = { width: scroller.clientWidth, height: scroller.clientHeight };
    if (view === null || context === null || size.width === 0 || size.height === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      canvas.style.width = `${size.width}px`;
      canvas.style.height = `${size.height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paintMatrix(context, size, bitmap, view, viewport());
  }

  /**
   * @param {number} row
   * @param {number} column
   */
  function moveCursor(row, column) {
    if (view === null) return;
    cursor = {
      row: Math.max(0, Math.min(view.rows.length - 1, row)),
      column: Math.max(0, Math.min(view.columns.length - 1, column)),
    };
    cellValue.textContent = describe(cursor.row, cursor.column);
    requestPaint();
  }

  function scrollToCursor() {
    const x = margin.left + cursor.column * cell.width;
    const y = margin.top + cursor.row * cell.height;
    const { clientWidth, clientHeight } = scroller;
    if (x - scroller.scrollLeft < margin.left) scroller.scrollLeft = x - margin.left;
    if (x + cell.width - scroller.scrollLeft > clientWidth) scroller.scrollLeft = x + cell.width - clientWidth;
    if (y - scroller.scrollTop < margin.top) scroller.scrollTop = y - margin.top;
    if (y + cell.height - scroller.scrollTop > clientHeight) scroller.scrollTop = y + cell.height - clientHeight;
  }

  scroller.addEventListener("keydown", (event) => {
    if (view === null) return;
    const { row, column } = cursor.row < 0 ? { row: Math.max(0, view.pinnedRow), column: -1 } : cursor;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, view.columns.length - 1],
      PageUp: [row - 10, column],
      PageDown: [row + 10, column],
    };
    const move = moves[event.key];
    if (move !== undefined) {
      event.preventDefault();
      moveCursor(...move);
      scrollToCursor();
    } else if ((event.key === "Enter" || event.key === " ") && cursor.row >= 0) {
      event.preventDefault();
      pin(cursor.row);
    }
  });
  /** @param {MouseEvent} event */
  const cellAt = (event) => {
    const box = scroller.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const row = Math.floor((y - margin.top + scroller.scrollTop) / cell.height);
    const column = Math.floor((x - margin.left + scroller.scrollLeft) / cell.width);
    const inside = view !== null && y > margin.top && row < view.rows.length && column < view.columns.length;
    return { row, column, inside, onCells: x > margin.left };
  };
  scroller.addEventListener("pointermove", (event) => {
    const at = cellAt(event);
    const moved = at.row !== cursor.row || at.column !== cursor.column;
    if (at.inside && at.onCells && moved) moveCursor(at.row, at.column);
  });
  scroller.addEventListener("click", (event) => {
    const at = cellAt(event);
    if (at.inside) pin(at.row);
  });
  registerSvg(scroller, () => (view === null ? s("g", {}) : matrixToSvg(bitmap, view, viewport())));

  return {
    element,
    /** @param {MatrixView} next @param {string} [hint] shown until a cell is pointed at */
    show(next, hint = "") {
      const shape = `${next.rows.length}x${next.columns.length}`;
      if (view === null || shape !== `${view.rows.length}x${view.columns.length}`) {
        cursor = { row: -1, column: -1 };
        zoom = 1;
      }
      view = next;
      cellValue.textContent = cursor.row < 0 ? hint : describe(cursor.row, cursor.column);
      paintPixels(bitmap, next);
      layout();
      cancelAnimationFrame(frame);
      paint();
    },
    destroy: () => observer.disconnect(),
    read: () =>
      view === null
        ? null
        : {
            rows: view.rows.map((row) => row.label),
            columns: view.columns.map((column) => column.label),
            values: Array.from(view.matrix.values),
            maxWeight: view.limit,
            cellSize: cell.width,
            left: margin.left - scroller.scrollLeft,
            top: margin.top - scroller.scrollTop,
          },
  };
}
