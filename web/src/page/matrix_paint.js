/**
 * How a matrix is painted: cells from one small picture with a pixel for each, lines between them where they are large
 * enough, labels leaning over the columns, and what is pinned or pointed at framed.
 */

/** @import { Matrix } from "../contract" */
/** @import { Group } from "./tokens.js" */

import { place, ramp, theme } from "./colour.js";
import { css, s } from "./dom.js";

/**
 * @typedef {object} Shown
 * @property {Matrix} matrix
 * @property {Group[]} rows
 * @property {Group[]} columns
 * @property {number} top the weight that has the last colour
 * @property {number} pinnedRow -1: none
 * @property {number} pinnedColumn
 * @property {(row: number, column: number) => boolean} [masked] what may not be looked at
 * @property {string} rowTitle what the rows are
 * @property {string} columnTitle
 */

/**
 * @typedef {object} Sight where things are, in pixels
 * @property {number} cell how large a cell is
 * @property {{ left: number, top: number, right: number }} margin room for labels
 * @property {{ x: number, y: number }} scrolled
 * @property {{ row: number, column: number }} cursor
 */

/** Labels are written where they have this much room. */
const READABLE = 13;
/** A label is no longer than this. */
const LABELS = 118;
const LEAN = -50 * (Math.PI / 180);

/**
 * A pixel for each weight.
 * @param {HTMLCanvasElement} canvas
 * @param {Pick<Shown, "matrix" | "top" | "masked">} shown
 */
export function fill(canvas, { matrix, top, masked }) {
  const { rows, columns, values } = matrix;
  canvas.width = Math.max(1, columns);
  canvas.height = Math.max(1, rows);
  const pen = canvas.getContext("2d");
  if (pen === null || rows * columns === 0) return;
  const image = pen.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = ramp(theme());
  for (let index = 0; index < pixels.length; index++) pixels[index] = colours[place(values[index], top)];
  if (masked !== undefined) {
    const grey = pixel(css("--masked"));
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) if (masked(row, column)) pixels[row * columns + column] = grey;
    }
  }
  pen.putImageData(image, 0, 0);
}

/**
 * Room for the labels of rows and columns.
 * @param {CanvasRenderingContext2D} pen
 * @param {Shown} shown
 * @returns {Sight["margin"]}
 */
export function margins(pen, shown) {
  pen.font = `13px ${css("--font")}`;
  /** @param {Group[]} groups */
  const longest = (groups) => {
    let most = 0;
    for (const group of groups) most = Math.max(most, pen.measureText(group.label).width);
    return Math.min(LABELS, most);
  };
  const across = longest(shown.columns);
  return {
    left: Math.ceil(longest(shown.rows)) + 14,
    top: Math.ceil(across * Math.sin(-LEAN)) + 24,
    right: Math.ceil(across * Math.cos(LEAN)) + 12,
  };
}

/**
 * What is in sight.
 * @param {CanvasRenderingContext2D} pen
 * @param {{ width: number, height: number }} size
 * @param {HTMLCanvasElement} small
 * @param {Shown} shown
 * @param {Sight} sight
 */
export function paintMatrix(pen, { width, height }, small, shown, sight) {
  const { cell, margin, scrolled } = sight;
  const corner = { left: margin.left - scrolled.x, top: margin.top - scrolled.y };
  pen.fillStyle = css("--panel");
  pen.fillRect(0, 0, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(margin.left, margin.top, width - margin.left, height - margin.top);
  pen.clip();
  pen.imageSmoothingEnabled = cell < 1;
  pen.drawImage(small, corner.left, corner.top, cell * shown.columns.length, cell * shown.rows.length);
  if (cell >= 9) grid(pen, corner, shown, cell);
  frames(pen, corner, shown, sight);
  pen.restore();
  rowLabels(pen, height, corner, shown, sight);
  columnLabels(pen, width, corner, shown, sight);
}

/**
 * The same as a drawing with real letters, for files.
 * @param {HTMLCanvasElement} small
 * @param {Shown} shown
 * @param {Sight} sight
 */
export function matrixDrawing(small, { rows, columns }, { cell, margin: { left, top } }) {
  const every = Math.max(1, Math.ceil(READABLE / cell));
  const image = { x: left, y: top, width: cell * columns.length, height: cell * rows.length };
  const lean = (LEAN * 180) / Math.PI;
  return s(
    "g",
    { "font-family": css("--font"), "font-size": 13, fill: css("--ink") },
    s("image", { href: small.toDataURL(), ...image, preserveAspectRatio: "none", "image-rendering": "pixelated" }),
    rows.map((row, number) => {
      const y = top + (number + 0.5) * cell + 4.5;
      return number % every === 0 && s("text", { x: left - 7, y, "text-anchor": "end" }, row.label);
    }),
    columns.map((column, number) => {
      const transform = `translate(${left + (number + 0.5) * cell + 3} ${top - 6}) rotate(${lean})`;
      return number % every === 0 && s("text", { transform }, column.label);
    }),
  );
}

/** @typedef {{ left: number, top: number }} Corner of the first cell */

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Corner} corner
 * @param {Shown} shown
 * @param {number} cell
 */
function grid(pen, { left, top }, { rows, columns }, cell) {
  pen.strokeStyle = css("--grid");
  pen.lineWidth = 1;
  pen.beginPath();
  for (let row = 0; row <= rows.length; row++) {
    pen.moveTo(left, Math.round(top + row * cell) + 0.5);
    pen.lineTo(left + columns.length * cell, Math.round(top + row * cell) + 0.5);
  }
  for (let column = 0; column <= columns.length; column++) {
    pen.moveTo(Math.round(left + column * cell) + 0.5, top);
    pen.lineTo(Math.round(left + column * cell) + 0.5, top + rows.length * cell);
  }
  pen.stroke();
}

/**
 * The pinned row or column, and the cursor.
 * @param {CanvasRenderingContext2D} pen
 * @param {Corner} corner
 * @param {Shown} shown
 * @param {Sight} sight
 */
function frames(pen, { left, top }, shown, { cell, cursor }) {
  pen.strokeStyle = css("--warn");
  pen.lineWidth = 2;
  if (shown.pinnedRow >= 0) pen.strokeRect(left, top + shown.pinnedRow * cell, cell * shown.columns.length, cell);
  if (shown.pinnedColumn >= 0) pen.strokeRect(left + shown.pinnedColumn * cell, top, cell, cell * shown.rows.length);
  if (cursor.row < 0) return;
  pen.strokeStyle = css("--ink");
  pen.strokeRect(left + cursor.column * cell, top + cursor.row * cell, cell, cell);
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {number} height
 * @param {Corner} corner
 * @param {Shown} shown
 * @param {Sight} sight
 */
function rowLabels(pen, height, { top }, shown, { cell, margin, cursor }) {
  const write = writer(pen, cell, shown.pinnedRow, cursor.row);
  pen.save();
  pen.beginPath();
  pen.rect(0, margin.top, margin.left, height - margin.top);
  pen.clip();
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  shown.rows.forEach((row, number) => {
    const y = top + (number + 0.5) * cell;
    if (y < margin.top - cell || y > height + cell) return;
    write(row, number, (text) => pen.fillText(text, margin.left - 7, y));
  });
  pen.restore();
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {number} width
 * @param {Corner} corner
 * @param {Shown} shown
 * @param {Sight} sight
 */
function columnLabels(pen, width, { left }, shown, { cell, margin, cursor }) {
  const write = writer(pen, cell, shown.pinnedColumn, cursor.column);
  pen.save();
  pen.beginPath();
  pen.rect(margin.left - 8, 0, width - margin.left + 8, margin.top);
  pen.clip();
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  shown.columns.forEach((column, number) => {
    const x = left + (number + 0.5) * cell;
    if (x < margin.left - cell || x > width + cell) return;
    write(column, number, (text) => {
      pen.save();
      pen.translate(x, margin.top - 6);
      pen.rotate(LEAN);
      pen.fillText(text, 0, 0);
      pen.restore();
    });
  });
  pen.restore();
}

/**
 * Writes those labels that there is room for, and always those that are pinned or pointed at.
 * @param {CanvasRenderingContext2D} pen
 * @param {number} cell
 * @param {number} pinned
 * @param {number} pointed
 * @returns {(group: Group, number: number, put: (text: string) => void) => void}
 */
function writer(pen, cell, pinned, pointed) {
  const every = Math.max(1, Math.ceil(READABLE / cell));
  const [ink, soft, strong, font] = ["--ink", "--ink-soft", "--warn", "--font"].map(css);
  return (group, number, put) => {
    if (number % every !== 0 && number !== pinned && number !== pointed) return;
    pen.fillStyle = number === pinned ? strong : group.special ? soft : ink;
    pen.font = `${number === pinned || number === pointed ? "700 " : ""}13px ${font}`;
    put(fitted(pen, group.label));
  };
}

/** @param {string} hex */
function pixel(hex) {
  const [red, green, blue] = [1, 3, 5].map((start) => Number.parseInt(hex.slice(start, start + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {string} text
 */
function fitted(pen, text) {
  if (pen.measureText(text).width <= LABELS) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(`${text.slice(0, end)}…`).width > LABELS) end -= 1;
  return `${text.slice(0, end)}…`;
}
