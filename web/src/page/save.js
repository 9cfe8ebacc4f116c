/**
 * Saving: a view as PNG or SVG, its numbers as CSV, the page as one HTML file, the trace as its own file.
 */

import { responseError } from "../source/live.js";
import { cssVariable, h } from "./dom.js";

/** Pixels of a PNG per pixel of the page. */
const PNG_SCALE = 2;

/** @param {string} name @param {SVGSVGElement} svg */
export function saveSvg(name, svg) {
  download(`${name}.svg`, new Blob([serialize(svg)], { type: "image/svg+xml" }));
}

/** @param {string} name @param {SVGSVGElement} svg */
export async function savePng(name, svg) {
  const canvas = await rasterize(serialize(svg));
  const blob = await new Promise((/** @type {(blob: Blob | null) => void} */ resolve) => canvas.toBlob(resolve));
  if (blob === null) throw new Error("This image is too large to be saved as PNG. SVG has no such limit.");
  download(`${name}.png`, blob);
}

/** @param {{ name: string, rows: (string | number)[][] }} table */
export function saveCsv({ name, rows }) {
  download(`${name}.csv`, new Blob([rows.map(csvLine).join("")], { type: "text/csv" }));
}

/**
 * A file that the server produces; an error with the server's reason if it cannot.
 * @param {string} path
 * @param {string} name
 */
export async function saveFromServer(path, name) {
  let response;
  try {
    response = await fetch(path);
  } catch {
    throw new Error("The server is not responding, so it cannot produce this file now.");
  }
  if (!response.ok) throw new Error(await responseError(response));
  download(name, await response.blob());
}

/**
 * A line of a table as spreadsheets read it (RFC 4180).
 * @param {(string | number)[]} row
 */
export function csvLine(row) {
  const cells = row.map((cell) =>
    /[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell),
  );
  return `${cells.join(",")}\r\n`;
}

/** @param {SVGSVGElement} svg */
function serialize(svg) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

/**
 * @param {string} svg
 * @returns {Promise<HTMLCanvasElement>}
 */
async function rasterize(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = h("canvas", { width: image.width * PNG_SCALE, height: image.height * PNG_SCALE });
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("This browser cannot draw on a canvas.");
  context.fillStyle = cssVariable("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/**
 * @param {string} name
 * @param {Blob} blob
 */
function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
