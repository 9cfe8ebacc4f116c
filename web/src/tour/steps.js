/**
 * The pages of the tour in their order: from the words of a text to what attention contributes to the output.
 *
 * A page reads its numbers from the current trace, and says which state of the page shows them.
 */

/** @import { Source, State, Trace } from "../contract" */
/** @import { Child } from "../page/dom.js" */

import { ablationStep } from "./steps/ablation.js";
import { attentionStep, headsStep, masksStep } from "./steps/attention.js";
import { encoderStep, positionsStep } from "./steps/layers.js";
import { beamStep, decoderStep } from "./steps/output.js";
import { vectorsStep, wordsStep } from "./steps/words.js";

/**
 * @typedef {object} Reading what a page is written from
 * @property {Trace} trace
 * @property {Source} source
 * @property {AbortSignal} signal of another page being opened instead
 *
 * @typedef {object} Page
 * @property {Partial<State> & { view: string }} show what shows in the view what the text says
 * @property {string} [part] the part of the view that is scrolled to: a selector
 * @property {Child[][]} text paragraphs
 * @property {HTMLElement} [example]
 * @property {Child[]} [tryIt]
 *
 * @typedef {object} Step
 * @property {string} id
 * @property {string} title
 * @property {(reading: Reading) => string} skipped why it does not apply to this model; "" if it does
 * @property {(reading: Reading) => Page | Promise<Page>} write
 */

/** @type {Step[]} */
export const STEPS = [
  wordsStep,
  vectorsStep,
  attentionStep,
  headsStep,
  masksStep,
  positionsStep,
  encoderStep,
  decoderStep,
  beamStep,
  ablationStep,
];
