/**
 * What is known of a box of the diagram in numbers, and how each number is written.
 */

/** @import { ModuleBox } from "../../contract" */

import { formatCount, formatNumber, formatPrefixed } from "../../page/format.js";

/**
 * @typedef {object} BoxFigures of the current trace; what is not known is missing
 * @property {number[]} [shape] of what leaves the box
 * @property {number} [norm] the mean norm of its vectors
 * @property {number} [flops]
 * @property {number} [bytes]
 * @property {number} [seconds] measured
 */

/** @typedef {"parameters" | "flops" | "bytes" | "time" | "norm"} Quantity */

/**
 * @typedef {object} QuantityInfo
 * @property {string} label of the switch
 * @property {string} legend
 * @property {(box: ModuleBox, figures: BoxFigures) => number | undefined} of
 * @property {(value: number) => string} format
 */
/** @type {Record<Quantity, QuantityInfo>} */
export const QUANTITIES = {
  parameters: {
    label: "parameters",
    legend: "parameters",
    of: (box) => box.parameter_count,
    format: (value) => formatPrefixed(value, "").trim(),
  },
  flops: {
    label: "FLOPs",
    legend: "FLOPs of one pass over this input and output, after the cost model",
    of: (_, { flops }) => flops,
    format: (value) => formatPrefixed(value, "FLOP"),
  },
  bytes: {
    label: "bytes",
    legend: "bytes of activations that training saves for the backward pass, after the cost model",
    of: (_, { bytes }) => bytes,
    format: (value) => formatPrefixed(value, "B"),
  },
  time: {
    label: "time",
    legend: "time, measured on this machine",
    of: (_, { seconds }) => seconds,
    format: (seconds) => `${formatNumber(1000 * seconds)} ms`,
  },
  norm: {
    label: "norm",
    legend: "mean norm of the vectors that leave the box",
    of: (_, { norm }) => norm,
    format: (value) => formatNumber(value),
  },
};

/** @param {number[]} shape */
export function formatShape(shape) {
  return `(${shape.map(formatCount).join(", ")})`;
}

/** The parameters of a box in words. @param {ModuleBox} box */
export function describeParameters(box) {
  if (box.parameter_count === 0 && box.parameters.length > 0) return "shared parameters";
  if (box.parameter_count === 0) return "no parameters";
  return `${formatCount(box.parameter_count)} ${box.parameter_count === 1 ? "parameter" : "parameters"}`;
}
