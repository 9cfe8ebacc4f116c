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

/** The convention for the rows of a decoder, for readers. */
export const STEP_NAMES =
  "A step is named “read → written”: the token that it reads, and the one that it writes; “…” stands for none.";
/** Between what a step reads and what it writes. */
const ARROW = " → ";

/**
 * @typedef {object} Query a row of attention: the token that is read there and, in a decoder, the one that is written next
 * @property {Token} read
 * @property {Token | null} [written] null: none was chosen; without it, nothing is written: in an encoder and in a prompt
 */

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
 * A step of the decoder, named in every view by the token that it reads and the one that it writes: “⟨bos⟩ → Kedi”.
 * @param {Token} read
 * @param {Token | null} written null: none was chosen
 */
export function stepLabel(read, written) {
  return joinStep(tokenLabel(read), written === null ? "…" : tokenLabel(written));
}

/** The name of a row of attention: its step in a decoder, its token elsewhere. @param {Query} query */
export function queryLabel({ read, written }) {
  return written === undefined ? tokenLabel(read) : stepLabel(read, written);
}

/** The position of the first token that was generated. @param {Trace} trace */
export function firstGenerated(trace) {
  return trace.target.length - trace.generated.length;
}

/**
 * The rows (queries) and columns (keys) of an attention matrix. A row of the decoder is the step that reads the token at
 * its position, whether it attends to the target or to the source; a column is the token that is attended to.
 * @param {Trace} trace
 * @param {AttentionType} type
 * @returns {{ queries: Query[], keys: Token[] }}
 */
export function queriesAndKeys(trace, type) {
  const shape = trace.arrays.find((array) => array.name === `attention/${type}`)?.shape ?? [0, 0, 0, 0];
  const [rows, columns] = [shape[2], shape[3]];
  const keys = (type === "decoder" ? trace.target : trace.source).slice(0, columns);
  if (type === "encoder") return { queries: trace.source.slice(0, rows).map((read) => ({ read })), keys };
  const first = firstGenerated(trace);
  const queries = trace.target
    .slice(0, rows)
    .map((read, position) => (position + 1 < first ? { read } : { read, written: trace.target[position + 1] ?? null }));
  return { queries, keys };
}

/**
 * Whether a row is hidden together with the special tokens: one that writes a special token, or reads one and writes nothing.
 * @param {Query} query
 */
export function isSpecial({ read, written }) {
  return (written ?? read).special;
}

/**
 * The rows to display. Rows that write subwords of a word can be merged: “Kedi → far” and “far → eyi” are the row
 * “Kedi → fareyi”. In an encoder and in a prompt, where nothing is written, those that read the subwords of a word are.
 * @param {Query[]} queries
 * @param {{ merge_subwords: boolean, show_special: boolean }} options
 * @returns {TokenGroup[]}
 */
export function groupQueries(queries, options) {
  const units = queries.map(({ read, written }) => written ?? read);
  const shown = queries.map((query) => options.show_special || !isSpecial(query));
  /** The spelling of the word that is read at a position, as far as it was read. @param {number} position */
  const readWord = (position) => {
    const { read } = queries[position];
    let label = tokenLabel(read);
    if (!options.merge_subwords || read.special || read.word < 0) return label;
    for (let before = position - 1; queries[before]?.read.word === read.word; before -= 1)
      label = tokenLabel(queries[before].read) + label;
    return label;
  };
  const kinds = queries.map(({ written }) => (written === undefined ? "read" : written === null ? "last" : "step"));
  return mergeWords(units, shown, options.merge_subwords, kinds).map((tokens) => {
    const word = tokens.map((position) => tokenLabel(units[position])).join("");
    const label = { read: word, last: joinStep(readWord(tokens[0]), "…"), step: joinStep(readWord(tokens[0]), word) };
    return { label: label[kinds[tokens[0]]], tokens, special: isSpecial(queries[tokens[0]]) };
  });
}

/**
 * The columns to display.
 * @param {Token[]} tokens
 * @param {{ merge_subwords: boolean, show_special: boolean }} options
 * @returns {TokenGroup[]}
 */
export function groupTokens(tokens, options) {
  const shown = tokens.map((token) => options.show_special || !token.special);
  return mergeWords(tokens, shown, options.merge_subwords).map((positions) => ({
    label: positions.map((position) => tokenLabel(tokens[position])).join(""),
    tokens: positions,
    special: tokens[positions[0]].special,
  }));
}

/**
 * The positions of the displayed tokens; those of one word together if subwords are merged.
 * @param {Token[]} tokens
 * @param {boolean[]} shown
 * @param {boolean} merge
 * @param {string[]} [kinds] only neighbors of the same kind are merged
 * @returns {number[][]}
 */
function mergeWords(tokens, shown, merge, kinds = []) {
  /** @type {number[][]} */
  const groups = [];
  tokens.forEach((token, position) => {
    if (!shown[position]) return;
    const before = groups.at(-1)?.at(-1);
    const continues =
      merge &&
      before === position - 1 &&
      !token.special &&
      token.word >= 0 &&
      tokens[before].word === token.word &&
      kinds[before] === kinds[position];
    if (continues) groups.at(-1)?.push(position);
    else groups.push([position]);
  });
  return groups;
}

/** @param {string} read @param {string} written */
function joinStep(read, written) {
  return `${read}${ARROW}${written}`;
}

/** The two sides of a step's label, or the label itself. @param {string} label */
export function labelSides(label) {
  const [read, ...written] = label.split(ARROW);
  return written.length === 0 ? [label] : [read, written.join(ARROW)];
}

/**
 * A label cut until it fits, with ellipses. A step loses letters of its longer side, so that both stay legible.
 * @param {string} label
 * @param {(text: string) => boolean} fits
 */
export function fitLabel(label, fits) {
  if (fits(label)) return label;
  const sides = labelSides(label);
  const shown = () => sides.map((side, index) => (side === kept[index] ? side : `${kept[index]}…`)).join(ARROW);
  const kept = [...sides];
  while (!fits(shown())) {
    const longest = kept.length > 1 && kept[1].length >= kept[0].length ? 1 : 0;
    if (kept[longest].length <= 1) break;
    kept[longest] = kept[longest].slice(0, -1);
  }
  return shown();
}

/**
 * Blocks of neighboring rows or columns, as in a max-pooled matrix, named after their first.
 * @param {{ label: string, special: boolean }[]} tokens
 * @param {number} size
 * @returns {TokenGroup[]}
 */
export function groupNeighbors(tokens, size) {
  return Array.from({ length: Math.ceil(tokens.length / size) }, (_, index) => {
    const block = tokens.slice(index * size, (index + 1) * size);
    return {
      label: block.length === 1 ? block[0].label : `${block[0].label}…`,
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
