/**
 * Exporting any part of the page as one SVG that needs no style sheet: boxes, texts, canvases and drawings where the
 * browser placed them, with their computed colors and fonts.
 *
 * An element that has a better SVG than a bitmap of its canvas (a matrix with labels, for example) registers it with
 * `registerSvg`. Elements with the attribute data-no-export are left out.
 */

import { cssVariable, s } from "./dom.js";

/** @type {WeakMap<Element, () => SVGElement>} */
const registered = new WeakMap();

/** Computed styles of an SVG element that become attributes of its copy. */
const SVG_STYLES = [
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
const EXCLUDED = "[data-no-export], .visually-hidden, .controls, .explanation";
const MARGIN = 16;

/**
 * @param {Element} element
 * @param {() => SVGElement} draw in the element's own pixels, from its upper left corner
 */
export function registerSvg(element, draw) {
  registered.set(element, draw);
}

/**
 * @param {Element[]} elements
 * @returns {SVGSVGElement}
 */
export function domToSvg(...elements) {
  const boxes = elements
    .filter((element) => element.getClientRects().length > 0)
    .map((element) => element.getBoundingClientRect());
  const origin = {
    left: Math.min(...boxes.map((box) => box.left)) - MARGIN,
    top: Math.min(...boxes.map((box) => box.top)) - MARGIN,
  };
  const width = Math.ceil(Math.max(...boxes.map((box) => box.right)) + MARGIN - origin.left);
  const height = Math.ceil(Math.max(...boxes.map((box) => box.bottom)) + MARGIN - origin.top);
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": cssVariable("--font") },
    s("rect", { width, height, fill: cssVariable("--paper") }),
    elements.flatMap((element) => copyElement(element, origin)),
  );
}

/** @typedef {{ left: number, top: number }} Origin */

/**
 * @param {Element} element
 * @param {Origin} origin
 * @returns {SVGElement[]}
 */
function copyElement(element, origin) {
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || element.matches(EXCLUDED)) return [];
  const transform = `translate(${round(box.left - origin.left)} ${round(box.top - origin.top)})`;
  const draw = registered.get(element);
  if (draw !== undefined) return [s("g", { transform }, draw())];
  if (element instanceof SVGSVGElement) {
    const copy = copySvg(element);
    copy.setAttribute("width", String(round(box.width)));
    copy.setAttribute("height", String(round(box.height)));
    return [s("g", { transform }, copy)];
  }
  if (element instanceof HTMLCanvasElement) return [copyImage(element.toDataURL(), box, transform)];
  if (element instanceof HTMLImageElement) return [copyImage(element.src, box, transform)];
  const copies = copyBox(style, box, transform);
  for (const child of element.childNodes) {
    if (child instanceof Element) copies.push(...copyElement(child, origin));
    else if (child instanceof Text) copies.push(...copyText(child, style, origin));
  }
  return copies;
}

/**
 * A copy of a drawing with the computed styles of its elements as attributes.
 * @param {SVGSVGElement} svg
 */
function copySvg(svg) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const [originals, copies] = [
    [svg, ...svg.querySelectorAll("*")],
    [copy, ...copy.querySelectorAll("*")],
  ];
  originals.forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const name of SVG_STYLES) copies[index].setAttribute(name, toSrgb(style.getPropertyValue(name)));
    for (const name of ["class", "style", "tabindex", "role"]) copies[index].removeAttribute(name);
  });
  return copy;
}

/**
 * @param {string} href
 * @param {DOMRect} box
 * @param {string} transform
 */
function copyImage(href, box, transform) {
  return s("image", {
    href,
    width: round(box.width),
    height: round(box.height),
    preserveAspectRatio: "none",
    transform,
  });
}

/**
 * The background and the borders of an element.
 * @param {CSSStyleDeclaration} style
 * @param {DOMRect} box
 * @param {string} transform
 * @returns {SVGElement[]}
 */
function copyBox(style, box, transform) {
  const isFilled = !/^(transparent|rgba\(.*, 0\))$/.test(style.backgroundColor);
  const borders = ["top", "right", "bottom", "left"].filter(
    (edge) =>
      style.getPropertyValue(`border-${edge}-style`) !== "none" &&
      Number.parseFloat(style.getPropertyValue(`border-${edge}-width`)) > 0,
  );
  if ((!isFilled && borders.length === 0) || box.width === 0 || box.height === 0) return [];
  const [width, height] = [round(box.width), round(box.height)];
  const opacity = style.opacity === "1" ? null : style.opacity;
  /** @type {SVGElement[]} */
  const copies = [];
  if (isFilled || borders.length === 4) {
    copies.push(
      s("rect", {
        transform,
        width,
        height,
        rx: Math.min(Number.parseFloat(style.borderTopLeftRadius) || 0, box.height / 2),
        fill: isFilled ? toSrgb(style.backgroundColor) : "none",
        opacity,
        ...(borders.length === 4 ? stroke(style, "top") : {}),
      }),
    );
  }
  if (borders.length === 4) return copies;
  const lines = {
    top: [0, 0, width, 0],
    right: [width, 0, width, height],
    bottom: [0, height, width, height],
    left: [0, 0, 0, height],
  };
  for (const edge of /** @type {(keyof typeof lines)[]} */ (borders)) {
    const [x1, y1, x2, y2] = lines[edge];
    copies.push(s("line", { transform, x1, y1, x2, y2, opacity, ...stroke(style, edge) }));
  }
  return copies;
}

/** @param {CSSStyleDeclaration} style @param {string} edge */
function stroke(style, edge) {
  const border = (/** @type {string} */ property) => style.getPropertyValue(`border-${edge}-${property}`);
  return {
    stroke: toSrgb(border("color")),
    "stroke-width": Number.parseFloat(border("width")),
    "stroke-dasharray": border("style") === "dashed" ? "4 3" : null,
  };
}

/**
 * A text, line by line as the browser broke it.
 * @param {Text} text
 * @param {CSSStyleDeclaration} style
 * @param {Origin} origin
 */
function copyText(text, style, origin) {
  /** @type {{ content: string, box: DOMRect }[]} */
  const lines = [];
  const range = document.createRange();
  for (const { index, 0: word } of text.data.matchAll(/\S+\s*/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    const box = range.getClientRects()[0];
    const line = lines.at(-1);
    if (box === undefined) continue;
    if (line !== undefined && Math.abs(line.box.top - box.top) < 2) line.content += word;
    else lines.push({ content: word, box });
  }
  const size = Number.parseFloat(style.fontSize);
  return lines.map(({ content, box }) =>
    s(
      "text",
      {
        x: round(box.left - origin.left),
        y: round(box.top - origin.top + box.height / 2 + 0.35 * size),
        "font-family": style.fontFamily,
        "font-size": size,
        "font-weight": style.fontWeight,
        "font-style": style.fontStyle,
        fill: toSrgb(style.color),
      },
      content.trimEnd(),
    ),
  );
}

/**
 * A color as older programs read it: browsers compute color-mix() as color(srgb …), which those do not know.
 * @param {string} color
 */
function toSrgb(color) {
  const match = color.match(/^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ ([\d.e-]+))?\)$/);
  if (match === null) return color;
  const [red, green, blue] = match.slice(1, 4).map((value) => Math.round(255 * Number(value)));
  return match[4] === undefined ? `rgb(${red}, ${green}, ${blue})` : `rgba(${red}, ${green}, ${blue}, ${match[4]})`;
}

/** @param {number} value */
function round(value) {
  return Math.round(10 * value) / 10;
}
