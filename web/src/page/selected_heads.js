/**
 * The heads that are selected, in the order of their selection. A head's place in that order is its color in all views.
 */

/** @import { AttentionType, ModelSummary, State } from "../contract" */

/** @typedef {{ layer: number, head: number | "mean" }} SelectedHead */

/**
 * The overlaid heads, or else the selected one.
 * @param {State} state
 * @param {ModelSummary} model
 * @returns {SelectedHead[]}
 */
export function selectedHeads(state, model) {
  const spec = model.attention.find((each) => each.attention_type === state.attention_type);
  if (state.average_heads) return [{ layer: state.layer, head: "mean" }];
  const heads = state.heads
    .map((name) => name.split(".").map(Number))
    .filter(([layer, head]) => spec !== undefined && layer < spec.layers && head < spec.heads)
    .map(([layer, head]) => ({ layer, head }));
  return heads.length === 0 ? [{ layer: state.layer, head: state.head }] : heads;
}

/**
 * A head's place in the order of selection; -1 if it is not selected.
 * @param {State} state
 * @param {ModelSummary} model
 * @param {AttentionType} type
 * @param {number} layer
 * @param {number} head
 */
export function headPlace(state, model, type, layer, head) {
  if (type !== state.attention_type) return -1;
  return selectedHeads(state, model).findIndex((each) => each.layer === layer && each.head === head);
}
