/**
 * Displaying tokens, and aggregating attention over groups of them: words instead of subwords, without special tokens,
 * or blocks of neighbors where a text is too long for single tokens.
 */

/** @import { AttentionType, Matrix, Token, Trace } from "../contract" */

/**
 * @typedef {object} TokenGroup one displayed row or column
 * @property {string} label
 * @property {number[]} tokens the positions of its tokens
 * @property {boolean} special
 */

/** The step after the last token: its attention is computed, but never displayed. @type {Token} */
const NO_TOKEN = { id: -1, piece: "…", text: "…", word: -1, special: true };

/**
 * The displayed text of a token; a symbol for whitespace.
 * @param {Token} token
 */
export function tokenLabel(token) {
  if (token.special) return token.piece;
  const text = token.text.trim();
  if (text !== "") return text;
  return token.text === "" ? token.piece : token.text.includes("\n") ? "↵" : "␣";
}

/**
 * The tokens of an attention matrix's rows (queries) and columns (keys).
 *
 * In cross-attention, a row is a decoding step. It is labeled with the token that the step generated, not with the one
 * before it, which is the decoder's input.
 * @param {Trace} trace
 * @param {AttentionType} type
 * @returns {{ queries: Token[], keys: Token[] }}
 */
export function queriesAndKeys(trace, type) {
  const shape = trace.arrays.find((array) => array.name === `attention/${type}`)?.shape ?? [0, 0, 0, 0];
  const [rows, columns] = [shape[2], shape[3]];
  if (type === "encoder") return { queries: trace.source.slice(0, rows), keys: trace.source.slice(0, columns) };
  if (type === "decoder") return { queries: trace.target.slice(0, rows), keys: trace.target.slice(0, columns) };
  const generated = trace.target.slice(1, rows + 1);
  if (generated.length < rows) generated.push(NO_TOKEN);
  return { queries: generated, keys: trace.source.slice(0, columns) };
}

/**
 * @param {Token[]} tokens
 * @param {{ merge_subwords: boolean, show_special: boolean }} options
 * @returns {TokenGroup[]}
 */
export function groupTokens(tokens, options) {
  /** @type {TokenGroup[]} */
  const groups = [];
  tokens.forEach((token, position) => {
    if (token === NO_TOKEN || (token.special && !options.show_special)) return;
    const last = groups.at(-1);
    const mergeable = options.merge_subwords && last !== undefined && !token.special && token.word >= 0;
    if (mergeable && last.tokens.at(-1) === position - 1 && tokens[position - 1].word === token.word) {
      last.tokens.push(position);
      last.label += tokenLabel(token);
    } else groups.push({ label: tokenLabel(token), tokens: [position], special: token.special });
  });
  return groups;
}

/**
 * Blocks of neighboring tokens, as in a max-pooled matrix.
 * @param {Token[]} tokens
 * @param {number} size
 * @returns {TokenGroup[]}
 */
export function groupNeighbors(tokens, size) {
  return Array.from({ length: Math.ceil(tokens.length / size) }, (_, index) => {
    const block = tokens.slice(index * size, (index + 1) * size);
    return {
      label: block.length === 1 ? tokenLabel(block[0]) : `${tokenLabel(block[0])}…`,
      tokens: block.map((_token, offset) => index * size + offset),
      special: block.every((token) => token.special),
    };
  });
}

/**
 * Attention between groups: the sum over the keys of a group, averaged over the queries of a group. So the sum of each
 * row stays the same.
 * @param {Matrix} matrix
 * @param {TokenGroup[]} rows
 * @param {TokenGroup[]} columns
 * @returns {Matrix}
 */
export function aggregate(matrix, rows, columns) {
  const isTokenLevel = rows.length === matrix.rows && columns.length === matrix.columns;
  if (isTokenLevel) return matrix;
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach((row, rowIndex) => {
    columns.forEach((column, columnIndex) => {
      let sum = 0;
      for (const query of row.tokens) {
        for (const key of column.tokens) sum += matrix.values[query * matrix.columns + key];
      }
      values[rowIndex * columns.length + columnIndex] = sum / row.tokens.length;
    });
  });
  return { rows: rows.length, columns: columns.length, pooled: 1, values };
}
