/**
 * The computation behind one attention row from the vectors of its head, for a standalone file: what
 * `regard/look/analysis/attention_cell.py` computes for a server.
 */

/** @import { AttentionInputs, Cell, CellRequest } from "../contract" */

/** The window around a query has at most so many queries and keys. */
const WINDOW = 64;

/**
 * @param {AttentionInputs} inputs
 * @param {CellRequest} request
 * @returns {Cell}
 */
export function attentionCell(inputs, request) {
  const { scale, similarity, queries, keys, values } = inputs;
  const position = request.query;
  if (queries[position] === undefined)
    throw new Error(`There is no token ${position}; ${queries.length} tokens are counted from 0.`);
  const row = attentionRow(inputs, position);
  const firstQuery = windowStart(position, queries.length);
  const firstKey = windowStart(Math.min(position, keys.length - 1), keys.length);
  const rows = queries.slice(firstQuery, firstQuery + WINDOW).map((_, index) => attentionRow(inputs, firstQuery + index));
  /** @template Value @param {Value[]} numbers */
  const inWindow = (numbers) => numbers.slice(firstKey, firstKey + WINDOW);
  return {
    request,
    scale,
    similarity,
    query: queries[position],
    keys,
    values,
    ...row,
    output: values[0].map((_, dimension) =>
      row.weights.reduce((sum, weight, key) => sum + weight * values[key][dimension], 0),
    ),
    window: {
      first_query: firstQuery,
      first_key: firstKey,
      scaled_scores: rows.map((each) => inWindow(each.scaled_scores)),
      masked_scores: rows.map((each) => inWindow(each.masked_scores)),
      weights: rows.map((each) => inWindow(each.weights)),
    },
  };
}

/**
 * The scores and weights of one query.
 * @param {AttentionInputs} inputs
 * @param {number} query
 */
function attentionRow({ queries, keys, scale, allowed }, query) {
  const scores = keys.map((key) => key.reduce((sum, value, dimension) => sum + value * queries[query][dimension], 0));
  const scaled = scores.map((score) => score * scale);
  const masked = scaled.map((score, key) => (allowed === undefined || allowed[query][key] ? score : null));
  const highest = masked.reduce((most, score) => (score === null ? most : Math.max(most ?? score, score)), null) ?? 0;
  const exponentials = masked.map((score) => (score === null ? 0 : Math.exp(score - highest)));
  const total = exponentials.reduce((sum, each) => sum + each, 0) || 1; // a query whose keys are all masked has no weight
  return {
    scores,
    scaled_scores: scaled,
    masked_scores: masked,
    weights: exponentials.map((each) => each / total),
  };
}

/**
 * The first position of a window around the center.
 * @param {number} center
 * @param {number} length
 */
function windowStart(center, length) {
  return Math.max(0, Math.min(center - WINDOW / 2, length - WINDOW));
}
