/**
 * The difference of two runs' attention: second − first, where both have the row and the column.
 *
 * Rows are aligned by the token that is read there, because that is the query; columns by the token that is attended to.
 * Tokens that only one of the runs has are left out, so the rest of a row need not add up to 0.
 */

/** @import { AttentionType, Matrix, State, Trace } from "../../../contract" */
/** @import { TokenGroup } from "../../../page/tokens.js" */

import { aggregate, labelSides, queriesAndKeys } from "../../../page/tokens.js";
import { align } from "../../shared/align.js";
import { groupRowsAndColumns } from "../selection.js";

/** Tokens of the longest text whose attention is subtracted. Beyond, matrices are max-pooled. */
const MAX_TOKENS = 1024;

/** @typedef {{ pairs: [number, number][], onlyFirst: string[], onlySecond: string[] }} AlignedAxis */
/**
 * @typedef {object} AlignedRuns
 * @property {{ rows: TokenGroup[], columns: TokenGroup[] }} first
 * @property {{ rows: TokenGroup[], columns: TokenGroup[] }} second
 * @property {AlignedAxis} rows
 * @property {AlignedAxis} columns
 */

/** Why two runs have no difference of attention; "" if they have one. @param {Trace} first @param {Trace} second @param {AttentionType} type */
export function reasonForNoDifference(first, second, type) {
  if (JSON.stringify(first.model.attention) !== JSON.stringify(second.model.attention))
    return `${first.model.name} and ${second.model.name} have different layers or heads, so their heads have no difference.`;
  const longest = Math.max(longestAxis(first, type), longestAxis(second, type));
  const count = (/** @type {number} */ tokens) => tokens.toLocaleString("en");
  return longest > MAX_TOKENS ? `A difference is shown for texts of up to ${count(MAX_TOKENS)} tokens; here are ${count(longest)}.` : "";
}

/** The number of queries or keys, whichever is larger. @param {Trace} trace @param {AttentionType} type */
export function longestAxis(trace, type) {
  const { queries, keys } = queriesAndKeys(trace, type);
  return Math.max(queries.length, keys.length);
}

/** @param {Trace} first @param {Trace} second @param {AttentionType} type @param {State} state @returns {AlignedRuns} */
export function alignRuns(first, second, type, state) {
  const [one, other] = [first, second].map((trace) => groupRowsAndColumns(trace, { ...state, attention_type: type }, 1));
  return { first: one, second: other, rows: alignAxis(one.rows, other.rows), columns: alignAxis(one.columns, other.columns) };
}

/** The rows and columns of a difference. @param {AlignedRuns} runs */
export function commonAxes({ first, second, rows, columns }) {
  return {
    rows: rows.pairs.map(([one, other]) => ({ ...first.rows[one], label: commonLabel(first.rows[one].label, second.rows[other].label) })),
    columns: columns.pairs.map(([one]) => first.columns[one]),
  };
}

/**
 * The difference of a head of both runs, as token-level matrices.
 * @param {AlignedRuns} runs
 * @param {Matrix} one
 * @param {Matrix} other
 * @returns {Matrix}
 */
export function differenceOf({ first, second, rows, columns }, one, other) {
  const before = aggregate(one, first.rows, first.columns);
  const after = aggregate(other, second.rows, second.columns);
  const values = new Float32Array(rows.pairs.length * columns.pairs.length);
  let index = 0;
  for (const [row, otherRow] of rows.pairs)
    for (const [column, otherColumn] of columns.pairs) {
      values[index] = after.values[otherRow * after.columns + otherColumn] - before.values[row * before.columns + column];
      index += 1;
    }
  return { rows: rows.pairs.length, columns: columns.pairs.length, pooled: 1, values };
}

/**
 * How much of a row's attention has moved, as a mean over the rows: half the sum of the absolute differences (the total
 * variation distance, if both rows have the same tokens).
 * @param {Matrix} difference
 */
export function movedAttention({ rows, values }) {
  if (rows === 0) return 0;
  return values.reduce((sum, value) => sum + Math.abs(value), 0) / (2 * rows);
}

/** @param {TokenGroup[]} first @param {TokenGroup[]} second @returns {AlignedAxis} */
function alignAxis(first, second) {
  const items = (/** @type {TokenGroup[]} */ groups) =>
    groups.map(({ label }, index) => ({ text: labelSides(label)[0], index }));
  /** @type {AlignedAxis} */
  const aligned = { pairs: [], onlyFirst: [], onlySecond: [] };
  for (const { change, before, after } of align(items(first), items(second))) {
    if (change === "same" && before !== null && after !== null) aligned.pairs.push([before.index, after.index]);
    else {
      if (before !== null) aligned.onlyFirst.push(before.text);
      if (after !== null) aligned.onlySecond.push(after.text);
    }
  }
  return aligned;
}

/** The name of a row of both runs; a step that writes another token in the second has both: “qu → il | elle”. @param {string} first @param {string} second */
function commonLabel(first, second) {
  const written = labelSides(second)[1];
  return first === second || written === undefined ? first : `${first} | ${written}`;
}
