/**
 * The heads that are selected, in the order of their selection. A head's place in that order is its color in all views.
 */

/** @import { AttentionType, HeadChoice, ModelSummary, State } from "../contract" */

/** @typedef {{ layer: number, head: HeadChoice }} SelectedHead */

/**
 * Whether attention rollout can be computed: for the self-attention of a Transformer.
 * @param {ModelSummary} model
 * @param {AttentionType} type
 */
export function hasRollout(model, type) {
  const spec = model.attention.find((each) => each.attention_type === type);
  return type !== "cross" && spec !== undefined && !spec.weights_only;
}

/**
 * The selected head, or what is shown instead of single heads.
 * @param {State} state
 * @param {ModelSummary} model
 * @returns {SelectedHead}
 */
export function selectedHead(state, model) {
  const { layer, head } = state;
  if (state.rollout && hasRollout(model, state.attention_type)) return { layer, head: "rollout" };
  return { layer, head: state.average_heads ? "mean" : head };
}

/**
 * The overlaid heads, or else the selected one.
 * @param {State} state
 * @param {ModelSummary} model
 * @returns {SelectedHead[]}
 */
export function selectedHeads(state, model) {
  const spec = model.attention.find((each) => each.attention_type === state.attention_type);
  const selected = selectedHead(state, model);
  if (typeof selected.head !== "number") return [selected];
  const heads = state.heads
    .map((name) => name.split(".").map(Number))
    .filter(([layer, head]) => spec !== undefined && layer < spec.layers && head < spec.heads)
    .map(([layer, head]) => ({ layer, head }));
  return heads.length === 0 ? [selected] : heads;
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
