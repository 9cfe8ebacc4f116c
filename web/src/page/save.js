/**
 * Saving: a view as PNG or SVG, its numbers as CSV, the page as one HTML file, the trace as its own file.
 */

import { responseError } from "../source/live.js";
import { NOT_RESPONDING } from "../source/not_responding.js";
import { cssVariable, h, s } from "./dom.js";

/** Pixels of a PNG per pixel of the page. */
const PNG_SCALE = 2;
/** The caption of a drawing, in pixels. */
const CAPTION = { margin: 16, lineHeight: 18, letterWidth: 7.2 };

/** @param {string} name @param {SVGSVGElement} svg @param {string} caption "": none */
export function saveSvg(name, svg, caption) {
  download(`${name}.svg`, new Blob([serialize(svg, caption)], { type: "image/svg+xml" }));
}

/** @param {string} name @param {SVGSVGElement} svg @param {string} caption */
export async function savePng(name, svg, caption) {
  const canvas = await rasterize(serialize(svg, caption));
  const blob = await new Promise((/** @type {(blob: Blob | null) => void} */ resolve) => canvas.toBlob(resolve));
  if (blob === null) throw new Error("This image is too large to be saved as PNG. SVG has no such limit.");
  download(`${name}.png`, blob);
}

/**
 * @param {{ name: string, rows: (string | number)[][] }} table
 * @param {string} caption the first line, as a comment
 */
export function saveCsv({ name, rows }, caption) {
  const lines = caption === "" ? rows : [[`# ${caption}`], ...rows];
  download(`${name}.csv`, new Blob([lines.map(csvLine).join("")], { type: "text/csv" }));
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
    throw new Error(`${NOT_RESPONDING}, so it cannot produce this file now.`);
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

/** @param {SVGSVGElement} svg @param {string} caption */
function serialize(svg, caption) {
  const copy = addCaption(/** @type {SVGSVGElement} */ (svg.cloneNode(true)), caption);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

/** A drawing under its caption, which is broken into lines. @param {SVGSVGElement} svg @param {string} caption */
function addCaption(svg, caption) {
  if (caption === "") return svg;
  const [width, height] = [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  const lineLength = Math.max(20, Math.floor((width - 2 * CAPTION.margin) / CAPTION.letterWidth));
  /** @type {string[]} */
  const lines = [];
  for (const word of caption.split(" ")) {
    const longer = `${lines.at(-1) ?? ""} ${word}`;
    if (lines.length > 0 && longer.length <= lineLength) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  const top = CAPTION.margin + lines.length * CAPTION.lineHeight;
  const style = { "font-family": cssVariable("--font"), "font-size": 13, "font-weight": 600, fill: cssVariable("--warn") };
  svg.setAttribute("y", String(top));
  return s(
    "svg",
    { width, height: height + top, viewBox: `0 0 ${width} ${height + top}` },
    s("rect", { width, height: height + top, fill: cssVariable("--paper") }),
    s(
      "g",
      style,
      lines.map((line, index) => s("text", { x: CAPTION.margin, y: CAPTION.margin + (index + 0.7) * CAPTION.lineHeight }, line)),
    ),
    svg,
  );
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
