/**
 * The colors of the diagram's boxes: by the kind of module, or by a number on the scale of the page's other sizes.
 */

/** @import { ModuleBox, State } from "../../contract" */
/** @import { BoxFigures, Quantity } from "./quantities.js" */

import { sizeLegend } from "../../page/colors/legend.js";
import { colorIndex, scaleColors, textColor } from "../../page/colors/scales.js";
import { cssVariable, h } from "../../page/dom.js";
import { formatCount } from "../../page/format.js";
import { linkTerms } from "../../page/glossary/links.js";
import { QUANTITIES, describeParameters } from "./quantities.js";

/** The color (a CSS variable) and the name of each kind of module, as links to the glossary. */
export const KINDS = /** @type {Record<string, [string, string]>} */ ({
  attention: ["--module-attention", "[[attention]]"],
  "feed-forward": ["--module-feed-forward", "[[feed-forward|feed-forward network]]"],
  norm: ["--module-norm", "[[norm|layer norm]]"],
  input: ["--module-input", "[[embedding]]"],
  position: ["--module-position", "[[positions|positional encoding]]"],
  output: ["--module-output", "[[output|output projection]]"],
});

/**
 * @typedef {object} Coloring
 * @property {boolean} isByKind
 * @property {(box: ModuleBox) => { fill: string, ink: string, value: string }} of a box: its colors, and the number shown
 * @property {() => HTMLElement[]} legend
 */

/**
 * @param {State["color_by"]} by
 * @param {ModuleBox[]} boxes that can be drawn, so that a color means the same whatever layers are open
 * @param {(path: string) => BoxFigures} figures
 * @returns {Coloring}
 */
export function coloring(by, boxes, figures) {
  return by === "kind" ? byKind() : byQuantity(by, boxes, figures);
}

/** @returns {Coloring} */
function byKind() {
  return {
    isByKind: true,
    of(box) {
      const isLayer = box.kind === "block";
      const fill = cssVariable(isLayer ? "--panel" : (KINDS[box.kind]?.[0] ?? "--panel"));
      return { fill, ink: cssVariable(isLayer ? "--ink" : "--module-ink"), value: parametersOf(box) };
    },
    legend: () => Object.values(KINDS).map(([color, name]) => kindKey(color, name)),
  };
}

/**
 * @param {Quantity} by
 * @param {ModuleBox[]} boxes
 * @param {(path: string) => BoxFigures} figures
 * @returns {Coloring}
 */
function byQuantity(by, boxes, figures) {
  const { of, legend, format } = QUANTITIES[by];
  const limit = Math.max(0, ...boxes.map((box) => of(box, figures(box.path)) ?? 0)) || 1;
  const known = boxes.some((box) => of(box, figures(box.path)) !== undefined);
  return {
    isByKind: false,
    of(box) {
      const value = of(box, figures(box.path));
      const pixel = scaleColors("weight")[colorIndex("weight", value ?? null, limit)];
      const rgb = [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
      const shown = by === "norm" || value === undefined ? "" : format(value); // each box shows its norm anyway
      const text = by === "parameters" ? parametersOf(box) : shown;
      return { fill: `rgb(${rgb.join(", ")})`, ink: textColor(rgb), value: text };
    },
    legend: () => [known ? sizeLegend(legend, limit, format) : h("span", { class: "note" }, missing(by))],
  };
}

/** The parameters of a module in words; of a layer, which has less room, their number. @param {ModuleBox} box */
function parametersOf(box) {
  return box.kind === "block" ? formatCount(box.parameter_count) : describeParameters(box);
}

/** @param {Quantity} by */
function missing(by) {
  if (by === "time") return "No time has been measured of this input yet: “Measure time” does that.";
  return by === "norm" ? "There are no norms of this input." : "The boxes of this model have no numbers of their own.";
}

/**
 * @param {string} color
 * @param {string} name
 */
function kindKey(color, name) {
  const swatch = h("span", { class: "swatch" });
  swatch.style.backgroundColor = `var(${color})`;
  return h("span", { class: "kind" }, swatch, linkTerms(name));
}
