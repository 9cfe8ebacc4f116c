/**
 * *Dark horses are faster than white horses*, and the same with one word more: how a position is written decides whether
 * two sentences can be compared. The lecture's example, with the numbers that the schemes of this package give.
 */

import { h } from "../../page/dom.js";
import { fixed } from "./numbers.js";
import { scroller } from "./section.js";

/** @import { Positions } from "../../contract.d.ts" */

const SENTENCES = ["Dark horses are faster than white horses", "Dark horses might be faster than white horses"];
/** Words and numbers a code has in the example; and as many positions as show that three bits repeat. */
export const ASKED = { width: 4, lengths: [7, 8], bits: 16 };

/** @typedef {Positions["schemes"][number]} Scheme */

/** @param {Positions} short of 7 words @param {Positions} long of 8 @param {Positions} many of 16 */
export function horses(short, long, many) {
  const told = [indexInWords(short, long), normalisedInWords(short, long), sinusoidsInWords(short, long)].filter(
    Boolean,
  );
  return h(
    "div",
    { class: "horses" },
    sentenceTable(SENTENCES[0], short),
    sentenceTable(SENTENCES[1], long),
    h(
      "ul",
      {},
      told.map((text) => h("li", {}, text)),
    ),
    bits(many),
  );
}

/**
 * The numbers that the text speaks of, for who wants to check them.
 * @param {Positions} short
 * @param {Positions} long
 * @param {Positions} many
 */
export function horseNumbers(short, long, many) {
  const codes = (/** @type {Positions} */ table, /** @type {string} */ name) => find(table, name)?.encoding ?? [];
  return {
    normalised: [short, long].map((table) => gap(codes(table, "normalised"))),
    sinusoidal: [short, long].map((table) => gap(codes(table, "sinusoidal"))),
    bits: codes(many, "binary").map((code) => lowBits(code)),
  };
}

/** @param {string} sentence @param {Positions} table */
function sentenceTable(sentence, table) {
  const words = sentence.split(" ");
  /** @type {[string, string, (code: number[]) => string][]} */
  const lines = [
    ["index", "number of the word", (code) => fixed(code[0], 0)],
    ["normalised", `number of the word / ${words.length}`, (code) => fixed(code[0], 3)],
    ["sinusoidal", "first sine and cosine", (code) => `${fixed(code[0])} ${fixed(code[1])}`],
  ];
  const rows = lines.flatMap(([name, about, write]) => {
    const codes = find(table, name)?.encoding ?? [];
    if (codes.length < words.length) return [];
    return [
      h(
        "tr",
        {},
        h("th", { scope: "row" }, about),
        words.map((_, at) => h("td", { class: "number" }, write(codes[at]))),
      ),
    ];
  });
  const head = h(
    "tr",
    {},
    h("td"),
    words.map((word) => h("th", { scope: "col" }, word)),
  );
  return scroller(sentence, h("table", { class: "numbers" }, h("thead", {}, head), h("tbody", {}, rows)));
}

/** @param {Positions} short @param {Positions} long */
function indexInWords(short, long) {
  const [one, other] = [short, long].map((table) => find(table, "index")?.encoding.at(-1)?.[0]);
  if (one === undefined || other === undefined) return null;
  return (
    `The number of the word goes up to ${fixed(one, 0)} here and ${fixed(other, 0)} there, and on without end: ` +
    "a long sentence has numbers that were never seen in training."
  );
}

/** @param {Positions} short @param {Positions} long */
function normalisedInWords(short, long) {
  const [one, other] = [short, long].map((table) => gap(find(table, "normalised")?.encoding ?? []));
  if (one === null || other === null) return null;
  return (
    `Divided by the number of words it never exceeds 1. But neighbours are ${fixed(one, 3)} apart in the first sentence ` +
    `and ${fixed(other, 3)} in the second: the same step means another thing in each.`
  );
}

/** @param {Positions} short @param {Positions} long */
function sinusoidsInWords(short, long) {
  const [one, other] = [short, long].map((table) => gap(find(table, "sinusoidal")?.encoding ?? []));
  const most = Math.max(...(find(long, "sinusoidal")?.encoding ?? []).flat().map(Math.abs));
  if (one === null || other === null) return null;
  return (
    `Sines and cosines give a position the same code in both: the first neighbours are ${fixed(one, 3)} apart here and ` +
    `${fixed(other, 3)} there, and no number is larger than ${fixed(most, 2)}.`
  );
}

/** @param {Positions} many */
function bits(many) {
  const codes = find(many, "binary")?.encoding ?? [];
  const half = codes.length / 2;
  if (codes.length < 2) return null;
  const row = (/** @type {number} */ from) =>
    h(
      "tr",
      {},
      codes
        .slice(from, from + half)
        .flatMap((code, at) => [h("th", { scope: "row" }, from + at), h("td", { class: "number" }, lowBits(code))]),
    );
  const again = codes.slice(0, half).every((code, at) => lowBits(code) === lowBits(codes[at + half]));
  return h(
    "div",
    {},
    h(
      "p",
      {},
      again
        ? `Binary numbers of three bits are bounded, but position ${half} is written like position 0 again:`
        : "Binary numbers of three bits:",
    ),
    scroller("Three bits", h("table", { class: "numbers" }, h("tbody", {}, row(0), row(half)))),
  );
}

/** @param {number[]} code */
function lowBits(code) {
  return code
    .slice(-3)
    .map((bit) => String(Math.round(bit)))
    .join("");
}

/** How far apart the first two codes are; for codes that repeat one number, that number. @param {number[][]} codes */
function gap(codes) {
  if (codes.length < 2) return null;
  const [one, other] = codes;
  if (one.every((value) => value === one[0]) && other.every((value) => value === other[0])) return other[0] - one[0];
  return Math.hypot(...one.map((value, at) => value - other[at]));
}

/** @param {Positions} table @param {string} name @returns {Scheme | undefined} */
function find(table, name) {
  return table.schemes.find((scheme) => scheme.name.toLowerCase().startsWith(name));
}
