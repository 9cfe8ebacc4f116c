/**
 * The tour's pages on words: a text as tokens, and tokens as vectors.
 */

/** @import { Neighbors, Side, Trace } from "../../contract" */
/** @import { Reading, Step } from "../steps.js" */

import { h } from "../../page/dom.js";
import { formatCount, formatFixed, formatPercent } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { tellingTokens } from "../find.js";
import { example, fact, say, spelled } from "../text.js";

/** Tokens that are listed one by one. */
const MAX_TOKENS = 24;
/** Neighbors that are named. */
const NEIGHBORS = 3;

/** @type {Step} */
export const wordsStep = {
  id: "words",
  title: "Words become numbers",
  skipped: () => "",
  async write(reading) {
    const { trace } = reading;
    return {
      show: { view: "playground" },
      part: ".output-panel",
      text: [trace.grid === undefined ? await describeTokens(reading) : describePatches(trace), describeOutput(trace)],
      example:
        trace.grid === undefined
          ? example(
              "An example with five words: each is a row of zeros and a single 1 (one-hot). The dot product of any two " +
                "different rows is 0, so these numbers say nothing about what the words mean.",
              ["", "cat", "mat", "on", "sat", "the"],
              ["the", "cat", "sat"].map((word) => [word, ...["cat", "mat", "on", "sat", "the"].map((other) => Number(word === other))]),
            )
          : undefined,
      tryIt: trace.generated.length > 0 ? say`Point at a token of the output, or select it: the likeliest tokens at its place are listed.` : undefined,
    };
  },
};

/** @type {Step} */
export const vectorsStep = {
  id: "vectors",
  title: "Numbers become vectors",
  skipped: ({ trace }) =>
    trace.model.input === "text"
      ? ""
      : `${trace.model.name} reads no words: a linear layer makes a vector of each patch of an image, so there is no table of them.`,
  async write(reading) {
    const context = example(
      "An example: the neighbors of two words, at most two words away, in “the professor is scribbling on the board and the " +
        "student is writing down the scribbles”. Both words stand near “the” and “is”, so training moves their vectors together.",
      ["word", "its neighbors"],
      [
        ["professor", "the, is, scribbling"],
        ["student", "and, the, is, writing"],
      ],
    );
    const found = await findNeighbors(reading);
    const { token, side, vocab_size, width } = found;
    const neighbors = found.neighbors.slice(0, NEIGHBORS).flatMap((each, index) => [
      index === 0 ? "" : ", ",
      spelled(each.token),
      " (",
      fact(`similarity ${index + 1}`, each.similarity, formatFixed(each.similarity, 3)),
      ")",
    ]);
    return {
      show: { view: "embeddings", neighbors_of: `${side}.${token.id}` },
      part: ".token-choice",
      text: [
        say`The model looks ${spelled(token)} up in a table with ${fact("rows", vocab_size, formatCount(vocab_size))} rows. Its row is its [[embedding]]: ${fact("width", width, formatCount(width))} numbers that were learned in training.`,
        say`Tokens that are used alike get similar vectors. Nearest to ${spelled(token)} by cosine similarity: ${neighbors}. A cosine of 1 is the same direction.`,
        say`It is the same vector in every sentence: the rest of your text has not changed it yet.`,
      ],
      example: context,
      tryIt: say`Select another token and see its neighbors.`,
    };
  },
};

/** @param {Reading} reading */
async function describeTokens(reading) {
  const { trace } = reading;
  const { source } = trace;
  const [token] = tellingTokens(source);
  const table = await findNeighbors(reading).catch(() => null);
  const listed = source.slice(0, MAX_TOKENS).map(tokenLabel).join(" · ") + (source.length > MAX_TOKENS ? " · …" : "");
  const count = fact("tokens", source.length, formatCount(source.length));
  const text = say`For this model your text is ${count} [[tokens|token]]: ${h("span", { class: "tour-tokens" }, listed)}.`;
  if (token === undefined) return text;
  const size = table === null ? [] : say` of ${fact("vocab_size", table.vocab_size, formatCount(table.vocab_size))}`;
  return [
    ...text,
    ...say` Each has a number in the [[vocabulary]]: ${spelled(token)} is number ${fact("id", token.id, formatCount(token.id))}${size}, counted from 0.`,
  ];
}

/** @param {Trace} trace */
function describePatches({ grid, source }) {
  const { rows, columns } = /** @type {NonNullable<Trace["grid"]>} */ (grid);
  return say`For this model your image is ${fact("rows", rows)} × ${fact("columns", columns)} [[patches|patch]]. They are its words: with ${source.length - rows * columns === 0 ? "nothing else" : "its special tokens"}, it reads ${fact("tokens", source.length, formatCount(source.length))} tokens.`;
}

/** @param {Trace} trace */
function describeOutput({ generated, output, predictions }) {
  if (generated.length > 0) {
    const [{ token, probability }] = generated;
    return say`It answers “${output}”, token by token, too. It gave the first one, ${spelled(token)}, a probability of ${fact("probability", probability, formatPercent(probability))}.`;
  }
  const [choice] = predictions[0]?.choices ?? [];
  if (choice === undefined) return say`It answers in one pass.`;
  return say`It answers in one pass: ${h("i", {}, predictions[0].item === "" ? choice.label : `${predictions[0].item}: ${choice.label}`)}, with a probability of ${fact("probability", choice.probability, formatPercent(choice.probability))}.`;
}

/**
 * The neighbors of the most telling token, or in a standalone file of the first one whose neighbors it has.
 * @param {Reading} reading
 * @returns {Promise<Neighbors & { side: Side }>}
 */
async function findNeighbors({ trace, source }) {
  const { source: read, target } = trace;
  const continues = target.length > 0 && read.every(({ id }, index) => target[index]?.id === id);
  const side = continues ? "target" : "source"; // as the view lists them
  let problem = new Error("The text has no word.");
  for (const token of tellingTokens(read).slice(0, source.live ? 1 : undefined)) {
    try {
      return { ...(await source.neighbors(trace.model.id, side, token.id)), side };
    } catch (error) {
      problem = /** @type {Error} */ (error);
    }
  }
  throw problem;
}
