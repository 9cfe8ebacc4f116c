/**
 * Notes on how the displayed attention was aggregated, and the attention as a table.
 */

/** @import { AttentionType, State, Trace } from "../../contract" */
/** @import { Selection } from "./selection.js" */

import { formatPercent } from "../../page/format.js";

/**
 * How the displayed attention was aggregated. The texts may link to the glossary: [[softmax]].
 * @param {State} state
 * @param {Trace} trace
 * @param {Selection} selection
 */
export function attentionNotes(state, trace, selection) {
  const notes = [];
  const hasSubwords = [...trace.source, ...trace.target].some(
    (token, index, all) => index > 0 && token.word >= 0 && token.word === all[index - 1].word,
  );
  if (selection.pooled > 1) {
    notes.push(
      `Max-pooled because the text is long: each row and column stands for ${selection.pooled} tokens, and a cell shows the largest weight among them. Subwords are not merged.`,
    );
  } else if (state.merge_subwords) {
    notes.push(
      `Subwords are merged: weights are summed over the subwords of a key and averaged over ${state.attention_type === "encoder" ? "those of a query" : "the steps that write a word"}.${hasSubwords ? "" : " In this text every word is a single token."}`,
    );
  }
  if (!state.show_special && selection.pooled === 1) {
    const { values, rows } = selection.main.matrix;
    const visible = rows === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / rows;
    notes.push(
      `Special tokens are hidden, but weights are not renormalized: what is visible of a row adds up to ${formatPercent(visible)} on average.`,
    );
  }
  const joint = trace.model.attention.filter((spec) => spec.weights_only);
  if (joint.length > 1)
    notes.push("This model attends to the source and to the target so far at once: the weights of both add up to 1 together.");
  if (selection.main.head === "rollout") notes.push(describeRollout(state));
  else if (state.average_heads)
    notes.push(`This is the mean over all heads of layer ${state.layer + 1}; single heads may look very different.`);
  return notes;
}

/** What attention rollout is. @param {State} state */
function describeRollout({ attention_type: type, layer }) {
  const layers = layer === 0 ? "layer 1" : `layers 1 to ${layer + 1}`;
  const decoder = type === "decoder" ? " What the decoder takes from the source by cross-attention is left out." : "";
  return `[[Attention rollout|attention rollout]] (Abnar & Zuidema 2020) follows attention through ${layers} back to the input: how much of each input token is in each token after layer ${layer + 1}. R = I at first; each layer makes it R ← (0.5 · A + 0.5 · I) · R, where A is the mean over the layer’s heads, I stands for the residual connection, and the rows of the factor are renormalized to 1. It is an approximation: values and feed-forward networks do not enter.${decoder}`;
}

/**
 * @param {Selection | null} selection
 * @param {AttentionType} type
 * @returns {(string | number)[][]}
 */
export function attentionTable(selection, type) {
  const header = ["attention", "layer", "head", "query", "query text", "key", "key text", "weight"];
  if (selection === null) return [header];
  const { main, overlaid } = selection;
  const isOverlaid = overlaid.some(({ layer, head }) => layer === main.layer && head === main.head);
  const rows = (isOverlaid ? overlaid : [main, ...overlaid]).flatMap(({ layer, head, matrix }) =>
    selection.rows.flatMap((row, rowIndex) =>
      selection.columns.map((column, columnIndex) => [
        type,
        layer + 1,
        typeof head === "number" ? head + 1 : head,
        row.tokens[0],
        row.label,
        column.tokens[0],
        column.label,
        Number(matrix.values[rowIndex * matrix.columns + columnIndex].toPrecision(6)),
      ]),
    ),
  );
  return [header, ...rows];
}
