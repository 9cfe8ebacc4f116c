/**
 * What the view of heads shows: which attention between which tokens, for one head or several laid over each other, as
 * the state asks for. Fetched from the source and folded to words.
 */

/** @import { Matrix, Side, Source, State, Trace } from "../../contract" */
/** @import { Group } from "../../page/tokens.js" */

import { bundles, ends, folded, groups } from "../../page/tokens.js";

/** A weight that leaves no doubt where a word looks. */
const SURE = 0.6;

/** @typedef {{ layer: number, head: number | "mean", matrix: Matrix }} Shown */

/**
 * @typedef {object} Selection
 * @property {Group[]} rows
 * @property {Group[]} columns
 * @property {Shown} main the one that is shown as a matrix
 * @property {Shown[]} over those that are drawn as lines
 * @property {number} pooled how many tokens stand behind a row or column
 */

/**
 * The heads whose lines are drawn: those that were chosen, or the one that is looked at.
 * @param {State} state
 * @param {Trace} trace
 * @returns {{ layer: number, head: number | "mean" }[]}
 */
export function chosenHeads(state, trace) {
  const shape = trace.model.attention.find((each) => each.side === state.side);
  if (state.averaged) return [{ layer: state.layer, head: "mean" }];
  const chosen = state.heads
    .map((name) => name.split(".").map(Number))
    .filter(([layer, head]) => shape !== undefined && layer < shape.layers && head < shape.heads)
    .map(([layer, head]) => ({ layer, head }));
  return chosen.length === 0 ? [{ layer: state.layer, head: state.head }] : chosen;
}

/**
 * @param {Source} source
 * @param {Trace} trace
 * @param {State} state
 * @returns {Promise<Selection>}
 */
export async function select(source, trace, state) {
  const main = { layer: state.layer, head: state.averaged ? /** @type {"mean"} */ ("mean") : state.head };
  const over = chosenHeads(state, trace);
  const asked = [main, ...over].map(({ layer, head }) => source.matrix(trace.id, state.side, layer, head));
  const [first, ...rest] = await Promise.all(asked);
  const { rows, columns } = sides(trace, state, first.pooled);
  const shown = (/** @type {Matrix} */ matrix) => (matrix.pooled > 1 ? matrix : folded(matrix, rows, columns));
  return {
    rows,
    columns,
    main: { ...main, matrix: shown(first) },
    over: over.map((each, number) => ({ ...each, matrix: shown(rest[number]) })),
    pooled: first.pooled,
  };
}

/**
 * @param {Trace} trace
 * @param {Pick<State, "side" | "merged" | "special">} state
 * @param {number} pooled
 * @returns {{ rows: Group[], columns: Group[] }}
 */
export function sides(trace, state, pooled) {
  const { queries, keys } = ends(trace, state.side);
  if (pooled > 1) return { rows: bundles(queries, pooled), columns: bundles(keys, pooled) };
  return { rows: groups(queries, state), columns: groups(keys, state) };
}

/**
 * Whether a later token hides a cell: in the decoder's own attention nothing looks ahead.
 * @param {Side} side
 * @param {Group[]} rows
 * @param {Group[]} columns
 * @returns {((row: number, column: number) => boolean) | undefined}
 */
export function ahead(side, rows, columns) {
  if (side !== "decoder") return undefined;
  const last = rows.map((row) => row.tokens[row.tokens.length - 1]);
  const first = columns.map((column) => column.tokens[0]);
  return (row, column) => first[column] > last[row];
}

/**
 * The head whose links are clearest (the largest weights on other words, on the mean over the rows), and its first clear
 * token.
 * @param {Source} source
 * @param {Trace} trace
 * @param {Side} side
 * @returns {Promise<{ layer: number, head: number, token: number }>}
 */
export async function clearest(source, trace, side) {
  const shape = trace.model.attention.find((each) => each.side === side);
  const { queries, keys } = ends(trace, side);
  let best = { layer: 0, head: 0, token: -1, clear: -1 };
  for (let layer = 0; layer < (shape?.layers ?? 0); layer++) {
    const heads = await source.thumbnails(trace.id, side, layer, 64);
    heads.forEach((matrix, head) => {
      if (matrix.pooled > 1) return;
      const words = queries.map((_, query) => query).filter((query) => !queries[query].special);
      const strongest = words.map((query) =>
        Math.max(
          0,
          ...keys.map((key, at) =>
            key.special || (side !== "cross" && at === query) ? 0 : matrix.values[query * matrix.columns + at],
          ),
        ),
      );
      const clear = strongest.reduce((sum, weight) => sum + weight, 0) / Math.max(1, words.length);
      const sure = strongest.findIndex((weight) => weight >= SURE);
      const token = words[sure >= 0 ? sure : strongest.indexOf(Math.max(...strongest))] ?? -1;
      if (clear > best.clear) best = { layer, head, token, clear };
    });
  }
  const { layer, head, token } = best;
  return { layer, head, token };
}
