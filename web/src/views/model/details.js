/**
 * What is known of a module, in words and numbers.
 */

/** @import { ModuleActivations, ModuleBox } from "../../contract" */
/** @import { BoxFigures } from "./quantities.js" */

import { h } from "../../page/dom.js";
import { formatCount, formatNumber, formatPrefixed } from "../../page/format.js";
import { linkTerms } from "../../page/glossary/links.js";
import { QUANTITIES, formatShape } from "./quantities.js";

/** Parameters that are listed for a module. */
const MAX_PARAMETERS = 14;

/**
 * @param {ModuleBox} box
 * @param {BoxFigures} figures
 * @param {(() => void) | null} openHeads
 */
export function describe(box, { shape, norm, flops, bytes, seconds }, openHeads) {
  /** @type {[string, string | HTMLElement | null][]} */
  const facts = [
    ["[[Shapes|shape]]", box.shape === "" ? null : h("code", {}, box.shape)],
    ["What leaves it now", shape === undefined ? null : h("code", {}, formatShape(shape))],
    ["Mean norm of these vectors", norm === undefined ? null : formatNumber(norm, 4)],
    ["[[Parameters|parameter]]", formatCount(box.parameter_count)],
    ["FLOPs of this pass", flops === undefined ? null : `${formatPrefixed(flops, "FLOP")} (${formatCount(flops)})`],
    [
      "Activations saved for the backward pass in training",
      bytes === undefined ? null : `${formatPrefixed(bytes, "B")} (${formatCount(bytes)} bytes)`,
    ],
    ["Time, measured", seconds === undefined ? null : QUANTITIES.time.format(seconds)],
  ];
  return [
    h("h2", {}, box.label),
    h("p", {}, box.description),
    h(
      "dl",
      {},
      facts.filter(([, value]) => value !== null).flatMap(([name, value]) => [h("dt", {}, linkTerms(name)), h("dd", {}, value)]),
    ),
    openHeads === null
      ? null
      : h(
          "button",
          { type: "button", class: "strong", onclick: openHeads, "data-no-export": true },
          "Show its attention heads",
        ),
  ];
}

/** Every parameter with its shape. @param {ModuleBox} box */
export function parameterTable(box) {
  const rows = box.parameters.map(({ name, shape }) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, name)),
      h("td", { class: "number" }, shape.join(" × ")),
      h("td", { class: "number" }, formatCount(shape.reduce((product, size) => product * size, 1))),
    ),
  );
  const head = ["name", "shape", "size"].map((name) => h("th", { scope: "col" }, name));
  const count = rows.length === 1 ? "1 parameter tensor" : `${rows.length} parameter tensors`;
  return [
    h("summary", {}, count),
    h(
      "table",
      { class: "parameters" },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.slice(0, MAX_PARAMETERS)),
    ),
    rows.length > MAX_PARAMETERS &&
      h("p", { class: "note" }, `and ${rows.length - MAX_PARAMETERS} more; the CSV contains all of them.`),
  ];
}

/** What is not known of the model, and what the numbers mean. @param {ModuleActivations} activations */
export function costNotes({ notes, flops, bytes }) {
  return [
    `In all, a pass over this input and output takes ${formatPrefixed(flops, "FLOP")}, and training saves ` +
      `${formatPrefixed(bytes, "B")} of it, after the cost model of “regard cost”. FLOPs are floating-point operations, counted in matrix products.`,
    ...notes,
  ].map((text) => h("p", { class: "note" }, text));
}
