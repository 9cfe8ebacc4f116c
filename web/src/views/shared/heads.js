/**
 * What the attention of a model allows.
 */

/** @import { ModelSummary } from "../../contract.d.ts" */

/**
 * Whether a model has heads whose queries, keys and values can be opened, and that can be ablated. The attention of models
 * before the Transformer has weights only, if there is any.
 * @param {ModelSummary} model
 */
export function hasHeads(model) {
  return model.attention.some((spec) => !spec.weights_only);
}
