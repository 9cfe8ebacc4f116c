/**
 * Finding what is worth showing in a trace: heads and rows whose attention is clear.
 */

/** @import { AttentionType, Matrix, ModelSummary, Source, Token, Trace } from "../contract" */
/** @import { Query } from "../page/tokens.js" */

import { isSpecial, queriesAndKeys } from "../page/tokens.js";
import { sharpestHead } from "../views/heads/selection.js";

/** The longest text whose heads are compared; of a longer one, the first head is shown. */
const MAX_TOKENS = 64;
/** A weight that leaves nearly nothing to other tokens. */
const ALONE = 0.95;

/**
 * @typedef {object} ClearRow a row of a head, and the key with its largest weight
 * @property {AttentionType} attention_type
 * @property {number} layer
 * @property {number} head
 * @property {number} position of the query
 * @property {Query} query
 * @property {Token} key
 * @property {number} keyPosition
 * @property {number} weight
 * @property {ArrayLike<number>} weights all of the row
 */

/** The attention type of a model, if it has heads of that type. @param {ModelSummary} model @param {AttentionType} type */
export function headsOf(model, type) {
  return model.attention.find((spec) => spec.attention_type === type && !spec.weights_only);
}

/** The self-attention that reads the input: the encoder's, or that of a decoder alone. @param {ModelSummary} model */
export function readingAttention(model) {
  return headsOf(model, "encoder") ?? headsOf(model, "decoder");
}

/**
 * The clearest row of the sharpest head.
 * @param {Source} source
 * @param {Trace} trace
 * @param {AttentionType} type
 * @returns {Promise<ClearRow>}
 */
export async function clearestRow(source, trace, type) {
  const { layer, head, token } = await sharpestHead(source, trace, type);
  const rows = queriesAndKeys(trace, type).queries.length;
  return readRow(source, trace, { attention_type: type, layer, head, position: token < 0 ? middle(rows) : token });
}

/** The position of the row that a standalone file has of every head. @param {number} rows */
export function middle(rows) {
  return Math.min(rows - 1, Math.floor(rows / 2));
}

/**
 * @param {Source} source
 * @param {Trace} trace
 * @param {{ attention_type: AttentionType, layer: number, head: number, position: number }} row
 * @returns {Promise<ClearRow>}
 */
export async function readRow(source, trace, { attention_type, layer, head, position }) {
  const { queries, keys } = queriesAndKeys(trace, attention_type);
  const { values } = await source.row(trace.id, attention_type, layer, head, position);
  const isSelf = (/** @type {number} */ key) => attention_type !== "cross" && key === position;
  const keyPosition = largest(values, (key) => !keys[key].special && !isSelf(key)) ?? largest(values, () => true) ?? 0;
  const [query, key] = [queries[position], keys[keyPosition]];
  return { attention_type, layer, head, position, query, key, keyPosition, weight: values[keyPosition], weights: values };
}

/**
 * A row that attends to a word farther away, clearly but not to it alone: an example of what is computed. The clearest row
 * of the sharpest head if there is none.
 * @param {Source} source
 * @param {Trace} trace
 * @param {AttentionType} type
 * @returns {Promise<ClearRow>}
 */
export async function distantRow(source, trace, type) {
  const { queries, keys } = queriesAndKeys(trace, type);
  const layers = await allHeads(source, trace, type);
  /** Whether a token is a whole word. @param {Token} token */
  const isWhole = ({ word }) => queries.filter(({ read }) => read.word === word).length === 1;
  const rows = layers.flatMap((heads, layer) =>
    heads.flatMap((matrix, head) =>
      queries.flatMap((query, position) => {
        if (isSpecial(query) || !isWord(query.read) || !isWhole(query.read)) return [];
        const row = rowOf(matrix, position);
        const key = largest(row, () => true) ?? position;
        const isDistant = Math.abs(key - position) > 1 && isWord(keys[key]) && row[key] < ALONE;
        return isDistant ? [{ layer, head, position, weight: row[key] }] : [];
      }),
    ),
  );
  const [best] = rows.sort((a, b) => b.weight - a.weight);
  return best === undefined ? clearestRow(source, trace, type) : readRow(source, trace, { attention_type: type, ...best });
}

/**
 * Two heads that attend to different tokens in the same row, both clearly; null if the text is too long to compare all
 * heads, or no two differ.
 * @param {Source} source
 * @param {Trace} trace
 * @param {AttentionType} type
 * @returns {Promise<[ClearRow, ClearRow] | null>}
 */
export async function differentHeads(source, trace, type) {
  const { queries, keys } = queriesAndKeys(trace, type);
  const layers = await allHeads(source, trace, type);
  /** @type {{ position: number, heads: { layer: number, head: number }[], sum: number } | null} */
  let best = null;
  queries.forEach((query, position) => {
    if (isSpecial(query) || !isWord(query.read)) return;
    /** The head with the largest weight for each key. @type {Map<number, { layer: number, head: number, weight: number }>} */
    const byKey = new Map();
    layers.forEach((heads, layer) =>
      heads.forEach((matrix, head) => {
        const row = rowOf(matrix, position);
        const key = largest(row, (each) => each !== position && isWord(keys[each]));
        if (key !== undefined && row[key] > (byKey.get(key)?.weight ?? 0)) byKey.set(key, { layer, head, weight: row[key] });
      }),
    );
    const heads = [...byKey.values()].sort((a, b) => b.weight - a.weight).slice(0, 2);
    const sum = heads.reduce((total, { weight }) => total + weight, 0);
    if (heads.length === 2 && sum > (best?.sum ?? 0)) best = { position, heads, sum };
  });
  if (best === null) return null;
  const { position, heads } = /** @type {{ position: number, heads: { layer: number, head: number }[] }} */ (best);
  const [first, second] = await Promise.all(
    heads.map(({ layer, head }) => readRow(source, trace, { attention_type: type, layer, head, position })),
  );
  return [first, second];
}

/**
 * The tokens by how much there is to say of them: those that are a whole word first, then the longest, then the rarest,
 * which is the one with the largest number.
 * @param {Token[]} tokens
 */
export function tellingTokens(tokens) {
  const parts = (/** @type {Token} */ { word }) => tokens.filter((token) => token.word === word).length;
  const rank = (/** @type {Token} */ token) => [Number(token.word >= 0 && parts(token) === 1), token.text.trim().length, token.id];
  return tokens
    .filter(({ special, text }) => !special && text.trim() !== "")
    .sort((a, b) => rank(b).map((value, index) => value - rank(a)[index]).find((difference) => difference !== 0) ?? 0);
}

/** All heads by layer; none of a long text. @param {Source} source @param {Trace} trace @param {AttentionType} type */
async function allHeads(source, trace, type) {
  const { queries, keys } = queriesAndKeys(trace, type);
  const layers = headsOf(trace.model, type)?.layers ?? 0;
  if (Math.max(queries.length, keys.length) > MAX_TOKENS) return [];
  return Promise.all(Array.from({ length: layers }, (_, layer) => source.thumbnails(trace.id, type, layer, MAX_TOKENS)));
}

/** Whether a token is text and no punctuation, or a patch of an image. @param {Token} token */
function isWord({ special, text }) {
  return !special && /[\p{L}\p{N}]/u.test(text);
}

/** @param {Matrix} matrix @param {number} row */
function rowOf({ values, columns }, row) {
  return values.subarray(row * columns, (row + 1) * columns);
}

/** The index of the largest value among some. @param {ArrayLike<number>} values @param {(index: number) => boolean} counts */
function largest(values, counts) {
  /** @type {number | undefined} */
  let best;
  for (let index = 0; index < values.length; index++)
    if (counts(index) && (best === undefined || values[index] > values[best])) best = index;
  return best;
}
