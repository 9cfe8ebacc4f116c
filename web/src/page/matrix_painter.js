/**
 * Painting a matrix: cells from a small bitmap with one pixel each, grid lines if the cells are large enough, rotated
 * column labels, and frames around pinned rows and columns and the cursor.
 */

/** @import { Scale } from "./colors/scales.js" */

import { colorIndex, scaleColors } from "./colors/scales.js";
import { cssVariable, h, s } from "./dom.js";
import { fitLabel } from "./tokens.js";

/** @typedef {{ label: string, special?: boolean }} Label a row or a column */
/** @typedef {{ rows: number, columns: number, values: ArrayLike<number | null> }} Values row by row; null: missing */

/**
 * @typedef {object} MatrixView what to paint
 * @property {Values} matrix
 * @property {Label[]} rows
 * @property {Label[]} columns
 * @property {Scale} scale
 * @property {number} limit the weight, or the absolute value, that has the last color
 * @property {number} pinnedRow -1: none
 * @property {number} pinnedColumn
 * @property {(row: number, column: number) => boolean} [isMasked]
 */

/**
 * @typedef {object} Viewport where things are, in pixels
 * @property {{ width: number, height: number }} cell
 * @property {{ left: number, top: number, right: number }} margin room for labels
 * @property {{ x: number, y: number }} scroll
 * @property {{ row: number, column: number }} cursor
 */

/** Labels need this much room. */
const LABEL_SPACING = 13;
/** The width of a label at most; that of a row, which may be a step with two tokens, and the part of the matrix that it may take. */
const [MAX_LABEL_WIDTH, MAX_ROW_LABEL_WIDTH, MAX_ROW_LABEL_SHARE] = [118, 190, 0.36];
/** Between the labels of rows and the edges. */
const ROW_LABEL_PADDING = 14;
const COLUMN_LABEL_ANGLE = -50 * (Math.PI / 180);

/**
 * Paint one pixel for each value.
 * @param {HTMLCanvasElement} canvas
 * @param {Pick<MatrixView, "matrix" | "scale" | "limit" | "isMasked">} view
 */
export function paintPixels(canvas, { matrix, scale, limit, isMasked }) {
  const { rows, columns, values } = matrix;
  canvas.width = Math.max(1, columns);
  canvas.height = Math.max(1, rows);
  const context = canvas.getContext("2d");
  if (context === null || rows * columns === 0) return;
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = scaleColors(scale);
  for (let index = 0; index < pixels.length; index++) pixels[index] = colors[colorIndex(scale, values[index], limit)];
  if (isMasked !== undefined) {
    const gray = colors[colorIndex(scale, null, limit)];
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) if (isMasked(row, column)) pixels[row * columns + column] = gray;
    }
  }
  context.putImageData(image, 0, 0);
}

/**
 * The room that the labels of rows and columns need.
 * @param {CanvasRenderingContext2D} context
 * @param {MatrixView} view
 * @param {number} width of the visible part
 * @returns {Viewport["margin"]}
 */
export function labelMargins(context, view, width) {
  context.font = `700 13px ${cssVariable("--font")}`; // as that of the cursor
  /** @param {Label[]} labels @param {number} limit */
  const maxWidth = (labels, limit) => {
    let largest = 0;
    for (const { label } of labels) largest = Math.max(largest, context.measureText(label).width);
    return Math.min(limit, largest);
  };
  const columnWidth = maxWidth(view.columns, MAX_LABEL_WIDTH);
  // Labels are turned, so the last one needs room on the right, too.
  const rowLimit = Math.max(MAX_LABEL_WIDTH, Math.min(MAX_ROW_LABEL_WIDTH, MAX_ROW_LABEL_SHARE * width));
  return {
    left: Math.ceil(maxWidth(view.rows, rowLimit)) + ROW_LABEL_PADDING,
    top: Math.ceil(columnWidth * Math.sin(-COLUMN_LABEL_ANGLE)) + 24,
    right: Math.ceil(columnWidth * Math.cos(COLUMN_LABEL_ANGLE)) + 12,
  };
}

/**
 * Paint the visible part.
 * @param {CanvasRenderingContext2D} context
 * @param {{ width: number, height: number }} size
 * @param {HTMLCanvasElement} bitmap one pixel per cell
 * @param {MatrixView} view
 * @param {Viewport} viewport
 */
export function paintMatrix(context, { width, height }, bitmap, view, viewport) {
  const { cell, margin, scroll } = viewport;
  const origin = { left: margin.left - scroll.x, top: margin.top - scroll.y };
  context.clearRect(0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(margin.left, margin.top, width - margin.left, height - margin.top);
  context.clip();
  context.imageSmoothingEnabled = Math.min(cell.width, cell.height) < 1;
  context.drawImage(bitmap, origin.left, origin.top, cell.width * view.columns.length, cell.height * view.rows.length);
  if (Math.min(cell.width, cell.height) >= 9) paintGrid(context, origin, view, cell);
  paintFrames(context, origin, view, viewport);
  context.restore();
  paintRowLabels(context, height, origin, view, viewport);
  paintColumnLabels(context, width, origin, view, viewport);
}

/**
 * The same as SVG with text, for files.
 * @param {HTMLCanvasElement} bitmap
 * @param {MatrixView} view
 * @param {Viewport} viewport
 */
export function matrixToSvg(bitmap, { rows, columns }, { cell, margin: { left, top } }) {
  const image = { x: left, y: top, width: cell.width * columns.length, height: cell.height * rows.length };
  const angle = (COLUMN_LABEL_ANGLE * 180) / Math.PI;
  const context = h("canvas", {}).getContext("2d");
  if (context !== null) context.font = `13px ${cssVariable("--font")}`;
  /** The part of a label that fits; a program that shows the file has all of it as a tooltip. @param {string} label @param {number} width */
  const text = (label, width) => {
    const shown = context === null ? label : fitText(context, label, width);
    return [shown, shown === label ? null : s("title", {}, label)];
  };
  return s(
    "g",
    { "font-family": cssVariable("--font"), "font-size": 13, fill: cssVariable("--ink") },
    s("image", { href: bitmap.toDataURL(), ...image, preserveAspectRatio: "none", "image-rendering": "pixelated" }),
    rows.map((row, index) => {
      const y = top + (index + 0.5) * cell.height + 4.5;
      return hasLabel(index, cell.height) && s("text", { x: left - 7, y, "text-anchor": "end" }, text(row.label, left - ROW_LABEL_PADDING));
    }),
    columns.map((column, index) => {
      const transform = `translate(${left + (index + 0.5) * cell.width + 3} ${top - 6}) rotate(${angle})`;
      return hasLabel(index, cell.width) && s("text", { transform }, text(column.label, MAX_LABEL_WIDTH));
    }),
  );
}

/** @typedef {{ left: number, top: number }} Origin the upper left corner of the first cell */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Origin} origin
 * @param {MatrixView} view
 * @param {Viewport["cell"]} cell
 */
function paintGrid(context, { left, top }, { rows, columns }, cell) {
  context.strokeStyle = cssVariable("--grid");
  context.lineWidth = 1;
  context.beginPath();
  for (let row = 0; row <= rows.length; row++) {
    context.moveTo(left, Math.round(top + row * cell.height) + 0.5);
    context.lineTo(left + columns.length * cell.width, Math.round(top + row * cell.height) + 0.5);
  }
  for (let column = 0; column <= columns.length; column++) {
    context.moveTo(Math.round(left + column * cell.width) + 0.5, top);
    context.lineTo(Math.round(left + column * cell.width) + 0.5, top + rows.length * cell.height);
  }
  context.stroke();
}

/**
 * Frame the pinned row or column, and the cursor.
 * @param {CanvasRenderingContext2D} context
 * @param {Origin} origin
 * @param {MatrixView} view
 * @param {Viewport} viewport
 */
function paintFrames(context, { left, top }, view, { cell, cursor }) {
  const [width, height] = [cell.width * view.columns.length, cell.height * view.rows.length];
  context.strokeStyle = cssVariable("--warn");
  context.lineWidth = 2;
  if (view.pinnedRow >= 0) context.strokeRect(left, top + view.pinnedRow * cell.height, width, cell.height);
  if (view.pinnedColumn >= 0) context.strokeRect(left + view.pinnedColumn * cell.width, top, cell.width, height);
  if (cursor.row < 0) return;
  context.strokeStyle = cssVariable("--ink");
  const [x, y] = [left + cursor.column * cell.width, top + cursor.row * cell.height];
  context.strokeRect(x, y, Math.max(3, cell.width), Math.max(3, cell.height));
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} height
 * @param {Origin} origin
 * @param {MatrixView} view
 * @param {Viewport} viewport
 */
function paintRowLabels(context, height, { top }, view, { cell, margin, cursor }) {
  const paintLabel = labelPainter(context, margin.left - ROW_LABEL_PADDING, cell.height, view.pinnedRow, cursor.row);
  context.save();
  context.beginPath();
  context.rect(0, margin.top - LABEL_SPACING / 2, margin.left, height - margin.top);
  context.clip();
  context.textBaseline = "middle";
  context.textAlign = "right";
  view.rows.forEach((row, index) => {
    const y = top + (index + 0.5) * cell.height;
    if (y < margin.top - cell.height || y > height + cell.height) return;
    paintLabel(row, index, (text) => context.fillText(text, margin.left - 7, y));
  });
  context.restore();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {Origin} origin
 * @param {MatrixView} view
 * @param {Viewport} viewport
 */
function paintColumnLabels(context, width, { left }, view, { cell, margin, cursor }) {
  const paintLabel = labelPainter(context, MAX_LABEL_WIDTH, cell.width, view.pinnedColumn, cursor.column);
  context.save();
  context.beginPath();
  context.rect(margin.left - 8, 0, width - margin.left + 8, margin.top);
  context.clip();
  context.textBaseline = "middle";
  context.textAlign = "left";
  view.columns.forEach((column, index) => {
    const x = left + (index + 0.5) * cell.width;
    if (x < margin.left - cell.width || x > width + cell.width) return;
    paintLabel(column, index, (text) => {
      context.save();
      context.translate(x, margin.top - 6);
      context.rotate(COLUMN_LABEL_ANGLE);
      context.fillText(text, 0, 0);
      context.restore();
    });
  });
  context.restore();
}

/**
 * Paints the labels that there is room for, and always that of the pinned group and of the cursor.
 * @param {CanvasRenderingContext2D} context
 * @param {number} width of a label at most
 * @param {number} cellSize
 * @param {number} pinned
 * @param {number} cursor
 * @returns {(group: Label, index: number, paint: (text: string) => void) => void}
 */
function labelPainter(context, width, cellSize, pinned, cursor) {
  const [normal, special, highlighted, font] = ["--ink", "--ink-soft", "--warn", "--font"].map(cssVariable);
  return (group, index, paint) => {
    if (!hasLabel(index, cellSize) && index !== pinned && index !== cursor) return;
    context.fillStyle = index === pinned ? highlighted : group.special ? special : normal;
    context.font = `${index === pinned || index === cursor ? "700 " : ""}13px ${font}`;
    paint(fitText(context, group.label, width));
  };
}

/** @param {CanvasRenderingContext2D} context @param {string} label @param {number} width */
function fitText(context, label, width) {
  return fitLabel(label, (text) => context.measureText(text).width <= Math.max(width, 1));
}

/** Whether there is room for the label of a row or column. @param {number} index @param {number} cellSize */
function hasLabel(index, cellSize) {
  return index % Math.max(1, Math.ceil(LABEL_SPACING / cellSize)) === 0;
}
