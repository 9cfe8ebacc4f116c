/**
 * How the view names words and the parts of the decoder.
 */

import { attentionInStack } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";

/** @import { Contrast, Trace } from "../../contract" */

/** @param {Contrast["parts"][number]} part */
export function partLabel({ kind, layer = 0, head = 0 }) {
  if (kind === "embedding") return "embedding";
  if (kind === "bias") return `biases of layer ${layer + 1}`;
  if (kind === "feed-forward") return `feed-forward ${layer + 1}`;
  return `${attentionInStack(kind)} ${layer + 1}.${head + 1}`;
}

/** The tokens of a word in one piece. @param {Trace} trace @param {Contrast["words"][number]} word */
export function wordLabel(trace, { side, positions }) {
  return positions.map((position) => tokenLabel(trace[side][position])).join("");
}
