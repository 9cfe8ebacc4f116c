/**
 * An example: *Dark horses are faster than white horses*, and the same sentence with one more word. The way a
 * position is encoded decides whether the two can be compared.
 */

import { h } from "../../page/dom.js";
import { formatFixed } from "../../page/format.js";
import { scrollable } from "../shared/section.js";

/** @import { Positions } from "../../contract.d.ts" */

const SENTENCES = ["Dark horses are faster than white horses", "Dark horses might be faster than white horses"];
/** The sizes of the encodings: those of the two sentences, and enough positions for three bits to repeat. */
export const EXAMPLE_SIZES = { width: 4, short: 7, long: 8, bits: 16 };

/** @typedef {Positions["schemes"][number]} Scheme */

/** @param {Positions} short for 7 words @param {Positions} long for 8 words @param {Positions} sixteen for 16 positions */
export function sentenceExample(short, long, sixteen) {
  const remarks = [describeIndex(short, long), describeNormalized(short, long), describeSinusoidal(short, long)];
  return h(
    "div",
    { class: "sentence-example" },
    sentenceTable(SENTENCES[0], short),
    sentenceTable(SENTENCES[1], long),
    h(
      "ul",
      {},
      remarks.filter(Boolean).map((text) => h("li", {}, text)),
    ),
    bitTable(sixteen),
  );
}

/**
 * The numbers that the text mentions, for checks.
 * @param {Positions} short
 * @param {Positions} long
 * @param {Positions} sixteen
 */
export function exampleNumbers(short, long, sixteen) {
  return {
    normalized: [short, long].map((positions) => firstDistance(encodings(positions, "normalized"))),
    sinusoidal: [short, long].map((positions) => firstDistance(encodings(positions, "sinusoidal"))),
    bits: encodings(sixteen, "binary").map((encoding) => lowestBits(encoding)),
  };
}

/** @param {string} sentence @param {Positions} positions */
function sentenceTable(sentence, positions) {
  const words = sentence.split(" ");
  /** @type {[string, string, (encoding: number[]) => string][]} */
  const schemes = [
    ["index", "index", (encoding) => formatFixed(encoding[0], 0)],
    ["normalized", `index / ${words.length}`, (encoding) => formatFixed(encoding[0], 3)],
    ["sinusoidal", "first sine and cosine", (encoding) => `${formatFixed(encoding[0])} ${formatFixed(encoding[1])}`],
  ];
  const rows = schemes.flatMap(([name, label, format]) => {
    const rowEncodings = encodings(positions, name);
    if (rowEncodings.length < words.length) return [];
    return [
      h(
        "tr",
        {},
        h("th", { scope: "row" }, label),
        words.map((_, position) => h("td", { class: "number" }, format(rowEncodings[position]))),
      ),
    ];
  });
  const header = h(
    "tr",
    {},
    h("td"),
    words.map((word) => h("th", { scope: "col" }, word)),
  );
  return scrollable(sentence, h("table", { class: "numbers" }, h("thead", {}, header), h("tbody", {}, rows)));
}

/** @param {Positions} short @param {Positions} long */
function describeIndex(short, long) {
  const [shortMax, longMax] = [short, long].map((positions) => encodings(positions, "index").at(-1)?.[0]);
  if (shortMax === undefined || longMax === undefined) return null;
  return (
    `The index goes up to ${formatFixed(shortMax, 0)} in the first sentence and ${formatFixed(longMax, 0)} in the ` +
    "second, without bound: a long sentence has values that never occurred in training."
  );
}

/** @param {Positions} short @param {Positions} long */
function describeNormalized(short, long) {
  const [first, second] = [short, long].map((positions) => firstDistance(encodings(positions, "normalized")));
  if (first === null || second === null) return null;
  return (
    `Divided by the length, it never exceeds 1. But neighbors are ${formatFixed(first, 3)} apart in the first sentence ` +
    `and ${formatFixed(second, 3)} in the second: the same distance means something else in each.`
  );
}

/** @param {Positions} short @param {Positions} long */
function describeSinusoidal(short, long) {
  const [first, second] = [short, long].map((positions) => firstDistance(encodings(positions, "sinusoidal")));
  const largest = Math.max(...encodings(long, "sinusoidal").flat().map(Math.abs));
  if (first === null || second === null) return null;
  return (
    `The sinusoidal encoding of a position is the same in both: the first neighbors are ${formatFixed(first, 3)} apart ` +
    `in the first sentence and ${formatFixed(second, 3)} in the second, and no value exceeds ${formatFixed(largest, 2)}.`
  );
}

/** @param {Positions} sixteen */
function bitTable(sixteen) {
  const binary = encodings(sixteen, "binary");
  const half = binary.length / 2;
  if (binary.length < 2) return null;
  const row = (/** @type {number} */ first) =>
    h(
      "tr",
      {},
      binary
        .slice(first, first + half)
        .flatMap((encoding, offset) => [
          h("th", { scope: "row" }, first + offset),
          h("td", { class: "number" }, lowestBits(encoding)),
        ]),
    );
  const repeats = binary
    .slice(0, half)
    .every((encoding, position) => lowestBits(encoding) === lowestBits(binary[position + half]));
  return h(
    "div",
    {},
    h(
      "p",
      {},
      repeats
        ? `Three binary digits are bounded, but position ${half} has the same encoding as position 0:`
        : "Three binary digits:",
    ),
    scrollable("Three bits", h("table", { class: "numbers" }, h("tbody", {}, row(0), row(half)))),
  );
}

/** @param {number[]} encoding */
function lowestBits(encoding) {
  return encoding
    .slice(-3)
    .map((bit) => String(Math.round(bit)))
    .join("");
}

/** The distance of the first two encodings; for encodings that repeat one number, of that number. @param {number[][]} vectors */
function firstDistance(vectors) {
  if (vectors.length < 2) return null;
  const [first, second] = vectors;
  const isConstant = (/** @type {number[]} */ vector) => vector.every((value) => value === vector[0]);
  if (isConstant(first) && isConstant(second)) return second[0] - first[0];
  return Math.hypot(...first.map((value, dimension) => value - second[dimension]));
}

/** The encodings of a scheme; empty if there is none. @param {Positions} positions @param {string} name */
function encodings(positions, name) {
  return positions.schemes.find((scheme) => scheme.name.toLowerCase().startsWith(name))?.encoding ?? [];
}
