/**
 * The attention that the heads view shows: which matrices between which tokens, for one head or several overlaid ones.
 */

/** @import { AttentionType, HeadChoice, Matrix, Source, State, Trace } from "../../contract" */
/** @import { TokenGroup } from "../../page/tokens.js" */

import { selectedHead, selectedHeads } from "../../page/selected_heads.js";
import {
  aggregate,
  groupNeighbors,
  groupQueries,
  groupTokens,
  isSpecial,
  queriesAndKeys,
  queryLabel,
  tokenLabel,
} from "../../page/tokens.js";

/** A weight that shows clearly where a token attends. */
const CLEAR_WEIGHT = 0.6;
/** In longer texts no head is preferred: their weights come pooled. */
const MAX_TOKENS = 64;

/** @typedef {{ layer: number, head: HeadChoice, matrix: Matrix }} HeadMatrix */

/**
 * @typedef {object} Selection
 * @property {TokenGroup[]} rows
 * @property {TokenGroup[]} columns
 * @property {HeadMatrix} main the one shown as a matrix
 * @property {HeadMatrix[]} overlaid those drawn as lines, in the order of their selection
 * @property {number} pooled the number of tokens behind a row or column
 */

/**
 * Load the selected heads.
 * @param {Source} source
 * @param {Trace} trace
 * @param {State} state
 * @returns {Promise<Selection>}
 */
export async function select(source, trace, state) {
  const main = selectedHead(state, trace.model);
  const overlaid = selectedHeads(state, trace.model);
  const [mainMatrix, ...matrices] = await Promise.all(
    [main, ...overlaid].map(({ layer, head }) => source.matrix(trace.id, state.attention_type, layer, head)),
  );
  const { rows, columns } = groupRowsAndColumns(trace, state, mainMatrix.pooled);
  const grouped = (/** @type {Matrix} */ matrix) => (matrix.pooled > 1 ? matrix : aggregate(matrix, rows, columns));
  return {
    rows,
    columns,
    main: { ...main, matrix: grouped(mainMatrix) },
    overlaid: overlaid.map((each, index) => ({ ...each, matrix: grouped(matrices[index]) })),
    pooled: mainMatrix.pooled,
  };
}

/**
 * The displayed rows and columns of a trace's attention.
 * @param {Trace} trace
 * @param {Pick<State, "attention_type" | "merge_subwords" | "show_special">} state
 * @param {number} pooled
 * @returns {{ rows: TokenGroup[], columns: TokenGroup[] }}
 */
export function groupRowsAndColumns(trace, state, pooled) {
  const { queries, keys } = queriesAndKeys(trace, state.attention_type);
  if (pooled === 1) return { rows: groupQueries(queries, state), columns: groupTokens(keys, state) };
  const rows = queries.map((query) => ({ label: queryLabel(query), special: isSpecial(query) }));
  const columns = keys.map((key) => ({ label: tokenLabel(key), special: key.special }));
  return { rows: groupNeighbors(rows, pooled), columns: groupNeighbors(columns, pooled) };
}

/**
 * Whether a cell is masked: in decoder self-attention, no token attends to a later one.
 * @param {AttentionType} type
 * @param {TokenGroup[]} rows
 * @param {TokenGroup[]} columns
 * @returns {((row: number, column: number) => boolean) | undefined}
 */
export function causalMask(type, rows, columns) {
  if (type !== "decoder") return undefined;
  const last = rows.map((row) => row.tokens[row.tokens.length - 1]);
  const first = columns.map((column) => column.tokens[0]);
  return (row, column) => first[column] > last[row];
}

/**
 * The head with the sharpest attention (the largest weights on other tokens, averaged over the rows), and the first
 * token whose attention is clear; -1 for an image.
 * @param {Source} source
 * @param {Trace} trace
 * @param {AttentionType} type
 * @returns {Promise<{ layer: number, head: number, token: number }>}
 */
export async function sharpestHead(source, trace, type) {
  const spec = trace.model.attention.find((each) => each.attention_type === type);
  const { queries, keys } = queriesAndKeys(trace, type);
  let best = { layer: 0, head: 0, token: -1, sharpness: -1 };
  // The maxima of a long text's pooled weights would not tell; then nothing is loaded before the view is drawn.
  const layers = Math.max(queries.length, keys.length) > MAX_TOKENS ? 0 : (spec?.layers ?? 0);
  const loads = Array.from({ length: layers }, (_, layer) => source.thumbnails(trace.id, type, layer, MAX_TOKENS));
  for (const [layer, heads] of (await Promise.all(loads)).entries()) {
    heads.forEach((matrix, head) => {
      const rows = queries.map((_, query) => query).filter((query) => !isSpecial(queries[query]));
      const maxWeights = rows.map((query) =>
        Math.max(
          0,
          ...keys.map((key, index) =>
            key.special || (type !== "cross" && index === query) ? 0 : matrix.values[query * matrix.columns + index],
          ),
        ),
      );
      const sharpness = maxWeights.reduce((sum, weight) => sum + weight, 0) / Math.max(1, rows.length);
      const clear = maxWeights.findIndex((weight) => weight >= CLEAR_WEIGHT);
      const token = rows[clear >= 0 ? clear : maxWeights.indexOf(Math.max(...maxWeights))] ?? -1;
      if (sharpness > best.sharpness) best = { layer, head, token, sharpness };
    });
  }
  const { layer, head, token } = best;
  return { layer, head, token: trace.grid === undefined ? token : -1 }; // an image has a query of its own
}
