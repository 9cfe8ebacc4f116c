/**
 * Numbers and names as they are written on the page.
 */

/** @import { Side } from "../contract" */

/** @type {Record<Side, string>} */
export const SIDES = {
  encoder: "Encoder: the sentence reads itself",
  decoder: "Decoder: what is written looks back",
  cross: "Cross: what is written looks at what was read",
};

/** @param {number} share */
export function percent(share) {
  const hundred = 100 * share;
  if (hundred === 0) return "0 %";
  if (hundred < 0.1) return "< 0.1 %";
  return `${hundred >= 9.95 ? Math.round(hundred) : hundred.toFixed(1).replace(/\.0$/, "")} %`;
}

/**
 * A weight with two digits that count.
 * @param {number} weight
 */
export function weight(weight) {
  if (weight >= 0.995) return "1.00";
  if (weight >= 0.095) return weight.toFixed(2);
  return weight >= 0.0005 ? weight.toFixed(3) : weight.toExponential(0);
}

/** @param {number} count 7584000 → "7,584,000" */
export function whole(count) {
  return count.toLocaleString("en");
}

/**
 * @param {number} layer
 * @param {number | "mean"} head
 */
export function headName(layer, head) {
  return head === "mean" ? `layer ${layer + 1}, mean of its heads` : `layer ${layer + 1}, head ${head + 1}`;
}
