/**
 * The tour's last page: what is left of the output if attention is taken away. It is measured with the running model; a
 * standalone file compares the attention that it contains with equal weights.
 */

/** @import { AblatedHead, AttentionType, RunRequest, Trace } from "../../contract" */
/** @import { Child } from "../../page/dom.js" */
/** @import { Page, Reading, Step } from "../steps.js" */

import { h, setChildren } from "../../page/dom.js";
import { ATTENTION_NAMES, formatCount, formatFixed, formatPercent, formatProbability } from "../../page/format.js";
import { errorMessage } from "../../page/messages.js";
import { queriesAndKeys } from "../../page/tokens.js";
import { hasHeads } from "../../views/shared/heads.js";
import { clearestRow, headsOf, readingAttention } from "../find.js";
import { example, fact, say, spelled } from "../text.js";
import { nameOf, number, selected } from "./attention.js";

/** The width of the convolution in the example. */
const CONVOLUTION = 3;

/** @type {Step} */
export const ablationStep = {
  id: "ablation",
  title: "What attention buys",
  skipped: ({ trace: { model } }) =>
    hasHeads(model)
      ? ""
      : `${model.name} has no heads to take away: it is no Transformer. Choose a Transformer above, if there is one, to see what heads contribute.`,
  async write(reading) {
    const { trace, source } = reading;
    const spec = /** @type {NonNullable<ReturnType<typeof headsOf>>} */ (
      headsOf(trace.model, "cross") ?? readingAttention(trace.model)
    );
    const reach = exampleOfReach(queriesAndKeys(trace, spec.attention_type).keys.length);
    if (!source.live) return { ...(await compareWithEqualWeights(reading, spec.attention_type)), example: reach };
    const heads = Array.from({ length: spec.layers * spec.heads }, (_, index) => ({
      attention_type: spec.attention_type,
      layer: Math.floor(index / spec.heads),
      head: index % spec.heads,
    }));
    const measured = h("p", { role: "status" }, "Running the model without these heads …");
    void measure(reading, heads.map((head) => ({ ...head, ablation: /** @type {const} */ ("zero") }))).then(
      (text) => setChildren(measured, text),
      (error) => {
        if (!reading.signal.aborted) setChildren(measured, `This could not be measured: ${errorMessage(error)}`);
      },
    );
    return {
      part: ".ablation-view .section:nth-of-type(2)",
      show: {
        view: "ablation",
        ablation: "zero",
        ablated_heads: heads.map(({ attention_type: type, layer, head }) => `${type}.${layer}.${head}`),
      },
      text: [
        say`Take it away and see. Here all ${fact("ablated", heads.length, formatCount(heads.length))} heads of ${ATTENTION_NAMES[spec.attention_type].toLowerCase()} are off ([[ablation]]): ${LOSSES[spec.attention_type]}`,
        [measured],
      ],
      example: reach,
      tryIt: say`Choose “Restore all heads”, then turn off single ones: often little changes, because other heads do the same.`,
    };
  },
};

/** What a model loses without its attention of each type. */
const LOSSES = {
  cross: "the decoder no longer sees your text, only what it has written itself.",
  decoder: "each token sees nothing but itself, so the next one is chosen by the last one alone.",
  encoder: "each token is read by itself, without its neighbors.",
};

/**
 * The outputs with and without some heads, and how probable the first output is without them.
 * @param {Reading} reading
 * @param {AblatedHead[]} heads
 * @returns {Promise<Child[]>}
 */
async function measure({ trace, source, signal }, heads) {
  /** @param {Partial<RunRequest>} change */
  const run = async (change) => {
    const id = await source.run(trace.model.id, { ...trace.request, ...change }, () => {}, signal);
    return source.trace(id);
  };
  const before = trace.request.ablated_heads?.length ? await run({ ablated_heads: [] }) : trace;
  const after = await run({ ablated_heads: heads });
  if (before.generated.length === 0) return comparePredictions(before, after);
  const outputs = say`With its heads the model writes “${before.output}”, without them ${h("b", { "data-fact": "output", "data-value": after.output }, after.output === "" ? "nothing" : `“${after.output}”`)}.`;
  const words = before.generated.filter(({ token }) => !token.special);
  const first = words[0];
  if (first === undefined) return outputs;
  const forced = await run({ ablated_heads: heads, prefix_tokens: words.map(({ token }) => token.id) });
  const [own, its] = [before, forced].map(({ generated }) =>
    generated.slice(0, words.length).reduce((sum, { probability }) => sum + Math.log(probability), 0),
  );
  const left = forced.generated[0].probability;
  return [
    ...outputs,
    ...say` The probability of ${spelled(first.token)} is then ${fact("after", left, formatProbability(left))} instead of ${fact("before", first.probability, formatPercent(first.probability))}, and the [[log-probability]] of the same words is ${fact("log after", its, formatFixed(its))} instead of ${fact("log before", own, formatFixed(own))}.`,
  ];
}

/** The likeliest answers with and without the heads, where they differ most. @param {Trace} before @param {Trace} after */
function comparePredictions(before, after) {
  const changes = before.predictions.flatMap(({ item, choices: [was] }, index) => {
    const choices = after.predictions[index]?.choices ?? [];
    const left = choices.find(({ label }) => label === was?.label)?.probability;
    return was === undefined || choices.length === 0 ? [] : [{ item, was, is: choices[0], change: Math.abs(was.probability - (left ?? 0)) }];
  });
  const [most] = changes.sort((a, b) => b.change - a.change);
  if (most === undefined) return say`This model has no output to compare.`;
  const { item, was, is } = most;
  return say`With its heads the model answers ${h("i", {}, was.label)}${item === "" ? "" : ` for “${item}”`}, with ${fact("before", was.probability, formatPercent(was.probability))}. Without them it answers ${h("i", {}, is.label)}, with ${fact("after", is.probability, formatPercent(is.probability))}.`;
}

/**
 * In a standalone file: the attention of a row, and what equal weights would give.
 * @param {Reading} reading
 * @param {AttentionType} type
 * @returns {Promise<Page>}
 */
async function compareWithEqualWeights({ trace, source }, type) {
  const row = await clearestRow(source, trace, type);
  const equal = 1 / row.weights.length;
  return {
    part: ".lines-panel",
    show: { view: "heads", ...selected(row), heads: [], average_heads: false },
    text: [
      say`What the output is without attention has to be computed with the running model, and this page is a standalone file. Run: ${h("code", {}, `regard look ${trace.model.name}`)}`,
      say`What the file shows: without a choice, each of ${fact("keys", row.weights.length, formatCount(row.weights.length))} tokens would count the same, ${fact("equal", equal, formatPercent(equal))}. In head ${number(row)}, ${nameOf(row)} gives ${spelled(row.key)} ${fact("weight", row.weight, formatPercent(row.weight))}.`,
    ],
    tryIt: say`Select other rows: where does the model spread its attention, and where does it choose?`,
  };
}

/** How many layers a convolution needs to connect all tokens of the text. @param {number} tokens */
function exampleOfReach(tokens) {
  const layers = Math.max(1, Math.ceil((tokens - 1) / (CONVOLUTION - 1)));
  return example(
    `An example: after how many layers can the last of ${formatCount(tokens)} tokens depend on the first? A convolution over ` +
      `${CONVOLUTION} tokens reaches ${CONVOLUTION - 1} tokens farther back in each layer; a recurrent network passes everything through one ` +
      "state, step by step.",
    ["", "layers", "steps in a row"],
    [
      ["attention", 1, 1],
      [`convolution over ${CONVOLUTION}`, layers, layers],
      ["recurrent network", 1, Math.max(1, tokens - 1)],
    ],
  );
}
