/**
 * The tour's pages on the order of tokens, and on the encoder, whose layers these vectors go through.
 */

/** @import { ModuleBox } from "../../contract" */
/** @import { Reading, Step } from "../steps.js" */

import { h, setChildren } from "../../page/dom.js";
import { formatCount, formatFixed } from "../../page/format.js";
import { errorMessage } from "../../page/messages.js";
import { tokenLabel } from "../../page/tokens.js";
import { hasHeads } from "../../views/shared/heads.js";
import { headsOf, tellingTokens } from "../find.js";
import { example, fact, say } from "../text.js";

/** The size of the encodings that every standalone file has. */
const SIZE = 64;
const HORSES = ["Dark horses are faster than white horses", "Dark horses might be faster than white horses"];
const BANKS = ["We went to the river bank.", "I need to go to the bank to make a deposit."];

/** @type {Step} */
export const positionsStep = {
  id: "positions",
  title: "The order of the words",
  skipped: ({ trace: { model } }) =>
    hasHeads(model) ? "" : `${model.name} is no Transformer. Encodings of positions are for self-attention, which does not know the order of tokens.`,
  async write({ trace, source }) {
    const { schemes } = await source.positions(SIZE, SIZE);
    const sinusoidal = schemes.find(({ name }) => name.toLowerCase().startsWith("sinusoidal"));
    const first = trace.source.slice(0, SIZE);
    const position = Math.max(0, first.indexOf(tellingTokens(first)[0]));
    const [sine, cosine] = sinusoidal?.encoding[position] ?? [];
    const token = first[position];
    const rows = HORSES.map((sentence) => sentence.split(" ").length).map((words) => [
      `index / ${words}`,
      ...Array.from({ length: 4 }, (_, index) => formatFixed((index + 1) / words, 3)),
    ]);
    return {
      show: { view: "positions", length: SIZE, width: SIZE },
      part: ".schemes",
      text: [
        say`Nothing so far knows which token comes first: put your ${fact("tokens", trace.source.length, formatCount(trace.source.length))} tokens in another order, and [[attention]] only puts its outputs in that order, too.`,
        say`So models tell each position by numbers, its [[positional encoding]]. “Attention Is All You Need” (2017) took sines and cosines of different speeds. At position ${fact("position", position)}, counted from 0, where your ${trace.grid === undefined ? "text" : "image"} has ${h("i", {}, tokenLabel(token))}, they begin with ${fact("sine", sine, formatFixed(sine, 3))} and ${fact("cosine", cosine, formatFixed(cosine, 3))}.`,
      ],
      example: example(
        `Why not simply the index divided by the length? The first words of “${HORSES[0]}” and of “${HORSES[1]}”: neighbors are ` +
          `${formatFixed(1 / 7, 3)} apart in one sentence and ${formatFixed(1 / 8, 3)} in the other. A distance of one word should always be the same.`,
        ["word", "1", "2", "3", "4"],
        rows,
      ),
      tryIt: say`Scroll to “Requirements”: which schemes fulfill all five?`,
    };
  },
};

/** @type {Step} */
export const encoderStep = {
  id: "encoder",
  title: "The encoder",
  skipped({ trace: { model } }) {
    if (headsOf(model, "encoder") !== undefined) return "";
    return hasHeads(model)
      ? `${model.name} has no encoder: its decoder reads the text itself, with the mask of the page before.`
      : `${model.name} is no Transformer: it has no encoder made of self-attention. The view “Model” shows what it is made of.`;
  },
  async write(reading) {
    const { trace, source } = reading;
    const spec = /** @type {NonNullable<ReturnType<typeof headsOf>>} */ (headsOf(trace.model, "encoder"));
    const stack = findStack(await source.diagram(trace.model.id));
    const feedForward = stack && find(stack, ({ kind }) => kind === "feed-forward");
    const [hidden, width] = feedForward?.parameters.find(({ name }) => name.endsWith("up_proj.weight"))?.shape ?? [];
    const parameters = stack && say`, ${fact("parameters", stack.parameter_count, formatCount(stack.parameter_count))} parameters in all`;
    const sizes =
      hidden !== undefined &&
      say`, here from ${fact("width", width, formatCount(width))} numbers to ${fact("hidden", hidden, formatCount(hidden))} and back`;
    return {
      show: { view: "model" },
      part: ".diagram-container",
      text: [
        say`The [[encoder]] reads your ${fact("tokens", trace.source.length, formatCount(trace.source.length))} tokens at once, in ${fact("layers", spec.layers)} [[layers|layer]]${parameters || ""}.`,
        say`Each layer does two things: [[self-attention]], by which tokens exchange information, and a [[feed-forward network]] for each token by itself${sizes || ""}.`,
        say`Both add to the vector that came in ([[residual connection]]). So each token keeps its vector, and what the sentence says about it is added.`,
      ],
      example: readsEnglish(reading) ? banks(reading) : undefined,
      tryIt: say`Click an attention module in the diagram to see its heads.`,
    };
  },
};

/** Whether the example in English can be computed. @param {Reading} reading */
function readsEnglish({ trace: { model }, source }) {
  return source.live && model.input === "text" && model.language === "en";
}

/** An example that this model computes: the two banks before the first layer and after the last. @param {Reading} reading */
function banks({ trace, source }) {
  const result = h("p", { role: "status" }, "Computing …");
  const request = { sentences: BANKS.map((text) => ({ text, group: 0 })), word: "bank" };
  source.contextualVectors(trace.model.id, request).then(
    ({ layers }) => {
      const [first, last] = [layers[0], layers[layers.length - 1]].map(({ cosines }) => cosines[0]?.[1]);
      if (first === undefined || last === undefined) return result.remove();
      return setChildren(
        result,
        say`In the table both are the same vector: their cosine is ${fact("bank before", first, formatFixed(first))}. After the last layer it is ${fact("bank after", last, formatFixed(last))}.`,
      );
    },
    (error) => setChildren(result, `This example could not be computed: ${errorMessage(error)}`),
  );
  return h(
    "figure",
    { class: "tour-example" },
    h("figcaption", {}, `An example, computed by this model: “bank” in “${BANKS[0]}” and in “${BANKS[1]}”`),
    result,
  );
}

/** The stack of layers with the encoder's self-attention. @param {ModuleBox} box @returns {ModuleBox | undefined} */
function findStack(box) {
  const isEncoder = (/** @type {ModuleBox} */ each) => each.attention?.attention_type === "encoder";
  return find(box, (each) => each.kind === "stack" && find(each, isEncoder) !== undefined);
}

/** @param {ModuleBox} box @param {(box: ModuleBox) => boolean} matches @returns {ModuleBox | undefined} */
function find(box, matches) {
  if (matches(box)) return box;
  for (const child of box.children) {
    const found = find(child, matches);
    if (found !== undefined) return found;
  }
  return undefined;
}
