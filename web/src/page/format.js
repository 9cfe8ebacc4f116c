/**
 * Numbers and names as the page displays them: short, with a real minus sign, and no more precise than they are.
 */

/** @import { AttentionType, HeadChoice } from "../contract" */

/** @type {Record<AttentionType, string>} */
export const ATTENTION_NAMES = {
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  cross: "Cross-attention",
};

/** @param {number} fraction 0.5 → "50 %" */
export function formatPercent(fraction) {
  const percent = 100 * fraction;
  if (percent === 0) return "0 %";
  if (percent < 0.1) return "< 0.1 %";
  return `${percent >= 9.95 ? Math.round(percent) : percent.toFixed(1).replace(/\.0$/, "")} %`;
}

/**
 * A probability that may be tiny, such as that of a whole output, with two significant digits.
 * @param {number} probability 0.00012 → "0.012 %"
 */
export function formatProbability(probability) {
  return probability >= 0.001 || probability === 0 ? formatPercent(probability) : `${formatNumber(100 * probability, 2)} %`;
}

/**
 * An attention weight with two significant digits.
 * @param {number} weight
 */
export function formatWeight(weight) {
  if (weight >= 0.995) return "1.00";
  if (weight >= 0.095) return weight.toFixed(2);
  return weight >= 0.0005 ? weight.toFixed(3) : weight.toExponential(0);
}

/** @param {number} count 7584000 → "7,584,000" */
export function formatCount(count) {
  return count.toLocaleString("en");
}

/**
 * A large number with a prefix of its unit, to three significant digits.
 * @param {number} count @param {string} unit
 * @returns {string} 165060608, "FLOP" → "165 MFLOP"
 */
export function formatPrefixed(count, unit) {
  const power = Math.max(0, Math.min(6, Math.floor(Math.log10(Math.max(1, Math.abs(count))) / 3)));
  return `${formatNumber(count / 1000 ** power)} ${["", "k", "M", "G", "T", "P", "E"][power]}${unit}`;
}

/**
 * A number with at most `digits` significant digits; a dash if there is none.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function formatNumber(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? exponential(value, digits) : decimal(value, digits);
  return withMinusSign(text);
}

/**
 * A number with a fixed number of decimals, so that columns of numbers line up.
 * @param {number | null | undefined} value
 * @param {number} [decimals]
 */
export function formatFixed(value, decimals = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const text = value.toFixed(decimals);
  return withMinusSign(Number(text) === 0 ? text.replace("-", "") : text);
}

/** A change, with its sign. @param {number} value @param {number} [decimals] */
export function formatChange(value, decimals = 2) {
  const text = formatFixed(value, decimals);
  return value > 0 && Number(value.toFixed(decimals)) !== 0 ? `+${text}` : text;
}

/** @param {number} seconds 90 → "90 s", 600 → "10 min" */
export function formatDuration(seconds) {
  if (seconds < 120) return `${formatNumber(seconds, 3)} s`;
  if (seconds < 7200) return `${formatNumber(seconds / 60, 3)} min`;
  return `${formatNumber(seconds / 3600, 3)} h`;
}

/**
 * @param {number} layer
 * @param {HeadChoice} head
 */
export function headName(layer, head) {
  if (head === "rollout") return `attention rollout up to layer ${layer + 1}`;
  return head === "mean" ? `layer ${layer + 1}, mean of all heads` : `layer ${layer + 1}, head ${head + 1}`;
}

/** A head with its attention: "cross-attention head 2.4". @param {{ attention_type: AttentionType, layer: number, head: number }} head */
export function headLabel({ attention_type: type, layer, head }) {
  return `${ATTENTION_NAMES[type].toLowerCase()} head ${layer + 1}.${head + 1}`;
}

/** The name of attention within its stack: "self-attention". @param {AttentionType} type */
export function attentionInStack(type) {
  return type === "cross" ? "cross-attention" : "self-attention";
}

/** @param {{ stack: "encoder" | "decoder", layer: number }} network */
export function feedForwardLabel({ stack, layer }) {
  return `the feed-forward network of ${stack} layer ${layer + 1}`;
}

/** @param {string} text */
export function capitalize(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * A text cut to a maximum length, with an ellipsis.
 * @param {string} text
 * @param {number} maxLength
 */
export function truncate(text, maxLength) {
  return text.length <= maxLength ? text : `${text.slice(0, maxLength - 1)}…`;
}

/** @param {number} value @param {number} digits */
function decimal(value, digits) {
  const text = Number(value.toPrecision(digits)).toString();
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : text;
}

/** @param {number} value @param {number} digits */
function exponential(value, digits) {
  return value
    .toExponential(digits - 1)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e");
}

/** @param {string} text */
function withMinusSign(text) {
  return text.replace("-", "−");
}
