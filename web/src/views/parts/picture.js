/**
 * What is on the page as an SVG that stands by itself: colours and fonts as they are now, no variables, no style sheet.
 *
 * A drawing is copied with its computed styles. Anything else (tables, lists, canvases) is walked through: every word,
 * box and picture is put where the browser had put it.
 */

import { css, s } from "../../page/dom.js";

/** Styles of a drawing that have to travel with it. */
const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
  "visibility",
];

/** How far down its box the line of a text lies, for the usual fonts. */
const BASELINE = 0.8;

/** A drawing with its styles in it. @param {SVGSVGElement} drawing @returns {SVGSVGElement} */
export function finished(drawing) {
  const copy = styled(drawing);
  const [, , width, height] = viewBox(drawing);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(paper(drawing));
  return copy;
}

/**
 * Any part of the page as a drawing. What carries the attribute data-no-picture is left out.
 * @param {HTMLElement} element
 */
export function pictureOf(element) {
  const origin = element.getBoundingClientRect();
  const margin = 12;
  /** @type {{ nodes: SVGElement[], right: number, bottom: number, left: number, top: number }} */
  const sheet = { nodes: [], right: 0, bottom: 0, left: origin.left - margin, top: origin.top - margin };
  walk(element, sheet);
  const [width, height] = [Math.ceil(sheet.right + margin), Math.ceil(sheet.bottom + margin)];
  return s(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height },
    s("rect", { width, height, fill: css("--paper") }),
    ...sheet.nodes,
  );
}

/** @typedef {{ nodes: SVGElement[], right: number, bottom: number, left: number, top: number }} Sheet */

/** @param {Element} element @param {Sheet} sheet */
function walk(element, sheet) {
  if (element.hasAttribute("data-no-picture") || element.classList.contains("visually-hidden")) return;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || (box.width === 0 && box.height === 0)) return;
  if (element instanceof SVGSVGElement) {
    const copy = styled(element);
    const at = place(sheet, box);
    for (const [name, value] of Object.entries({ ...at, width: box.width, height: box.height })) {
      copy.setAttribute(name, String(value));
    }
    sheet.nodes.push(copy);
    return;
  }
  if (element instanceof HTMLCanvasElement) {
    const facts = { ...place(sheet, box), width: box.width, height: box.height, href: element.toDataURL("image/png") };
    sheet.nodes.push(s("image", { ...facts, preserveAspectRatio: "none" }));
    return;
  }
  drawBox(style, box, sheet);
  for (const child of element.childNodes) {
    if (child instanceof Element) walk(child, sheet);
    else if (child instanceof Text) drawWords(child, style, sheet);
  }
}

/** @param {CSSStyleDeclaration} style @param {DOMRect} box @param {Sheet} sheet */
function drawBox(style, box, sheet) {
  const filled = !/^(transparent|rgba\(.*, 0\))$/.test(style.backgroundColor);
  const edges = ["top", "right", "bottom", "left"].filter(
    (side) => parseFloat(style.getPropertyValue(`border-${side}-width`)) > 0,
  );
  if (!filled && edges.length === 0) return;
  const { x, y } = place(sheet, box);
  const round = parseFloat(style.borderTopLeftRadius) || 0;
  const facts = { x, y, width: box.width, height: box.height, rx: round };
  const around = edges.length === 4 ? edge(style, "top") : {};
  if (filled || edges.length === 4) {
    sheet.nodes.push(s("rect", { ...facts, fill: filled ? style.backgroundColor : "none", ...around }));
  }
  if (edges.length === 4) return;
  const [right, bottom] = [x + box.width, y + box.height];
  const lines = {
    top: [x, y, right, y],
    right: [right, y, right, bottom],
    bottom: [x, bottom, right, bottom],
    left: [x, y, x, bottom],
  };
  for (const side of /** @type {(keyof typeof lines)[]} */ (edges)) {
    const [x1, y1, x2, y2] = lines[side];
    sheet.nodes.push(s("line", { x1, y1, x2, y2, ...edge(style, side) }));
  }
}

/** @param {CSSStyleDeclaration} style @param {string} side */
function edge(style, side) {
  const of = (/** @type {string} */ what) => style.getPropertyValue(`border-${side}-${what}`);
  const dashes = of("style") === "dashed" ? "4 3" : null;
  return { stroke: of("color"), "stroke-width": parseFloat(of("width")), "stroke-dasharray": dashes };
}

/** @param {Text} text @param {CSSStyleDeclaration} style @param {Sheet} sheet */
function drawWords(text, style, sheet) {
  for (const word of text.data.matchAll(/\S+/g)) {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    const box = range.getBoundingClientRect();
    if (box.width === 0) continue;
    const at = place(sheet, box);
    const facts = {
      x: at.x,
      y: at.y + BASELINE * box.height,
      fill: style.color,
      "font-family": style.fontFamily,
      "font-size": style.fontSize,
      "font-weight": style.fontWeight,
      "font-style": style.fontStyle,
    };
    sheet.nodes.push(s("text", facts, word[0]));
  }
}

/** @param {Sheet} sheet @param {DOMRect} box */
function place(sheet, box) {
  const [x, y] = [box.left - sheet.left, box.top - sheet.top];
  sheet.right = Math.max(sheet.right, x + box.width);
  sheet.bottom = Math.max(sheet.bottom, y + box.height);
  return { x, y };
}

/**
 * A copy of a drawing with the computed styles of each of its elements as attributes.
 * @param {SVGSVGElement} drawing
 */
function styled(drawing) {
  const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
  const [originals, copies] = [
    [drawing, ...drawing.querySelectorAll("*")],
    [copy, ...copy.querySelectorAll("*")],
  ];
  originals.forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const name of STYLES) copies[index].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex", "role"]) copies[index].removeAttribute(name);
  });
  return copy;
}

/** @param {SVGSVGElement} drawing */
function paper(drawing) {
  const [x, y, width, height] = viewBox(drawing);
  return s("rect", { x, y, width, height, fill: css("--paper") });
}

/** @param {SVGSVGElement} drawing @returns {[number, number, number, number]} */
function viewBox(drawing) {
  const { x, y, width, height } = drawing.viewBox.baseVal;
  const box = drawing.getBoundingClientRect();
  return width > 0 ? [x, y, width, height] : [0, 0, box.width, box.height];
}
