/**
 * A table of numbers as a picture: a tile each, coloured by sign and size, grey where there is none. Mouse and arrow keys
 * read the number under them; a row can be chosen.
 *
 * It is for scores and codes, which have signs and gaps. Attention weights of whole texts have a drawing of their own.
 */

import { css, h, put } from "../../page/dom.js";
import { short } from "./numbers.js";
import { signedColour } from "./signed.js";

/**
 * @typedef {object} TilesOptions
 * @property {string} label what the picture shows
 * @property {(row: number) => string} rowName
 * @property {(column: number) => string} columnName
 * @property {boolean} [labels] whether names stand beside the tiles where there is room
 * @property {number} [most] the size that has the strongest colour
 * @property {number} [room] how wide it may be
 * @property {number} [tall] how high it may be
 * @property {number} [chosen] a row that is marked
 * @property {(row: number) => void} [choose]
 */

/** @typedef {(number | null)[][]} Values */

const [LETTER, SMALL] = [6.6, 11];
/** How far names of columns are turned. */
const TURN = Math.PI / 3.2;

/** @param {Values} values @param {TilesOptions} options @returns {HTMLElement} */
export function tiles(values, options) {
  const shape = layout(values, options);
  const canvas = h("canvas", {
    tabindex: 0,
    role: "img",
    "aria-label": `${options.label} ${range(values)} Arrow keys read the numbers.`,
  });
  const read = h("output", { class: "tiles-read" });
  paint(canvas, values, shape, options, null);
  /** @type {[number, number] | null} */
  let at = null;
  const look = (/** @type {[number, number] | null} */ next) => {
    at = next;
    paint(canvas, values, shape, options, at);
    if (!at) return;
    const value = values[at[0]][at[1]];
    put(
      read,
      `${options.rowName(at[0])} · ${options.columnName(at[1])}: `,
      h("b", {}, value === null ? "may not be seen" : short(value, 4)),
    );
  };
  const under = (/** @type {MouseEvent} */ event) => place(event, canvas, shape);
  canvas.addEventListener("mousemove", (event) => look(under(event) ?? at));
  canvas.addEventListener("click", (event) => {
    const found = under(event);
    if (found) options.choose?.(found[0]);
  });
  canvas.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && at) {
      event.preventDefault();
      options.choose?.(at[0]);
      return;
    }
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const [row, column] = at ? [at[0] + move[0], at[1] + move[1]] : [options.chosen ?? 0, 0];
    look([Math.min(shape.rows - 1, Math.max(0, row)), Math.min(shape.columns - 1, Math.max(0, column))]);
  });
  return h("div", { class: "tiles" }, canvas, read);
}

/**
 * @typedef {{ rows: number, columns: number, wide: number, high: number, left: number, top: number, right: number }}
 * Shape
 */

/** @param {Values} values @param {TilesOptions} options @returns {Shape} */
function layout(values, { labels, room = 300, tall = 300, rowName, columnName }) {
  const [rows, columns] = [values.length, values[0]?.length ?? 0];
  let [left, top, right] = [0, 0, 0];
  if (labels && Math.min((room - 60) / columns, (tall - 40) / rows) >= 9) {
    const longest = (/** @type {number} */ count, /** @type {(at: number) => string} */ name) =>
      Math.max(...Array.from({ length: count }, (_, at) => Math.min(12, name(at).length)));
    left = 8 + LETTER * longest(rows, rowName);
    top = 12 + LETTER * longest(columns, columnName) * Math.sin(TURN);
    right = LETTER * longest(columns, columnName) * Math.cos(TURN);
  }
  const wide = Math.min(26, (room - left - right) / Math.max(1, columns));
  const high = Math.min(26, (tall - top) / Math.max(1, rows));
  return { rows, columns, wide, high, left, top, right };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Values} values
 * @param {Shape} shape
 * @param {TilesOptions} options
 * @param {[number, number] | null} at
 */
function paint(canvas, values, shape, options, at) {
  const { rows, columns, wide, high, left, top, right } = shape;
  const [width, height] = [left + wide * columns + right + 1, top + high * rows + 1];
  const sharp = Math.min(2, window.devicePixelRatio || 1);
  [canvas.width, canvas.height] = [Math.ceil(width * sharp), Math.ceil(height * sharp)];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ink = canvas.getContext("2d");
  if (!ink || rows === 0 || columns === 0) return;
  ink.scale(sharp, sharp);
  ink.imageSmoothingEnabled = false;
  ink.drawImage(pixels(values, options.most ?? largest(values)), left, top, wide * columns, high * rows);
  ink.fillStyle = css("--ink");
  ink.strokeStyle = css("--ink");
  if (left > 0) names(ink, shape, options, css("--font"));
  if (options.chosen !== undefined)
    ink.strokeRect(left + 0.5, top + options.chosen * high + 0.5, wide * columns - 1, high);
  if (at) {
    ink.lineWidth = 2;
    ink.strokeRect(left + at[1] * wide, top + at[0] * high, Math.max(3, wide), Math.max(3, high));
  }
}

/** @param {CanvasRenderingContext2D} ink @param {Shape} shape @param {TilesOptions} options @param {string} family */
function names(ink, { rows, columns, wide, high, left, top }, { rowName, columnName, chosen }, family) {
  ink.textBaseline = "middle";
  for (let row = 0; row < rows; row += 1) {
    ink.font = `${row === chosen ? "bold " : ""}${SMALL}px ${family}`;
    ink.textAlign = "right";
    ink.fillText(cut(rowName(row)), left - 4, top + (row + 0.5) * high);
  }
  ink.font = `${SMALL}px ${family}`;
  ink.textAlign = "left";
  for (let column = 0; column < columns; column += 1) {
    ink.save();
    ink.translate(left + (column + 0.5) * wide, top - 4);
    ink.rotate(-TURN);
    ink.fillText(cut(columnName(column)), 0, 0);
    ink.restore();
  }
}

/** One pixel a tile. @param {Values} values @param {number} most */
function pixels(values, most) {
  const [rows, columns] = [values.length, values[0].length];
  const canvas = h("canvas", { width: columns, height: rows });
  const ink = canvas.getContext("2d");
  if (!ink) return canvas;
  const image = ink.createImageData(columns, rows);
  values.flat().forEach((value, index) => image.data.set([...signedColour(value, most), 255], 4 * index));
  ink.putImageData(image, 0, 0);
  return canvas;
}

/**
 * @param {MouseEvent} event
 * @param {HTMLCanvasElement} canvas
 * @param {Shape} shape
 * @returns {[number, number] | null}
 */
function place(event, canvas, { rows, columns, wide, high, left, top }) {
  const box = canvas.getBoundingClientRect();
  const [narrowed, lowered] = [
    parseFloat(canvas.style.width) / box.width,
    parseFloat(canvas.style.height) / box.height,
  ];
  const column = Math.floor(((event.clientX - box.left) * narrowed - left) / wide);
  const row = Math.floor(((event.clientY - box.top) * lowered - top) / high);
  return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
}

/**
 * What the colours mean: from the smallest to the largest.
 * @param {number} low
 * @param {number} high
 * @param {number} most
 */
export function tilesLegend(low, high, most) {
  const steps = [Array.from({ length: 48 }, (_, index) => low + ((high - low) * index) / 47)];
  const bar = pixels(steps, most);
  bar.className = "tiles-ramp";
  bar.setAttribute("aria-hidden", "true");
  return h("span", { class: "tiles-legend" }, short(low), bar, short(high));
}

/** The largest size among the values. @param {Values} values */
export function largest(values) {
  let most = 0;
  for (const row of values)
    for (const value of row) if (value !== null && Math.abs(value) > most) most = Math.abs(value);
  return most || 1;
}

/** @param {Values} values @returns {[number, number]} */
export function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const row of values) {
    for (const value of row) {
      if (value === null) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return [low, high];
}

/** @param {Values} values */
function range(values) {
  const [low, high] = extremes(values);
  return Number.isFinite(low)
    ? `${values.length} by ${values[0].length} numbers from ${short(low)} to ${short(high)}.`
    : "No numbers.";
}

/** @param {string} text */
function cut(text) {
  return text.length > 12 ? `${text.slice(0, 11)}…` : text;
}
