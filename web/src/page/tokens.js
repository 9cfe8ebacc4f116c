/**
 * Tokens as people see them, and attention between groups of them: words in place of sub-words, special tokens left out,
 * neighbours in blocks where a text is too long to be seen token by token.
 */

/** @import { Matrix, Side, Token, Trace } from "../contract" */

/**
 * @typedef {object} Group one row or column of what is shown
 * @property {string} label
 * @property {number[]} tokens the positions behind it
 * @property {boolean} special
 */

/** What was never written: the step after the last. Its row is computed, but shown nowhere. @type {Token} */
const NOTHING = { id: -1, piece: "…", text: "…", word: -1, special: true };

/**
 * A token's letters; a sign for what has none.
 * @param {Token} token
 */
export function label(token) {
  if (token.special) return token.piece;
  const text = token.text.trim();
  if (text !== "") return text;
  return token.text === "" ? token.piece : token.text.includes("\n") ? "↵" : "␣";
}

/**
 * The tokens that are rows and those that are columns of an attention.
 *
 * In cross-attention a row is a step of writing: it is named after the token that the step wrote, not after the one
 * before it, from which it was computed.
 * @param {Trace} trace
 * @param {Side} side
 * @returns {{ queries: Token[], keys: Token[] }}
 */
export function ends(trace, side) {
  const shape = trace.arrays.find((array) => array.name === `attention/${side}`)?.shape ?? [0, 0, 0, 0];
  const [rows, columns] = [shape[2], shape[3]];
  if (side === "encoder") return { queries: trace.source.slice(0, rows), keys: trace.source.slice(0, columns) };
  if (side === "decoder") return { queries: trace.target.slice(0, rows), keys: trace.target.slice(0, columns) };
  const written = trace.target.slice(1, rows + 1);
  if (written.length < rows) written.push(NOTHING);
  return { queries: written, keys: trace.source.slice(0, columns) };
}

/**
 * @param {Token[]} tokens
 * @param {{ merged: boolean, special: boolean }} shown whether sub-words stand together, whether special tokens are there
 * @returns {Group[]}
 */
export function groups(tokens, shown) {
  /** @type {Group[]} */
  const made = [];
  tokens.forEach((token, position) => {
    if (token === NOTHING || (token.special && !shown.special)) return;
    const before = made.at(-1);
    const open = shown.merged && before !== undefined && !token.special && token.word >= 0;
    if (open && before.tokens.at(-1) === position - 1 && tokens[position - 1].word === token.word) {
      before.tokens.push(position);
      before.label += label(token);
    } else made.push({ label: label(token), tokens: [position], special: token.special });
  });
  return made;
}

/**
 * Neighbours together, as a pooled matrix has them.
 * @param {Token[]} tokens
 * @param {number} by
 * @returns {Group[]}
 */
export function bundles(tokens, by) {
  return Array.from({ length: Math.ceil(tokens.length / by) }, (_, number) => {
    const inside = tokens.slice(number * by, (number + 1) * by);
    return {
      label: inside.length === 1 ? label(inside[0]) : `${label(inside[0])}…`,
      tokens: inside.map((_token, place) => number * by + place),
      special: inside.every((token) => token.special),
    };
  });
}

/**
 * Attention between groups: what a group is looked at is the sum over its tokens, and how it looks is their mean. So
 * each row still adds up to what it did.
 * @param {Matrix} matrix
 * @param {Group[]} rows
 * @param {Group[]} columns
 * @returns {Matrix}
 */
export function folded(matrix, rows, columns) {
  const whole = rows.length === matrix.rows && columns.length === matrix.columns; // then each group is one token
  if (whole) return matrix;
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach((row, down) => {
    columns.forEach((column, across) => {
      let sum = 0;
      for (const query of row.tokens) {
        for (const key of column.tokens) sum += matrix.values[query * matrix.columns + key];
      }
      values[down * columns.length + across] = sum / row.tokens.length;
    });
  });
  return { rows: rows.length, columns: columns.length, pooled: 1, values };
}
