/**
 * What has to be said of the numbers that are shown, and the numbers themselves as a table.
 */

/** @import { Side, State, Trace } from "../../contract" */
/** @import { Selection } from "./selection.js" */

import { percent } from "../../page/words.js";

/**
 * What a person has to know of the numbers that are shown.
 * @param {State} state
 * @param {Trace} trace
 * @param {Selection} selection
 */
export function remarksOn(state, trace, selection) {
  const said = [];
  const several = [...trace.source, ...trace.target].some(
    (token, at, all) => at > 0 && token.word >= 0 && token.word === all[at - 1].word,
  );
  if (selection.pooled > 1) {
    said.push(
      `This text is long: each row and column stands for ${selection.pooled} tokens, and a cell shows the largest weight among them. Words are not merged.`,
    );
  } else if (state.merged) {
    said.push(
      `Sub-words are merged to words: weights are summed over the pieces that are looked at, and averaged over those that look.${several ? "" : " Here every word is one piece."}`,
    );
  }
  if (!state.special && selection.pooled === 1) {
    const { values, rows } = selection.main.matrix;
    const kept = rows === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / rows;
    said.push(
      `Special tokens are hidden, but keep their weight: what is left of a row adds up to ${percent(kept)} on the mean.`,
    );
  }
  if (state.averaged)
    said.push(`This is the mean of all heads of layer ${state.layer + 1}. No single head looks like this.`);
  return said;
}

/**
 * @param {Selection | null} selection
 * @param {Side} side
 * @returns {(string | number)[][]}
 */
export function table(selection, side) {
  const head = ["side", "layer", "head", "query", "query text", "key", "key text", "weight"];
  if (selection === null) return [head];
  const all = selection.over.some(
    ({ layer, head: number }) => layer === selection.main.layer && number === selection.main.head,
  )
    ? selection.over
    : [selection.main, ...selection.over];
  const rows = all.flatMap(({ layer, head: number, matrix }) =>
    selection.rows.flatMap((row, down) =>
      selection.columns.map((column, across) => [
        side,
        layer + 1,
        number === "mean" ? "mean" : number + 1,
        row.tokens[0],
        row.label,
        column.tokens[0],
        column.label,
        Number(matrix.values[down * matrix.columns + across].toPrecision(6)),
      ]),
    ),
  );
  return [head, ...rows];
}
