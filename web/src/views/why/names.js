/**
 * How the view names words and the parts of a model.
 */

import { tokenLabel } from "../../page/tokens.js";

/** @import { AttentionType, Contrast, Trace } from "../../contract" */

/** @type {Record<AttentionType, string>} */
const HEADS = {
  encoder: "encoder self-attention",
  decoder: "decoder self-attention",
  cross: "cross-attention",
};

/** @param {{ attention_type: AttentionType, layer: number, head: number }} head */
export function headLabel({ attention_type: type, layer, head }) {
  return `${HEADS[type]} head ${layer + 1}.${head + 1}`;
}

/** @param {{ stack: "encoder" | "decoder", layer: number }} network */
export function feedForwardLabel({ stack, layer }) {
  return `the feed-forward network of ${stack} layer ${layer + 1}`;
}

/** @param {Contrast["parts"][number]} part */
export function partLabel({ kind, layer = 0, head = 0 }) {
  if (kind === "embedding") return "embedding";
  if (kind === "bias") return `biases of layer ${layer + 1}`;
  if (kind === "feed-forward") return `feed-forward ${layer + 1}`;
  return `${kind === "cross" ? "cross-attention" : "self-attention"} ${layer + 1}.${head + 1}`;
}

/** The tokens of a word in one piece. @param {Trace} trace @param {Contrast["words"][number]} word */
export function wordLabel(trace, { side, positions }) {
  return positions.map((position) => tokenLabel(trace[side][position])).join("");
}
