/**
 * One decoding step: its input with attention, and the path from the hidden state to the token.
 *
 * Both were computed for the step's parent node, so that is the node to load.
 */

import { weightLimit } from "../../page/colors/scales.js";
import { h, setChildren } from "../../page/dom.js";
import { weightLegend } from "../../page/colors/legend.js";
import { LatestRequest } from "../shared/latest_request.js";
import { showError, showLoading } from "../shared/placeholders.js";
import { attentionRow, averageHeads, nextTokenStages } from "./step_details.js";

/** @import { BeamNode, NodeAttention, Token } from "../../contract.d.ts" */

export class StepPanel {
  /** @param {(id: number) => Promise<NodeAttention>} load @param {() => void} retry */
  constructor(load, retry) {
    this.load = load;
    this.retry = retry;
    this.request = new LatestRequest();
    /** @type {NodeAttention | null} */
    this.shown = null;
    /** The node that is shown or being loaded. */
    this.requested = NaN;
    this.label = "";
    this.input = h("div");
    this.output = h("div");
  }

  /** @param {BeamNode | undefined} chosen @param {string} label of the step @param {Token[]} source */
  show(chosen, label, source) {
    this.label = label;
    if (!this.shown) {
      showLoading(this.input, "Computing the input of this step …");
      setChildren(this.output);
    }
    this.requested = chosen?.parent ?? -1;
    this.request.start(
      this.load(this.requested),
      (parent) => this.draw(parent, chosen, source),
      (message) => {
        this.shown = null;
        setChildren(this.output);
        showError(this.input, `The input of this step could not be loaded: ${message}`, this.retry);
      },
    );
  }

  /** What is shown, or null while it is loading. */
  read() {
    return this.shown?.node === this.requested ? { ...this.shown, label: this.label } : null;
  }

  clear() {
    this.request.cancel();
    this.requested = NaN;
    this.shown = null;
  }

  /** @param {NodeAttention} parent @param {BeamNode | undefined} chosen @param {Token[]} source */
  draw(parent, chosen, source) {
    this.shown = parent;
    const hasSource = parent.cross.length > 0 || !startsWith(parent.prefix, source);
    const [cross, self] = [averageHeads(parent.cross), averageHeads(parent.decoder)];
    const limit = weightLimit([...(cross ?? []), ...(self ?? [])]);
    setChildren(
      this.input,
      this.label !== "" && h("p", { class: "step-name" }, "Step ", h("strong", {}, this.label)),
      hasSource ? [h("h3", {}, "Source"), attentionRow(source, cross, limit, "The source, colored by attention")] : null,
      h("h3", {}, hasSource ? "Target so far" : "Text so far"),
      attentionRow(parent.prefix, self, limit, "The generated tokens, colored by attention"),
      cross || self ? weightLegend(limit) : null,
    );
    setChildren(this.output, nextTokenStages(parent, chosen));
  }
}

/**
 * Whether a text begins with its source, as that of a language model does: the source is the prompt.
 * @param {Token[]} prefix
 * @param {Token[]} source
 */
function startsWith(prefix, source) {
  return source.every((token, index) => prefix[index]?.id === token.id && prefix[index].piece === token.piece);
}
