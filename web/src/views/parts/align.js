/**
 * Two outputs laid side by side, word by word: what stayed, what changed, what came and what went.
 *
 * The alignment is the cheapest one by edits (Levenshtein 1966): leaving a word costs nothing, changing, adding or
 * dropping one costs 1. Among equally cheap ones a change is preferred to a word gone and another added.
 */

/** @import { Trace, Written } from "../../contract.d.ts" */

/**
 * A token or a word that was written.
 * @typedef {{ text: string, probability: number, tokens: { text: string, probability: number }[] }} Unit
 */

/** @typedef {{ what: "same" | "changed" | "added" | "gone", before: Unit | null, after: Unit | null }} Pair */

/**
 * What a trace wrote, token by token or merged to words.
 * @param {Trace} trace
 * @param {boolean} merged
 * @returns {Unit[]}
 */
export function units(trace, merged) {
  /** @type {Unit[]} */
  const found = [];
  let last = -1;
  for (const written of trace.written) {
    const token = part(written);
    const word = written.token.word;
    if (merged && word >= 0 && word === last) {
      const unit = found[found.length - 1];
      unit.text += token.text.trim();
      unit.probability *= token.probability;
      unit.tokens.push(token);
    } else {
      found.push({ text: token.text.trim() || token.text, probability: token.probability, tokens: [token] });
    }
    last = word;
  }
  return found;
}

/** @param {Unit[]} before @param {Unit[]} after @returns {Pair[]} */
export function align(before, after) {
  const cost = costs(before, after);
  /** @type {Pair[]} */
  const pairs = [];
  let [i, j] = [before.length, after.length];
  while (i > 0 || j > 0) {
    const here = cost[i][j];
    const same = i > 0 && j > 0 && before[i - 1].text === after[j - 1].text;
    if (i > 0 && j > 0 && here === cost[i - 1][j - 1] + (same ? 0 : 1)) {
      pairs.push({ what: same ? "same" : "changed", before: before[--i], after: after[--j] });
    } else if (i > 0 && here === cost[i - 1][j] + 1) {
      pairs.push({ what: "gone", before: before[--i], after: null });
    } else {
      pairs.push({ what: "added", before: null, after: after[--j] });
    }
  }
  return pairs.reverse();
}

/** The cost of every pair of beginnings. @param {Unit[]} before @param {Unit[]} after */
function costs(before, after) {
  const table = before.map((_, i) => [i]);
  table.push([before.length]);
  for (let j = 0; j <= after.length; j += 1) table[0][j] = j;
  for (let i = 1; i <= before.length; i += 1) {
    for (let j = 1; j <= after.length; j += 1) {
      const change = before[i - 1].text === after[j - 1].text ? 0 : 1;
      table[i][j] = Math.min(table[i - 1][j - 1] + change, table[i - 1][j] + 1, table[i][j - 1] + 1);
    }
  }
  return table;
}

/** @param {Written} written */
function part(written) {
  return { text: written.token.text, probability: written.probability };
}
