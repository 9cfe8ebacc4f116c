/**
 * Aligning two sequences, such as two outputs token by token or word by word: what stayed, changed, was added or removed.
 *
 * The alignment has the minimum edit distance (Levenshtein 1966): a substitution, insertion or deletion costs 1. Among
 * equal alignments, a substitution is preferred to a deletion and an insertion.
 */

/** @import { Trace } from "../../contract.d.ts" */

/** Pairs of items whose distances are computed at most; the table of longer sequences would not fit into memory. */
const MAX_PAIRS = 4_000_000;

/**
 * A generated token or word.
 * @typedef {{ text: string, probability: number, tokens: { text: string, probability: number }[] }} Unit
 */

/** @typedef {"same" | "changed" | "added" | "removed"} Change */
/**
 * @template Item
 * @typedef {{ change: Change, before: Item | null, after: Item | null }} Aligned
 */
/** @typedef {Aligned<Unit>} Pair */

/**
 * The generated tokens of a trace, optionally merged into words.
 * @param {Trace} trace
 * @param {boolean} mergeSubwords
 * @returns {Unit[]}
 */
export function units(trace, mergeSubwords) {
  /** @type {Unit[]} */
  const found = [];
  let lastWord = -1;
  for (const { token, probability } of trace.generated) {
    const { text, word } = token;
    if (mergeSubwords && word >= 0 && word === lastWord) {
      const unit = found[found.length - 1];
      unit.text += text.trim();
      unit.probability *= probability;
      unit.tokens.push({ text, probability });
    } else {
      found.push({ text: text.trim() || text, probability, tokens: [{ text, probability }] });
    }
    lastWord = word;
  }
  return found;
}

/**
 * Items are the same if their texts are. What differs in very long sequences counts as removed and added.
 * @template {{ text: string }} Item
 * @param {Item[]} before
 * @param {Item[]} after
 * @returns {Aligned<Item>[]}
 */
export function align(before, after) {
  const start = commonLength(before, after);
  const end = commonLength(before.slice(start).reverse(), after.slice(start).reverse());
  const same = (/** @type {number} */ count, /** @type {number} */ i, /** @type {number} */ j) =>
    Array.from({ length: count }, (_, index) => pair("same", before[i + index], after[j + index]));
  return [
    ...same(start, 0, 0),
    ...alignDifferent(before.slice(start, before.length - end), after.slice(start, after.length - end)),
    ...same(end, before.length - end, after.length - end),
  ];
}

/**
 * @template {{ text: string }} Item
 * @param {Item[]} before
 * @param {Item[]} after
 * @returns {Aligned<Item>[]}
 */
function alignDifferent(before, after) {
  if (before.length * after.length > MAX_PAIRS)
    return [...before.map((item) => pair("removed", item, null)), ...after.map((item) => pair("added", null, item))];
  const distance = editDistances(before, after);
  /** @type {Aligned<Item>[]} */
  const pairs = [];
  let [i, j] = [before.length, after.length];
  while (i > 0 || j > 0) {
    const current = distance[i][j];
    const isSame = i > 0 && j > 0 && before[i - 1].text === after[j - 1].text;
    if (i > 0 && j > 0 && current === distance[i - 1][j - 1] + (isSame ? 0 : 1)) {
      pairs.push(pair(isSame ? "same" : "changed", before[--i], after[--j]));
    } else if (i > 0 && current === distance[i - 1][j] + 1) {
      pairs.push(pair("removed", before[--i], null));
    } else {
      pairs.push(pair("added", null, after[--j]));
    }
  }
  return pairs.reverse();
}

/**
 * @template Item
 * @param {Change} change @param {Item | null} before @param {Item | null} after
 * @returns {Aligned<Item>}
 */
function pair(change, before, after) {
  return { change, before, after };
}

/** The number of items that two sequences begin with alike. @param {{ text: string }[]} one @param {{ text: string }[]} other */
function commonLength(one, other) {
  const different = one.findIndex(({ text }, index) => text !== other[index]?.text);
  return different < 0 ? one.length : different;
}

/** The edit distance of every pair of prefixes. @param {{ text: string }[]} before @param {{ text: string }[]} after */
function editDistances(before, after) {
  const table = before.map((_, i) => [i]);
  table.push([before.length]);
  for (let j = 0; j <= after.length; j += 1) table[0][j] = j;
  for (let i = 1; i <= before.length; i += 1) {
    for (let j = 1; j <= after.length; j += 1) {
      const substitution = before[i - 1].text === after[j - 1].text ? 0 : 1;
      table[i][j] = Math.min(table[i - 1][j - 1] + substitution, table[i - 1][j] + 1, table[i][j - 1] + 1);
    }
  }
  return table;
}
