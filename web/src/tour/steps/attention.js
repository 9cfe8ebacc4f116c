/**
 * The tour's pages on attention: one row of a head, several heads, and masks.
 */

/** @import { Cell, CellRequest, State } from "../../contract" */
/** @import { Child } from "../../page/dom.js" */
/** @import { ClearRow } from "../find.js" */
/** @import { Page, Reading, Step } from "../steps.js" */

import { h } from "../../page/dom.js";
import { formatCount, formatFixed, formatNumber, formatPercent, headLabel } from "../../page/format.js";
import { firstGenerated, isSpecial, queriesAndKeys, queryLabel } from "../../page/tokens.js";
import { EXAMPLE, exampleSteps } from "../../views/cell/worked_example.js";
import { hasHeads } from "../../views/shared/heads.js";
import { clearestRow, differentHeads, distantRow, headsOf, middle, readRow, readingAttention } from "../find.js";
import { example, fact, say, spelled } from "../text.js";

const ANIMAL = "The animal didn't cross the street because it was too tired.";
/** The weights of two tokens, and of four under a causal mask, of an example that is common in lectures. */
const MOVIES = { words: ["I", "like", "going", "to", "movies", "⟨end⟩"], rows: [[0.5, 0.1, 0, 0.2, 0.2, 0], [0.2, 0.6, 0, 0, 0.2, 0]] };
const MASKED_MOVIES = [[1], [0.3, 0.7], [0.2, 0.3, 0.5], [0.1, 0.2, 0.1, 0.6]];

/** @type {Step} */
export const attentionStep = {
  id: "attention",
  title: "Attention",
  skipped: ({ trace }) =>
    trace.model.attention.length > 0
      ? ""
      : `${trace.model.name} has no attention: however long the text is, what counts of it has to fit into a vector of fixed size, or is near.`,
  async write(reading) {
    const { trace, source } = reading;
    if (!hasHeads(trace.model)) return writeWeights(reading);
    const spec = /** @type {NonNullable<ReturnType<typeof readingAttention>>} */ (readingAttention(trace.model) ?? trace.model.attention[0]);
    const clear = await distantRow(source, trace, spec.attention_type);
    const { row, cell } = await readCell(reading, clear);
    const dimension = cell.query.length;
    const isRoot = Math.abs(cell.scale - 1 / Math.sqrt(dimension)) < 1e-6;
    const scaling = isRoot
      ? say`divided by √${fact("dimension", dimension)}, which is ${fact("root", Math.sqrt(dimension), formatNumber(Math.sqrt(dimension)))}`
      : say`times ${fact("scale", cell.scale, formatNumber(cell.scale))}`;
    const at = row.keyPosition;
    return {
      show: { view: "cell", ...selected(row) },
      part: ".worked-example",
      text: [
        say`A [[token]] takes in what it needs from others. Look at ${nameOf(row)} in ${headLabel(row)}: its [[query]] is compared with the [[key]] of each of the ${fact("keys", cell.keys.length, formatCount(cell.keys.length))} tokens.`,
        say`With ${spelled(row.key)} the dot product is ${fact("score", cell.scores[at], formatFixed(cell.scores[at]))}; ${scaling}, it is ${fact("scaled", cell.scaled_scores[at], formatFixed(cell.scaled_scores[at]))}. [[Softmax|softmax]] turns all scores into weights that add up to 1: ${spelled(row.key)} gets ${fact("weight", cell.weights[at], formatPercent(cell.weights[at]))}.`,
        say`The head’s output is the sum of all [[values|value]], each times its weight.`,
      ],
      example: example(
        `An example by hand: “Thinking Machines”, the query of “Thinking”, vectors of ${EXAMPLE.dimension} numbers.`,
        ["", ...EXAMPLE.words],
        exampleSteps().slice(1, 4).map(([name, values]) => [name, ...values]),
      ),
      tryIt: say`Choose another query above the table, or select a token in it to see all its numbers.`,
    };
  },
};

/** @type {Step} */
export const headsStep = {
  id: "heads",
  title: "Several heads",
  skipped: ({ trace: { model } }) =>
    hasHeads(model)
      ? ""
      : `${model.name} is no Transformer: ${model.attention.length > 0 ? "its attention is made of weights without heads" : "it has no attention, so it has no heads"}.`,
  async write(reading) {
    const { trace, source } = reading;
    const { attention_type: type, layers, heads } = readingAttention(trace.model) ?? trace.model.attention[0];
    const pair = await differentHeads(source, trace, type);
    const row = pair?.[0] ?? (await clearestRow(source, trace, type));
    const count = say`Each of the ${fact("layers", layers)} [[layers|layer]] here has ${fact("heads", heads)} [[heads|head]]: ${fact("all", layers * heads)} in all, which learned on their own what to attend to.`;
    const compared =
      pair === null
        ? say`In head ${number(row)}, ${nameOf(row)} gives ${fact("weight 1", row.weight, formatPercent(row.weight))} of its attention to ${spelled(row.key)}.`
        : say`Take ${nameOf(row)}. Head ${number(pair[0])} gives ${fact("weight 1", pair[0].weight, formatPercent(pair[0].weight))} of its attention to ${spelled(pair[0].key)}, head ${number(pair[1])} gives ${fact("weight 2", pair[1].weight, formatPercent(pair[1].weight))} to ${spelled(pair[1].key)}. Their lines have different colors.`;
    const hasAnimal = source.live && trace.model.examples?.includes(ANIMAL) && trace.request.text !== ANIMAL;
    return {
      show: { view: "heads", ...selected(row), heads: (pair ?? []).map(({ layer, head }) => `${layer}.${head}`), average_heads: false },
      part: ".lines-panel",
      text: [count, compared, say`The outputs of all heads are put side by side and projected: [[multi-head attention]].`],
      example: example(
        "An example: the weights of two tokens in one head. Its output for “I” is 0.5 · I + 0.1 · like + 0.2 · to + 0.2 · movies. " +
          "A second head would have a table of its own.",
        ["", ...MOVIES.words],
        MOVIES.rows.map((weights, index) => [MOVIES.words[index], ...weights]),
      ),
      tryIt: hasAnimal
        ? say`Run “${ANIMAL}” from the examples above and select ${h("i", {}, "it")}: does any head find the animal?`
        : say`Click other heads, and other tokens on the left side of the lines.`,
    };
  },
};

/** @type {Step} */
export const masksStep = {
  id: "masks",
  title: "Masks",
  skipped({ trace: { model } }) {
    if (headsOf(model, "decoder") !== undefined) return "";
    return hasHeads(model)
      ? `${model.name} reads the whole input at once and writes no tokens, so nothing has to be masked.`
      : `${model.name} is no Transformer: it has no masked self-attention, which this page is about.`;
  },
  async write(reading) {
    const { trace, source } = reading;
    const { queries } = queriesAndKeys(trace, "decoder");
    const clear = await clearestRow(source, trace, "decoder");
    // The row after the first written token sees some tokens and misses others, if the text is long enough.
    const first = Math.max(1, firstGenerated(trace));
    const position = queries[first] !== undefined && !isSpecial(queries[first]) ? first : clear.position;
    const { row, cell } = await readCell(reading, await readRow(source, trace, { ...clear, position }));
    const isHidden = cell.masked_scores.map((score) => score === null);
    const hidden = isHidden.filter(Boolean).length;
    const visible = isHidden.length - hidden;
    const ahead = cell.weights.reduce((sum, weight, key) => (isHidden[key] ? sum + weight : sum), 0);
    return {
      show: { view: "heads", ...selected(row), heads: [], average_heads: false },
      part: ".matrix-section",
      text: [
        say`In training, the [[decoder]] is given the whole output at once. So that it learns to write the next token and not to copy it, a [[mask]] hides all later ones.`,
        say`The step ${nameOf(row)} sees ${fact("visible", visible, formatCount(visible))} ${visible === 1 ? "token" : "tokens"} and is kept from ${fact("hidden", hidden, formatCount(hidden))}: these get ${fact("ahead", ahead, formatPercent(ahead))} in head ${number(row)}, as in every other. They are gray in the matrix.`,
        say`The score of a hidden token becomes −∞ before the [[softmax]], so its weight is exactly 0 and the rest still adds up to 1.`,
      ],
      example: example(
        "An example: the weights of the first four words of “I like going to movies”. Each sees itself and the words before it.",
        ["", ...MOVIES.words.slice(0, 4)],
        MASKED_MOVIES.map((row_, index) => [MOVIES.words[index], ...MASKED_MOVIES.map((_, key) => row_[key] ?? "–")]),
      ),
      tryIt: say`Select other rows of the matrix: each row down sees one token more.`,
    };
  },
};

/** The page on attention for a model before the Transformer: it has weights, but no queries and keys. @param {Reading} reading @returns {Promise<Page>} */
async function writeWeights({ trace, source }) {
  const row = await clearestRow(source, trace, trace.model.attention[0].attention_type);
  return {
    show: { view: "heads", ...selected(row), heads: [], average_heads: false },
    part: ".lines-panel",
    text: [
      say`This model is no Transformer, but it has [[attention]]: it weighs the tokens that it has read, anew in each step.`,
      say`In ${nameOf(row)}, ${fact("weight", row.weight, formatPercent(row.weight))} of the attention goes to ${spelled(row.key)}. All weights of a row add up to 1.`,
    ],
    tryIt: say`Select other steps on the left side of the lines.`,
  };
}

/**
 * The numbers of a row; a standalone file has those of the middle row of each head, but not of all.
 * @param {Reading} reading
 * @param {ClearRow} row
 * @returns {Promise<{ row: ClearRow, cell: Cell }>}
 */
async function readCell({ trace, source }, row) {
  /** @param {ClearRow} each @returns {CellRequest} */
  const request = ({ attention_type, layer, head, position }) => ({ attention_type, layer, head, query: position });
  try {
    return { row, cell: await source.cell(trace.id, request(row)) };
  } catch (error) {
    if (source.live) throw error;
    const other = { ...row, position: middle(queriesAndKeys(trace, row.attention_type).queries.length) };
    const cell = await source.cell(trace.id, request(other));
    return { row: await readRow(source, trace, other), cell };
  }
}

/** The state that selects a row. @param {ClearRow} row @returns {Partial<State>} */
export function selected({ attention_type, layer, head, position }) {
  return { attention_type, layer, head, token: position, token_role: "query", merge_subwords: false, show_special: true };
}

/** The name of a row: a token, or a step of the decoder. @param {ClearRow} row @returns {Child} */
export function nameOf({ query }) {
  return h("i", {}, queryLabel(query));
}

/** "2.4". @param {ClearRow} row */
export function number({ layer, head }) {
  return `${layer + 1}.${head + 1}`;
}
