/**
 * Attention patterns: which pairs of tokens a pattern allows, which of them are computed, and which a model uses.
 */

/** @import { ModelPatterns, Mounted, Patterns, PatternsRequest, State, Trace, View, ViewContext } from "../contract" */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { ModelUse } from "./patterns/model_use.js";
import { patternCard, regionLegend } from "./patterns/pattern_card.js";
import { dropDown } from "./shared/choices.js";
import { LatestRequest } from "./shared/latest_request.js";
import { showError, showLoading } from "./shared/placeholders.js";
import { section } from "./shared/section.js";
import { NumberMatrices } from "./shared/number_matrix.js";
import { slider } from "./shared/slider.js";

const LENGTHS = [16, 32, 64, 128, 256, 512, 1024, 2048];
/** Milliseconds after the last movement of a slider until the patterns are computed. */
const DELAY = 200;

/** @type {View} */
export const view = {
  name: "patterns",
  title: "Attention patterns",
  fits: () => true,
  single: () => "Attention patterns are shown for their own settings, not for a run, so there is one pane.",
  mount: (element, context) => new PatternsView(element, context),
};

/** @implements {Mounted} */
class PatternsView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store } = context;
    this.requests = new LatestRequest();
    this.modelRequests = new LatestRequest();
    /** @type {Patterns | null} */
    this.shown = null;
    /** @type {ModelPatterns | null} */
    this.ofModel = null;
    this.settled = false;
    this.key = "";
    this.traceId = "";
    this.theme = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.length = dropDown("Length of the sequence", (length) => store.set({ pattern_length: Number(length) }));
    this.window = slider("Window", 1, 512, 1, (window) => store.set({ window }));
    this.step = slider("Step of the dilated window", 1, 16, 1, (dilation) => store.set({ dilation }));
    this.tokens = slider("Global tokens", 1, 128, 1, (global_tokens) => store.set({ global_tokens }));
    this.causal = h("input", { type: "checkbox", onchange: () => store.set({ causal: this.causal.checked }) });
    this.own = h("input", {
      type: "text",
      maxlength: 200,
      size: 34,
      autocomplete: "off",
      spellcheck: "false",
      placeholder: "causal & (global(4) | sliding(256))",
    });
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      store.set({ own_pattern: this.own.value.trim() });
    };
    this.status = h("div");
    this.matrices = new NumberMatrices();
    this.cards = h("div", { class: "pattern-cards" });
    this.legend = h("div");
    this.use = new ModelUse(context);
    this.figure = h(
      "div",
      {},
      section(
        "Allowed and computed",
        "Rows are queries, columns are keys, both from the first token to the last. Point at a drawing, or use the arrow keys " +
          "in it, to read it.",
        this.legend,
        this.status,
        this.cards,
      ),
      this.use.element,
    );
    setChildren(
      element,
      h(
        "div",
        { class: "patterns-view" },
        explanation(
          "patterns",
          "Who may attend to whom?",
          "An [[attention pattern]] says which [[keys|key]] a [[query]] may attend to. With full attention, the number of pairs grows with the square of " +
            "the length: 1,000 tokens have a million pairs. Other patterns allow fewer.",
          "A GPU saves no work pair by pair. FlexAttention computes blocks of 128 × 128 pairs, all that have an allowed one, and " +
            "[[masks|mask]] the rest. So what is allowed, what is computed, and what a model then uses, are three things.",
        ),
        h(
          "div",
          { class: "controls" },
          this.length.element,
          this.window.element,
          this.step.element,
          this.tokens.element,
          h("label", { class: "check" }, this.causal, "All of them causal"),
        ),
        h(
          "form",
          { class: "controls", onsubmit: submit },
          h("label", { class: "choice" }, h("span", {}, "Your own pattern, as in a recipe"), this.own),
          h("button", { type: "submit" }, "Show"),
        ),
        this.figure,
      ),
    );
    this.exports = {
      svg: () => domToSvg(this.figure),
      csv: () => ({ name: "attention-patterns", rows: this.rows() }),
    };
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    this.showControls(state);
    const request = this.request(state);
    const key = JSON.stringify(request);
    if (key !== this.key) {
      const isFirst = this.key === "";
      this.key = key;
      this.settled = false;
      clearTimeout(this.timer);
      if (isFirst) this.load(request);
      else this.timer = setTimeout(() => this.load(request), DELAY);
    }
    const theme = document.documentElement.dataset.theme ?? "";
    if (theme !== this.theme) {
      this.theme = theme;
      setChildren(this.legend, regionLegend());
      this.draw();
    }
    if (trace !== null && trace.id !== this.traceId) this.loadModel(trace);
    this.use.update(state, trace, this.ofModel);
  }

  /** @param {State} state */
  showControls(state) {
    const length = nearestLength(state.pattern_length);
    this.length.update(
      LENGTHS.map((each) => ({ value: String(each), label: each.toLocaleString("en") })),
      String(length),
    );
    this.window.show(state.window);
    this.step.show(state.dilation);
    this.tokens.show(state.global_tokens);
    this.causal.checked = state.causal;
    if (document.activeElement !== this.own) this.own.value = state.own_pattern;
  }

  /** @param {State} state @returns {PatternsRequest} */
  request({ pattern_length, causal, own_pattern }) {
    return {
      length: nearestLength(pattern_length),
      window: this.window.value(),
      step: this.step.value(),
      tokens: this.tokens.value(),
      causal,
      own: own_pattern,
    };
  }

  /** @param {PatternsRequest} request */
  load(request) {
    if (this.shown === null) showLoading(this.status, "Computing …");
    this.requests.start(
      this.context.source.patterns(request),
      (patterns) => {
        this.shown = patterns;
        this.settled = true;
        setChildren(this.status);
        this.draw();
      },
      (message) => {
        this.shown = null;
        this.settled = true;
        setChildren(this.cards);
        showError(this.status, message, () => this.load(request));
      },
    );
  }

  /** @param {Trace} trace */
  loadModel(trace) {
    this.traceId = trace.id;
    this.ofModel = null;
    this.modelRequests.start(
      this.context.source.modelPatterns(trace.id),
      (patterns) => {
        this.ofModel = patterns;
        this.draw();
        this.use.update(this.context.store.get(), trace, patterns);
      },
      (message) => {
        this.ofModel = { layers: [] };
        this.draw();
        this.use.fail(message);
      },
    );
  }

  draw() {
    const { shown } = this;
    if (shown === null) return;
    this.matrices.destroy();
    setChildren(
      this.cards,
      shown.patterns.map((pattern) => patternCard(this.matrices, shown, pattern, this.ofModel)),
    );
  }

  destroy() {
    clearTimeout(this.timer);
    this.requests.cancel();
    this.modelRequests.cancel();
    this.use.requests.cancel();
    this.use.matrices.destroy();
    this.matrices.destroy();
  }

  read() {
    const isSettled = this.settled && (this.ofModel !== null || this.context.trace() === null) && this.use.settled;
    return isSettled ? { patterns: this.shown, model: this.ofModel, use: this.use.shown } : null;
  }

  /** @returns {(string | number)[][]} */
  rows() {
    if (this.shown === null) return [];
    const { dense, patterns } = this.shown;
    return [
      ["pattern", "allowed pairs", "pairs", "computed blocks", "blocks", "pairs in computed blocks"],
      ...patterns.map((each) => [each.pattern, each.pairs, dense, each.blocks, each.all_blocks, each.computed_pairs]),
    ];
  }
}

/** @param {number} length */
function nearestLength(length) {
  return LENGTHS.reduce((best, each) => (Math.abs(each - length) < Math.abs(best - length) ? each : best));
}
