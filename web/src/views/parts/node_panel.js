/**
 * One node of the beam opened: who it is, and where the model looks once it has read it.
 */

import { h, put } from "../../page/dom.js";
import { label } from "../../page/tokens.js";
import { percent } from "../../page/words.js";
import { attentionBars } from "./attention_bars.js";
import { fate, fateInWords } from "./beam.js";
import { sign } from "./candidate_table.js";
import { radioRow } from "./choose.js";
import { Latest } from "./latest.js";
import { fixed } from "./numbers.js";
import { showProblem, showWaiting } from "./problem.js";
import { scroller } from "./section.js";

/** @import { BeamNode, NodeAttention, Token, ViewContext } from "../../contract.d.ts" */
/** @import { Beam } from "./beam.js" */

export class NodePanel {
  /** @param {ViewContext} context @param {(id: number) => Promise<NodeAttention>} ask @param {() => void} again */
  constructor(context, ask, again) {
    this.context = context;
    this.ask = ask;
    this.again = again;
    this.answers = new Latest();
    /** @type {NodeAttention | null} */
    this.shown = null;
    /** The node that is waited for, or shown. */
    this.wanted = NaN;
    this.layers = radioRow("Layer", (value) => context.store.set({ layer: Number(value) }));
    this.title = h("p", { class: "node-title" });
    this.bars = h("div");
    this.element = h("div", {}, h("div", { class: "controls" }, this.layers.element), this.title, this.bars);
  }

  /** @param {Beam} beam @param {BeamNode | undefined} node @param {Token[]} source @param {number} layer */
  show(beam, node, source, layer) {
    if (!node) {
      this.forget();
      put(this.title, "No node is opened in this step.");
      return;
    }
    put(
      this.title,
      sign(fate(node)),
      ` ${beam.text(node.parent)} `,
      h("strong", {}, label(node.token)),
      ` · step ${node.step}, ${fateInWords(node)} · probability ${percent(Math.exp(node.log_probability))} · `,
      `log-probability of all so far ${fixed(node.total)}`,
    );
    this.wanted = node.id;
    if (this.shown?.node !== node.id) showWaiting(this.bars, "Computing its attention …");
    this.answers.take(
      this.ask(node.id),
      (answer) => this.draw(answer, source, layer),
      (sentence) => {
        this.shown = null;
        showProblem(this.bars, `The attention of this node could not be had: ${sentence}`, this.again);
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
    put(this.title);
    put(this.bars);
  }

  /** @param {NodeAttention} answer @param {Token[]} source @param {number} wanted */
  draw(answer, source, wanted) {
    this.shown = answer;
    const layers = Math.max(answer.cross.length, answer.decoder.length);
    const layer = Math.min(Math.max(0, wanted), layers - 1);
    const choices = Array.from({ length: layers }, (_, index) => ({ value: String(index), label: String(index + 1) }));
    this.layers.show(choices, String(layer));
    const next = answer.next.slice(0, 5).map((one) => `${label(one.token)} ${percent(one.probability)}`);
    put(
      this.bars,
      this.side("cross", "Over the source", answer.cross[layer], source, layer),
      this.side("decoder", "Over the tokens before it, and itself", answer.decoder[layer], answer.prefix, layer),
      layers === 0 ? h("p", { class: "note" }, "This model has no attention to show here.") : null,
      next.length ? h("p", { class: "note" }, `From here it would go on with: ${next.join(", ")}.`) : null,
    );
  }

  /**
   * @param {string} side
   * @param {string} title
   * @param {number[][] | undefined} heads
   * @param {Token[]} tokens
   * @param {number} layer
   */
  side(side, title, heads, tokens, layer) {
    if (!heads?.length) return [];
    const room = Math.max(280, this.bars.clientWidth - 8);
    const colour = (/** @type {number} */ head) => this.context.colour(layer, head);
    const frame = scroller(title, attentionBars(heads, tokens, { label: `${title}.`, colour, room }));
    frame.dataset.bars = side;
    return [h("h3", {}, title), frame];
  }
}
