/**
 * Aligning two outputs token by token or word by word: what stayed, changed, was added or removed.
 *
 * The alignment has the minimum edit distance (Levenshtein 1966): a substitution, insertion or deletion costs 1. Among
 * equal alignments, a substitution is preferred to a deletion and an insertion.
 */

/** @import { Trace } from "../../contract.d.ts" */

/**
 * A generated token or word.
 * @typedef {{ text: string, probability: number, tokens: { text: string, probability: number }[] }} Unit
 */

/** @typedef {{ change: "same" | "changed" | "added" | "removed", before: Unit | null, after: Unit | null }} Pair */

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

/** @param {Unit[]} before @param {Unit[]} after @returns {Pair[]} */
export function align(before, after) {
  const distance = editDistances(before, after);
  /** @type {Pair[]} */
  const pairs = [];
  let [i, j] = [before.length, after.length];
  while (i > 0 || j > 0) {
    const current = distance[i][j];
    const isSame = i > 0 && j > 0 && before[i - 1].text === after[j - 1].text;
    if (i > 0 && j > 0 && current === distance[i - 1][j - 1] + (isSame ? 0 : 1)) {
      pairs.push({ change: isSame ? "same" : "changed", before: before[--i], after: after[--j] });
    } else if (i > 0 && current === distance[i - 1][j] + 1) {
      pairs.push({ change: "removed", before: before[--i], after: null });
    } else {
      pairs.push({ change: "added", before: null, after: after[--j] });
    }
  }
  return pairs.reverse();
}

/** The edit distance of every pair of prefixes. @param {Unit[]} before @param {Unit[]} after */
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
