/**
 * A heatmap of signed numbers with missing values, such as masked scores or positional encodings. The mouse and the arrow
 * keys read single values; a row can be selected.
 *
 * Attention weights of full texts have their own drawing: `page/matrix_panel.js`.
 */

import { cssVariable, h, setChildren } from "../../page/dom.js";
import { formatNumber, truncate } from "../../page/format.js";
import { fitLabel } from "../../page/tokens.js";
import { divergingColor } from "./diverging_colors.js";

/**
 * @typedef {object} HeatmapOptions
 * @property {string} label what the heatmap shows
 * @property {(row: number) => string} rowName
 * @property {(column: number) => string} columnName
 * @property {(row: number, column: number) => string} [describe] what a cell means, instead of its number
 * @property {boolean} [labels] whether to draw the names of rows and columns, if there is room
 * @property {number} [limit] the absolute value of the strongest color
 * @property {number} [maxWidth]
 * @property {number} [maxHeight]
 * @property {number} [selectedRow]
 * @property {(row: number) => void} [selectRow]
 */

/** @typedef {(number | null)[][]} Values */

/** Letters of a label at most: of a column, and of a row, which may be a step with two tokens. */
const [MAX_COLUMN_LABEL, MAX_ROW_LABEL] = [12, 22];
const [LETTER_WIDTH, FONT_SIZE] = [6.6, 11];
const COLUMN_LABEL_ANGLE = Math.PI / 3.2;

/** @param {Values} values @param {HeatmapOptions} options @returns {HTMLElement} */
export function heatmap(values, options) {
  const layout = computeLayout(values, options);
  const canvas = h("canvas", {
    tabindex: 0,
    role: "img",
    "aria-label": `${options.label} ${options.describe ? "" : `${describeValues(values)} `}Arrow keys read single values.`,
  });
  const valueText = h("output", { class: "heatmap-value" });
  paint(canvas, values, layout, options, null);
  /** @type {[number, number] | null} */
  let cursor = null;
  const moveCursor = (/** @type {[number, number] | null} */ next) => {
    cursor = next;
    paint(canvas, values, layout, options, cursor);
    if (!cursor) return;
    const [row, column] = cursor;
    const value = values[row][column];
    setChildren(
      valueText,
      `${options.rowName(row)} · ${options.columnName(column)}: `,
      h("b", {}, options.describe?.(row, column) ?? (value === null ? "masked" : formatNumber(value, 4))),
    );
  };
  canvas.addEventListener("mousemove", (event) => moveCursor(cellAt(event, canvas, layout) ?? cursor));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event, canvas, layout);
    if (cell) options.selectRow?.(cell[0]);
  });
  canvas.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && cursor) {
      event.preventDefault();
      options.selectRow?.(cursor[0]);
      return;
    }
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const [row, column] = cursor ? [cursor[0] + move[0], cursor[1] + move[1]] : [options.selectedRow ?? 0, 0];
    moveCursor([Math.min(layout.rows - 1, Math.max(0, row)), Math.min(layout.columns - 1, Math.max(0, column))]);
  });
  return h("div", { class: "heatmap" }, canvas, valueText);
}

/**
 * The color scale from the smallest to the largest value.
 * @param {number} lowest
 * @param {number} highest
 * @param {number} limit
 * @param {[string, string]} [labels] what stands at its ends
 */
export function heatmapLegend(lowest, highest, limit, labels = [formatNumber(lowest), formatNumber(highest)]) {
  const steps = [Array.from({ length: 48 }, (_, index) => lowest + ((highest - lowest) * index) / 47)];
  const ramp = paintPixels(steps, limit);
  ramp.className = "heatmap-ramp";
  ramp.setAttribute("aria-hidden", "true");
  return h("span", { class: "heatmap-legend" }, labels[0], ramp, labels[1]);
}

/** The largest absolute value; 1 if all are zero. @param {Values} values */
export function largestAbsolute(values) {
  let largest = 0;
  for (const row of values)
    for (const value of row) if (value !== null && Math.abs(value) > largest) largest = Math.abs(value);
  return largest || 1;
}

/** The smallest and the largest value. @param {Values} values @returns {[number, number]} */
export function valueRange(values) {
  let [lowest, highest] = [Infinity, -Infinity];
  for (const row of values) {
    for (const value of row) {
      if (value === null) continue;
      lowest = Math.min(lowest, value);
      highest = Math.max(highest, value);
    }
  }
  return [lowest, highest];
}

/**
 * @typedef {{ rows: number, columns: number, cellWidth: number, cellHeight: number, left: number, top: number, right: number }}
 * Layout
 */

/** @param {Values} values @param {HeatmapOptions} options @returns {Layout} */
function computeLayout(values, { labels, maxWidth = 300, maxHeight = 300, rowName, columnName }) {
  const [rows, columns] = [values.length, values[0]?.length ?? 0];
  let [left, top, right] = [0, 0, 0];
  if (labels && Math.min((maxWidth - 60) / columns, (maxHeight - 40) / rows) >= 9) {
    const longest = (/** @type {number} */ count, /** @type {(index: number) => string} */ name) =>
      Math.max(...Array.from({ length: count }, (_, index) => name(index).length));
    const columnLength = Math.min(MAX_COLUMN_LABEL, longest(columns, columnName));
    left = 8 + LETTER_WIDTH * Math.min(MAX_ROW_LABEL, longest(rows, rowName));
    top = 12 + LETTER_WIDTH * columnLength * Math.sin(COLUMN_LABEL_ANGLE);
    right = LETTER_WIDTH * columnLength * Math.cos(COLUMN_LABEL_ANGLE);
  }
  const cellWidth = Math.min(26, (maxWidth - left - right) / Math.max(1, columns));
  const cellHeight = Math.min(26, (maxHeight - top) / Math.max(1, rows));
  return { rows, columns, cellWidth, cellHeight, left, top, right };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Values} values
 * @param {Layout} layout
 * @param {HeatmapOptions} options
 * @param {[number, number] | null} cursor
 */
function paint(canvas, values, layout, options, cursor) {
  const { rows, columns, cellWidth, cellHeight, left, top, right } = layout;
  const [width, height] = [left + cellWidth * columns + right + 1, top + cellHeight * rows + 1];
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  [canvas.width, canvas.height] = [Math.ceil(width * ratio), Math.ceil(height * ratio)];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  if (!context || rows === 0 || columns === 0) return;
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  const pixels = paintPixels(values, options.limit ?? largestAbsolute(values));
  context.drawImage(pixels, left, top, cellWidth * columns, cellHeight * rows);
  context.fillStyle = cssVariable("--ink");
  context.strokeStyle = cssVariable("--ink");
  if (left > 0) paintLabels(context, layout, options, cssVariable("--font"));
  if (options.selectedRow !== undefined)
    context.strokeRect(left + 0.5, top + options.selectedRow * cellHeight + 0.5, cellWidth * columns - 1, cellHeight);
  if (cursor) {
    const [row, column] = cursor;
    context.lineWidth = 2;
    context.strokeRect(
      left + column * cellWidth,
      top + row * cellHeight,
      Math.max(3, cellWidth),
      Math.max(3, cellHeight),
    );
  }
}

/** @param {CanvasRenderingContext2D} context @param {Layout} layout @param {HeatmapOptions} options @param {string} font */
function paintLabels(context, layout, { rowName, columnName, selectedRow }, font) {
  const { rows, columns, cellWidth, cellHeight, left, top } = layout;
  context.textBaseline = "middle";
  for (let row = 0; row < rows; row += 1) {
    context.font = `${row === selectedRow ? "bold " : ""}${FONT_SIZE}px ${font}`;
    context.textAlign = "right";
    context.fillText(fitLabel(rowName(row), (text) => text.length <= MAX_ROW_LABEL), left - 4, top + (row + 0.5) * cellHeight);
  }
  context.font = `${FONT_SIZE}px ${font}`;
  context.textAlign = "left";
  for (let column = 0; column < columns; column += 1) {
    context.save();
    context.translate(left + (column + 0.5) * cellWidth, top - 4);
    context.rotate(-COLUMN_LABEL_ANGLE);
    context.fillText(truncate(columnName(column), MAX_COLUMN_LABEL), 0, 0);
    context.restore();
  }
}

/** A canvas with one pixel per value. @param {Values} values @param {number} limit */
function paintPixels(values, limit) {
  const [rows, columns] = [values.length, values[0].length];
  const canvas = h("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const image = context.createImageData(columns, rows);
  values.flat().forEach((value, index) => image.data.set([...divergingColor(value, limit), 255], 4 * index));
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * @param {MouseEvent} event
 * @param {HTMLCanvasElement} canvas
 * @param {Layout} layout
 * @returns {[number, number] | null}
 */
function cellAt(event, canvas, { rows, columns, cellWidth, cellHeight, left, top }) {
  const box = canvas.getBoundingClientRect();
  const scaleX = parseFloat(canvas.style.width) / box.width;
  const scaleY = parseFloat(canvas.style.height) / box.height;
  const column = Math.floor(((event.clientX - box.left) * scaleX - left) / cellWidth);
  const row = Math.floor(((event.clientY - box.top) * scaleY - top) / cellHeight);
  return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
}

/** @param {Values} values */
function describeValues(values) {
  const [lowest, highest] = valueRange(values);
  return Number.isFinite(lowest)
    ? `${values.length} by ${values[0].length} values from ${formatNumber(lowest)} to ${formatNumber(highest)}.`
    : "No values.";
}
