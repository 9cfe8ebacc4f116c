/**
 * One step: what it saw, and the way from the decoder's vector to the word.
 *
 * What a step was computed from belongs to the node before it, so that is what is asked for.
 */

import { h, put } from "../../page/dom.js";
import { Latest } from "./latest.js";
import { showProblem, showWaiting } from "./problem.js";
import { meanOfHeads, tokenRow, wayOfAStep } from "./step_story.js";

/** @import { BeamNode, NodeAttention, Token } from "../../contract.d.ts" */

export class StepPanel {
  /** @param {(id: number) => Promise<NodeAttention>} ask @param {() => void} again */
  constructor(ask, again) {
    this.ask = ask;
    this.again = again;
    this.answers = new Latest();
    /** @type {NodeAttention | null} */
    this.shown = null;
    /** The node that is waited for, or shown. */
    this.wanted = NaN;
    this.saw = h("div");
    this.way = h("div");
  }

  /** @param {BeamNode | undefined} chosen @param {Token[]} source */
  show(chosen, source) {
    if (!this.shown) {
      showWaiting(this.saw, "Computing what this step saw …");
      put(this.way);
    }
    this.wanted = chosen?.parent ?? -1;
    this.answers.take(
      this.ask(this.wanted),
      (answer) => this.draw(answer, chosen, source),
      (sentence) => {
        this.shown = null;
        put(this.way);
        showProblem(this.saw, `What this step was computed from could not be had: ${sentence}`, this.again);
      },
    );
  }

  /** What is shown, or null while it is waited for. */
  read() {
    return this.shown?.node === this.wanted ? this.shown : null;
  }

  forget() {
    this.answers.forget();
    this.wanted = NaN;
    this.shown = null;
  }

  /** @param {NodeAttention} before @param {BeamNode | undefined} chosen @param {Token[]} source */
  draw(before, chosen, source) {
    this.shown = before;
    const reads = before.cross.length > 0;
    const [over, back] = [meanOfHeads(before.cross), meanOfHeads(before.decoder)];
    put(
      this.saw,
      reads ? [h("h3", {}, "The source"), tokenRow(source, over, "The source, shaded by attention")] : null,
      h("h3", {}, reads ? "Written so far" : "The text so far"),
      tokenRow(before.prefix, back, "What is written so far, shaded by attention"),
    );
    put(this.way, wayOfAStep(before, chosen));
  }
}
