/**
 * A matrix on a canvas: labels for rows and columns, a cursor for mouse and arrow keys, zoom, and scrolling. Only the
 * visible part is painted, so the size of the matrix does not matter.
 */

/** @import { MatrixView } from "./matrix_painter.js" */

import { h, s } from "./dom.js";
import { registerSvg } from "./dom_to_svg.js";
import { labelMargins, matrixToSvg, paintMatrix, paintPixels } from "./matrix_painter.js";

/**
 * @typedef {object} MatrixOptions
 * @property {string} label for screen readers
 * @property {(row: number, column: number) => string} describe a cell in words
 * @property {(row: number) => void} pin
 */

/** The size of a cell before zooming, at most. */
const MAX_CELL_SIZE = 42;

/** @param {MatrixOptions} options */
export function matrixPanel({ label, describe, pin }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const content = h("div", { class: "matrix-content" }, canvas);
  const scroller = h(
    "div",
    { class: "matrix-scroller", tabindex: 0, role: "application", "aria-roledescription": "matrix", "aria-label": label },
    content,
  );
  const cellValue = h("p", { class: "cell-value", "aria-live": "polite" });
  const larger = h("button", { type: "button", "aria-label": "Larger cells" }, "+");
  const smaller = h("button", { type: "button", "aria-label": "Smaller cells" }, "−");
  const zoomButtons = h("div", { class: "zoom", "data-no-export": true }, smaller, larger);
  const element = h("div", { class: "matrix" }, h("div", { class: "matrix-header" }, cellValue, zoomButtons), scroller);

  /** @type {MatrixView | null} */
  let view = null;
  /** One pixel for each cell. */
  const bitmap = document.createElement("canvas");
  let zoom = 1;
  let cellSize = 10;
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
    const available = (scroller.clientWidth - margin.left - margin.right) / Math.max(1, view.columns.length);
    cellSize = Math.max(1, Math.min(MAX_CELL_SIZE, available)) * zoom;
    content.style.width = `${Math.floor(margin.left + cellSize * view.columns.length + margin.right)}px`;
    content.style.height = `${Math.ceil(margin.top + cellSize * view.rows.length + 8)}px`;
    smaller.disabled = zoom <= 1;
    larger.disabled = cellSize >= 2 * MAX_CELL_SIZE;
  }

  const viewport = () => ({ cellSize, margin, cursor, scroll: { x: scroller.scrollLeft, y: scroller.scrollTop } });

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
    const x = margin.left + cursor.column * cellSize;
    const y = margin.top + cursor.row * cellSize;
    const { clientWidth, clientHeight } = scroller;
    if (x - scroller.scrollLeft < margin.left) scroller.scrollLeft = x - margin.left;
    if (x + cellSize - scroller.scrollLeft > clientWidth) scroller.scrollLeft = x + cellSize - clientWidth;
    if (y - scroller.scrollTop < margin.top) scroller.scrollTop = y - margin.top;
    if (y + cellSize - scroller.scrollTop > clientHeight) scroller.scrollTop = y + cellSize - clientHeight;
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
    const row = Math.floor((y - margin.top + scroller.scrollTop) / cellSize);
    const column = Math.floor((x - margin.left + scroller.scrollLeft) / cellSize);
    const inside = view !== null && y > margin.top && row < view.rows.length && column < view.columns.length;
    return { row, column, inside, onCells: x > margin.left };
  };
  scroller.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    const moved = cell.row !== cursor.row || cell.column !== cursor.column;
    if (cell.inside && cell.onCells && moved) moveCursor(cell.row, cell.column);
  });
  scroller.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell.inside) pin(cell.row);
  });
  registerSvg(scroller, () => (view === null ? s("g", {}) : matrixToSvg(bitmap, view, viewport())));

  return {
    element,
    /** @param {MatrixView} next */
    show(next) {
      const shape = `${next.rows.length}x${next.columns.length}`;
      if (view === null || shape !== `${view.rows.length}x${view.columns.length}`) {
        cursor = { row: -1, column: -1 };
        zoom = 1;
      }
      view = next;
      cellValue.textContent =
        cursor.row < 0 ? `${next.rowTitle}; ${next.columnTitle}.` : describe(cursor.row, cursor.column);
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
            maxWeight: view.maxWeight,
            cellSize,
            left: margin.left - scroller.scrollLeft,
            top: margin.top - scroller.scrollTop,
          },
  };
}
