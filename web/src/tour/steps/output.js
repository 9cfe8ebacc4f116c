/**
 * The tour's pages on writing: the steps of the decoder, and the search among their candidates.
 */

/** @import { BeamNode, Trace } from "../../contract" */
/** @import { Reading, Step } from "../steps.js" */

import { formatCount, formatFixed, formatPercent } from "../../page/format.js";
import { firstGenerated } from "../../page/tokens.js";
import { hasBeam } from "../../views/decoding/hypotheses.js";
import { clearestRow } from "../find.js";
import { example, fact, say, spelled } from "../text.js";
import { nameOf, number, selected } from "./attention.js";

const STUDENT = ["I", "am", "a", "student", "⟨end⟩"];

/** @type {Step} */
export const decoderStep = {
  id: "decoder",
  title: "The decoder",
  skipped: ({ trace: { model } }) =>
    model.generates ? "" : `${model.name} writes no text: it answers with probabilities of labels or words, in one pass.`,
  async write(reading) {
    const { trace } = reading;
    const { show, part, text } = await describeStep(reading);
    return {
      show,
      part,
      text: [
        say`The [[decoder]] writes one token in each step. It reads what has been written so far, gives every token of its [[vocabulary]] a probability, and starts again with the chosen token added.`,
        ...text,
        trace.generated.length > 0 && say`After ${fact("steps", trace.generated.length, formatCount(trace.generated.length))} steps the output is “${trace.output}”.`,
      ].filter((paragraph) => paragraph !== false),
      example: example(
        "An example: the steps that translate “Je suis étudiant”.",
        ["step", ...STUDENT.map((_, index) => String(index + 1))],
        [
          ["reads", "⟨start⟩", ...STUDENT.slice(0, -1)],
          ["writes", ...STUDENT],
        ],
      ),
      tryIt: show.view === "heads" ? say`Select the other steps on the left: where does each look?` : say`Go through the steps with ← and →, outside of this panel.`,
    };
  },
};

/** @type {Step} */
export const beamStep = {
  id: "beam",
  title: "Beam search",
  skipped({ trace: { model, nodes } }) {
    if (!model.generates) return `${model.name} writes no text, so there is nothing to search for.`;
    return nodes.length > 0 ? "" : "This trace has no record of its search. Run the text again to see it.";
  },
  write({ trace, source }) {
    const call = leastCertain(trace);
    const step = call?.chosen.step ?? 1;
    const [best, second] = trace.hypotheses ?? [];
    const count = trace.hypotheses?.length ?? 0;
    const paragraphs = [];
    if (hasBeam(trace)) {
      const size = trace.request.decoding?.beam_size ?? trace.model.decoding.beam_size;
      paragraphs.push(
        say`The likeliest next token is not always the beginning of the likeliest text. So [[beam search]] follows several [[hypotheses|hypothesis]] at a time, here ${fact("beam_size", size)}, and drops the others.`,
      );
    } else
      paragraphs.push(
        say`${describeMethod(trace)} It follows a single [[hypothesis]]. [[Beam search|beam search]] would follow several at a time, because the likeliest next token is not always the beginning of the likeliest text.`,
      );
    if (call !== null)
      paragraphs.push(
        say`The least certain step was step ${fact("step", step)}: ${spelled(call.chosen.token)} got ${fact("chosen", Math.exp(call.chosen.log_probability), formatPercent(Math.exp(call.chosen.log_probability)))}; another candidate, ${spelled(call.rival.token)}, got ${fact("rival", Math.exp(call.rival.log_probability), formatPercent(Math.exp(call.rival.log_probability)))}.`,
      );
    if (hasBeam(trace) && second !== undefined)
      paragraphs.push(
        say`It found ${fact("hypotheses", count, formatCount(count))} complete outputs. “${best.text}” has the highest score, ${fact("score 1", best.score, formatFixed(best.score))}; next is “${second.text}” with ${fact("score 2", second.score, formatFixed(second.score))}. A score is the [[log-probability]], divided so that long outputs are not at a disadvantage.`,
      );
    return {
      show: { view: "decoding", step, node: -1 },
      part: ".search-pane",
      text: paragraphs,
      example: example(
        "An example by hand: A is likelier at first, but the best text begins with B. Greedy search takes A and never sees it.",
        ["first", "p(first)", "p(best next)", "product"],
        [
          ["A", formatFixed(0.6), formatFixed(0.4), formatFixed(0.6 * 0.4)],
          ["B", formatFixed(0.4), formatFixed(0.9), formatFixed(0.4 * 0.9)],
        ],
      ),
      tryIt: source.live && hasBeam(trace)
        ? say`Select a pruned node of the tree. Or set another beam size in “Try it” and run the text again.`
        : say`Select another node of the tree to see the step that it belongs to.`,
    };
  },
};

/** How a run without a beam chose its tokens. @param {Trace} trace */
function describeMethod({ request, model }) {
  return (request.decoding?.method ?? model.decoding.method) === "sample"
    ? say`This run drew each token at random by its probability ([[sampling]]).`
    : say`This run took the likeliest token in each step ([[greedy search]]).`;
}

/** What happens in one step. @param {Reading} reading */
async function describeStep({ trace, source }) {
  const [cross] = trace.model.attention.filter(({ attention_type }) => attention_type === "cross");
  if (cross === undefined) {
    const [written] = trace.generated;
    const read = firstGenerated(trace);
    const text =
      written === undefined
        ? []
        : [
            say`In its first step it reads ${fact("read", read, formatCount(read))} ${read === 1 ? "token" : "tokens"} and writes ${spelled(written.token)}, which got ${fact("probability", written.probability, formatPercent(written.probability))}.`,
          ];
    return { show: { view: "decoding", step: 1, node: -1 }, part: ".steps", text };
  }
  const row = await clearestRow(source, trace, "cross");
  const written = trace.generated[row.position + 1 - firstGenerated(trace)];
  const where = cross.weights_only ? "it" : say`[[cross-attention]] head ${number(row)}`;
  const chose = written && say` It gave ${spelled(written.token)} a probability of ${fact("probability", written.probability, formatPercent(written.probability))}.`;
  return {
    show: { view: "heads", ...selected(row), heads: [], average_heads: false },
    part: ".lines-panel",
    text: [
      [
        ...say`It also looks at your text. In the step ${nameOf(row)}, ${where} gives ${fact("weight", row.weight, formatPercent(row.weight))} of its attention to ${spelled(row.key)}.`,
        ...(chose ?? []),
      ],
    ],
  };
}

/**
 * The step in which the chosen token was least certain, and the next candidate for the same place.
 * @param {Trace} trace
 * @returns {{ chosen: BeamNode, rival: BeamNode } | null}
 */
function leastCertain({ nodes }) {
  const calls = nodes
    .filter(({ in_output }) => in_output)
    .flatMap((chosen) => {
      const rivals = nodes.filter(({ id, parent, step }) => id !== chosen.id && parent === chosen.parent && step === chosen.step);
      const rival = rivals.sort((a, b) => b.log_probability - a.log_probability)[0];
      return rival === undefined ? [] : [{ chosen, rival }];
    });
  return calls.sort((a, b) => a.chosen.log_probability - b.chosen.log_probability)[0] ?? null;
}
