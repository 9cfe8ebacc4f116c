/**
 * Why: why the model wrote one token and not another, what its layers would have written, and what it writes if another
 * token stands there.
 *
 * The token and what it is compared with are in the state. The server explains the choice in the background.
 */

/** @import { Mounted, State, Trace, View, ViewContext } from "../contract" */
/** @import { Progress } from "./why/contrast_job.js" */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { firstGenerated } from "../page/tokens.js";
import { hasHeads } from "./shared/heads.js";
import { section } from "./shared/section.js";
import { Choice } from "./why/choice.js";
import { ContrastJob } from "./why/contrast_job.js";
import { Layers } from "./why/layers.js";
import { partLabel, wordLabel } from "./why/names.js";
import { Results } from "./why/results.js";
import { WhatIf } from "./why/what_if.js";

/** @type {View} */
export const view = {
  name: "why",
  title: "Why",
  fits: (model) => model === null || model.generates,
  mount: (element, context) => new WhyView(element, context),
};

/** @implements {Mounted} */
class WhyView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store, source } = context;
    /** @type {Progress | null} */
    this.progress = null;
    this.asked = "";
    this.job = new ContrastJob(source, (progress) => this.onProgress(progress));
    this.choice = new Choice(
      (position) => store.set({ position, contrast: "" }),
      (contrast) => store.set({ contrast }),
    );
    this.results = new Results(
      () => void this.job.stop(),
      (attention_type, layer, head) => store.set({ view: "heads", attention_type, layer, head, heads: [] }),
    );
    this.whatIf = new WhatIf(context);
    this.layers = new Layers(source);
    this.message = h("div");
    this.needsModel = h("p", { class: "note", role: "status" });
    this.figure = h(
      "div",
      {},
      section(
        "The steps",
        "In each step the decoder reads a token and writes the next: “read → written”, with the probability of the token " +
          "that was written. Choose a step, and what could stand there instead.",
        this.choice.element,
        this.needsModel,
      ),
      this.results.element,
      this.whatIf.element,
      this.layers.element,
    );
    this.body = h(
      "div",
      { class: "why-view" },
      explanation(
        "why",
        "Why this token and not that one?",
        "At every step the model gives each token of its [[vocabulary]] a probability. Choose a step and an alternative: the " +
          "model is run again without each [[head]], each [[feed-forward network]] ([[ablation]]) and each word " +
          "([[occlusion]]), and you see how the [[margin]] between the two tokens changes.",
        "Then see what the model would have written behind the alternative, and in which [[layer]] its choice appeared ([[logit lens]]).",
      ),
      this.figure,
    );
    setChildren(element, this.message, this.body);
    this.exports = {
      svg: () => domToSvg(this.figure),
      csv: () => ({ name: "why", rows: this.rows() }),
    };
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    this.body.hidden = trace === null;
    const hint = h("p", { class: "note", role: "status" }, "Run a text at the top of the page to ask why its output was written.");
    setChildren(this.message, trace === null ? hint : null);
    if (trace === null) return;
    const { live } = this.context.source;
    const isStep = trace.generated[state.position - firstGenerated(trace)] !== undefined;
    this.choice.update(trace, isStep ? state.position : -1, state.contrast, live);
    this.needsModel.hidden = live;
    setChildren(
      this.needsModel,
      `What is computed here needs the running model, and this page is a standalone file. Run: regard look ${trace.model.name}`,
    );
    this.whatIf.element.hidden = !live;
    this.layers.element.hidden = !live || !hasHeads(trace.model);
    if (live) {
      this.whatIf.update(trace);
      this.ask(trace, isStep ? state.position : -1, state.contrast);
      if (hasHeads(trace.model)) this.layers.refresh(trace);
    }
    this.results.update(trace, this.progress);
  }

  /** Ask the server about a choice, once. @param {Trace} trace @param {number} position @param {string} contrast */
  ask(trace, position, contrast) {
    const key = JSON.stringify([trace.id, position, contrast]);
    if (key === this.asked) return;
    this.asked = key;
    this.progress = null;
    this.job.leave();
    if (position < 0 || contrast === "") return;
    const id = /^#\d+$/.test(contrast) ? Number(contrast.slice(1)) : null;
    void this.job.start(trace.id, { position, contrast: id ?? contrast });
  }

  /** @param {Progress} progress */
  onProgress(progress) {
    const isFirst = this.progress?.contrast == null;
    this.progress = progress;
    const trace = this.context.trace();
    if (trace === null) return;
    this.results.update(trace, progress);
    if (isFirst && progress.contrast !== null) this.whatIf.decodeFrom(progress.contrast);
  }

  destroy() {
    this.job.leave();
    this.whatIf.leave();
    this.layers.requests.cancel();
  }

  read() {
    const { shown } = this.whatIf;
    const summary = (/** @type {Trace} */ { id, output, target, log_probability }) => ({ id, output, target, log_probability });
    return {
      position: this.choice.position,
      progress: this.progress,
      lens: this.layers.lens,
      before: shown && summary(shown.before),
      after: shown && summary(shown.after),
    };
  }

  /** The numbers of the choice, as a table. @returns {(string | number)[][]} */
  rows() {
    const [contrast, trace] = [this.progress?.contrast ?? null, this.context.trace()];
    if (contrast === null || trace === null) return [];
    return [
      ["kind", "what", "change of the margin, or contribution to it"],
      ["margin", `${contrast.token.text} / ${contrast.contrast.text}`, contrast.margin],
      ...contrast.heads.map((head) => [
        "without head",
        `${head.attention_type}.${head.layer}.${head.head}`,
        head.change,
      ]),
      ...contrast.feed_forwards.map(({ stack, layer, change }) => ["without feed-forward", `${stack}.${layer}`, change]),
      ...contrast.words.map((word) => [`without ${word.side} word`, wordLabel(trace, word), word.change]),
      ...contrast.parts.map((part) => ["direct contribution", partLabel(part), part.value]),
    ];
  }
}
