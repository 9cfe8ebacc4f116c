/**
 * What is seen, kept: a view as PNG or SVG, its numbers as CSV, the whole page as one HTML file, the trace as its own
 * file.
 */

/** @import { Exports } from "../contract" */

import { sentence } from "../source/live.js";
import { css, h } from "./dom.js";

/** Pixels of a PNG for each pixel of the page. */
const SHARPNESS = 2;

/**
 * @param {string} name
 * @param {() => SVGSVGElement | string} make
 */
export function saveSvg(name, make) {
  save(`${name}.svg`, new Blob([svgText(make())], { type: "image/svg+xml" }));
}

/**
 * @param {string} name
 * @param {Exports} exports
 */
export async function savePng(name, exports) {
  const canvas = exports.canvas?.() ?? (exports.svg === undefined ? null : await painted(svgText(exports.svg())));
  const blob =
    canvas === null
      ? null
      : await new Promise((/** @type {(blob: Blob | null) => void} */ done) => canvas.toBlob(done));
  if (blob === null) throw new Error("This picture is too large to be saved as PNG. SVG has no such limit.");
  save(`${name}.png`, blob);
}

/** @param {{ name: string, rows: (string | number)[][] }} table */
export function saveCsv({ name, rows }) {
  save(`${name}.csv`, new Blob([rows.map(csvLine).join("")], { type: "text/csv" }));
}

/**
 * A file that the server makes. What it cannot make it says why.
 * @param {string} path
 * @param {string} name
 */
export async function saveFrom(path, name) {
  let answer;
  try {
    answer = await fetch(path);
  } catch {
    throw new Error("The server does not answer, so it cannot make this file now.");
  }
  if (!answer.ok) throw new Error(await sentence(answer));
  save(name, await answer.blob());
}

/**
 * A line of a table, as spreadsheets read it (RFC 4180).
 * @param {(string | number)[]} row
 */
export function csvLine(row) {
  const cells = row.map((cell) =>
    /[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell),
  );
  return `${cells.join(",")}\r\n`;
}

/** @param {SVGSVGElement | string} svg */
function svgText(svg) {
  if (typeof svg === "string") return svg;
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

/**
 * @param {string} text
 * @returns {Promise<HTMLCanvasElement>}
 */
async function painted(text) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = h("canvas", { width: image.width * SHARPNESS, height: image.height * SHARPNESS });
  const paint = canvas.getContext("2d");
  if (paint === null) throw new Error("This browser cannot paint.");
  paint.fillStyle = css("--paper");
  paint.fillRect(0, 0, canvas.width, canvas.height);
  paint.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/**
 * @param {string} name
 * @param {Blob} blob
 */
function save(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
