/**
 * Any part of the page as one SVG: boxes, texts, canvases and drawings where they stand, with colours as they are seen.
 *
 * A part that can say it better than a screenshot of its canvas (a matrix with its labels, say) registers with `drawn`.
 */

import { css, s } from "./dom.js";

/** @type {WeakMap<Element, () => SVGElement>} */
const better = new WeakMap();

/**
 * @param {Element} element
 * @param {() => SVGElement} draw in the element's own pixels, from its upper left corner
 */
export function drawn(element, draw) {
  better.set(element, draw);
}

const EDGE = 16;

/**
 * @param {HTMLElement[]} elements
 * @returns {SVGSVGElement}
 */
export function sketch(...elements) {
  const boxes = elements
    .filter((element) => element.getClientRects().length > 0)
    .map((element) => element.getBoundingClientRect());
  const left = Math.min(...boxes.map((box) => box.left)) - EDGE;
  const top = Math.min(...boxes.map((box) => box.top)) - EDGE;
  const width = Math.ceil(Math.max(...boxes.map((box) => box.right)) + EDGE - left);
  const height = Math.ceil(Math.max(...boxes.map((box) => box.bottom)) + EDGE - top);
  const place = { left, top };
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": css("--font") },
    s("rect", { width, height, fill: css("--paper") }),
    elements.flatMap((element) => copy(element, place)),
  );
}

/** @typedef {{ left: number, top: number }} Corner */

/**
 * @param {Element} element
 * @param {Corner} corner
 * @returns {SVGElement[]}
 */
function copy(element, corner) {
  const look = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  if (
    look.display === "none" ||
    look.visibility === "hidden" ||
    element.matches("[data-sketch=no], .visually-hidden, .controls, .explanation")
  )
    return [];
  const at = `translate(${round(box.left - corner.left)} ${round(box.top - corner.top)})`;
  const own = better.get(element);
  if (own !== undefined) return [s("g", { transform: at }, own())];
  if (element instanceof SVGSVGElement) {
    const same = /** @type {SVGSVGElement} */ (element.cloneNode(true));
    same.setAttribute("width", String(round(box.width)));
    same.setAttribute("height", String(round(box.height)));
    return [s("g", { transform: at }, same)];
  }
  if (element instanceof HTMLCanvasElement) return [image(element.toDataURL(), box, at)];
  if (element instanceof HTMLImageElement) return [image(element.src, box, at)];
  /** @type {SVGElement[]} */
  const made = [...background(look, box, at)];
  for (const child of element.childNodes) {
    if (child instanceof Element) made.push(...copy(child, corner));
    else if (child instanceof Text) made.push(...letters(child, look, corner));
  }
  return made;
}

/**
 * @param {string} href
 * @param {DOMRect} box
 * @param {string} transform
 */
function image(href, box, transform) {
  return s("image", { href, width: round(box.width), height: round(box.height), preserveAspectRatio: "none", transform });
}

/**
 * @param {CSSStyleDeclaration} look
 * @param {DOMRect} box
 * @param {string} transform
 */
function background(look, box, transform) {
  const filled = !/^(transparent|rgba\(0, 0, 0, 0\))$/.test(look.backgroundColor);
  const edged = look.borderTopStyle !== "none" && Number.parseFloat(look.borderTopWidth) > 0;
  if ((!filled && !edged) || box.width === 0 || box.height === 0) return [];
  return [
    s("rect", {
      transform,
      width: round(box.width),
      height: round(box.height),
      rx: Math.min(Number.parseFloat(look.borderTopLeftRadius) || 0, box.height / 2),
      fill: filled ? plain(look.backgroundColor) : "none",
      opacity: look.opacity === "1" ? null : look.opacity,
      stroke: edged ? plain(look.borderTopColor) : "none",
    }),
  ];
}

/**
 * A text line by line, where each line stands.
 * @param {Text} text
 * @param {CSSStyleDeclaration} look
 * @param {Corner} corner
 */
function letters(text, look, corner) {
  /** @type {{ words: string, box: DOMRect }[]} */
  const lines = [];
  const range = document.createRange();
  for (const { index, 0: word } of text.data.matchAll(/\S+\s*/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    const box = range.getClientRects()[0];
    const line = lines.at(-1);
    if (box === undefined) continue;
    if (line !== undefined && Math.abs(line.box.top - box.top) < 2) line.words += word;
    else lines.push({ words: word, box });
  }
  const size = Number.parseFloat(look.fontSize);
  return lines.map(({ words, box }) =>
    s(
      "text",
      {
        x: round(box.left - corner.left),
        y: round(box.top - corner.top + box.height / 2 + 0.35 * size),
        "font-size": size,
        "font-weight": look.fontWeight,
        fill: plain(look.color),
      },
      words.trimEnd(),
    ),
  );
}

/**
 * Colours as older programs read them: color-mix() is computed as color(srgb …), which they do not know.
 * @param {string} colour
 */
function plain(colour) {
  const found = colour.match(/^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ ([\d.e-]+))?\)$/);
  if (found === null) return colour;
  const [red, green, blue] = found.slice(1, 4).map((value) => Math.round(255 * Number(value)));
  return found[4] === undefined ? `rgb(${red}, ${green}, ${blue})` : `rgba(${red}, ${green}, ${blue}, ${found[4]})`;
}

/** @param {number} value */
function round(value) {
  return Math.round(10 * value) / 10;
}
