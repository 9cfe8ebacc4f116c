/**
 * Head ablation: ablate heads, decode again, and compare the outputs; and measure the importance of every head on a dev set.
 *
 * The ablated heads are in the store. The ablated run is compared with the current trace, which stays.
 */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { errorMessage } from "../page/messages.js";
import { describeRun } from "../page/run_conditions.js";
import { HeadGrid, harm } from "./ablation/head_grid.js";
import { ImportanceControl } from "./ablation/importance_control.js";
import { diffRows, outputDiff } from "./shared/output_diff.js";
import { radioRow } from "./shared/choices.js";
import { hasHeads } from "./shared/heads.js";
import { showError } from "./shared/placeholders.js";
import { section } from "./shared/section.js";

/** @import { AblatedHead, AttentionType, HeadImportance, Mounted, RunRequest, State, Trace, View, ViewContext } from "../contract.d.ts" */

/** Milliseconds without a change after which the model decodes again. */
const DELAY = 350;

/** @type {View} */
export const view = {
  name: "ablation",
  title: "Head ablation",
  fits: (model) => model === null || hasHeads(model),
  mount: (element, context) => new AblationView(element, context),
};

/** @implements {Mounted} */
class AblationView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store } = context;
    /** Traces by model and request. @type {Map<string, Trace>} */
    this.runs = new Map();
    /** @type {{ before: Trace, after: Trace } | null} */
    this.shown = null;
    /** @type {HeadImportance | null} */
    this.importance = null;
    this.requested = "";
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.grid = new HeadGrid((key) => this.toggle(key));
    this.ablationRow = radioRow("Replace an ablated head’s output by", (value) =>
      store.set({ ablation: /** @type {"zero" | "mean"} */ (value) }),
    );
    this.resetButton = h(
      "button",
      { type: "button", "data-no-export": true, onclick: () => store.set({ ablated_heads: [] }) },
      "Restore all heads",
    );
    this.decodeButton = h(
      "button",
      { type: "button", "data-no-export": true, onclick: () => this.decode() },
      "Decode again",
    );
    this.mergeBox = h("input", {
      type: "checkbox",
      onchange: () => store.set({ merge_subwords: this.mergeBox.checked }),
    });
    this.mergeRow = h(
      "div",
      { class: "controls", "data-no-export": true },
      h("label", {}, this.mergeBox, " merge subwords into words"),
    );
    this.output = h("div");
    this.importanceControl = new ImportanceControl(context.source, store, (importance) => {
      this.importance = importance;
      this.redraw();
    });
    this.message = h("div");
    this.figure = this.buildFigure();
    this.body = this.build();
    setChildren(element, this.message, this.body);
    this.exports = {
      svg: () => domToSvg(this.figure),
      csv: () => ({ name: "head-ablation", rows: this.rows() }),
      caption: () => this.caption(),
    };
  }

  /** The part that is exported as an image. */
  buildFigure() {
    const heads = section(
      "Heads",
      "Each toggle is a head. Click it, or move with the arrow keys and press Space.",
      h("div", { class: "controls" }, this.ablationRow.element, this.resetButton, this.decodeButton),
      this.grid.element,
    );
    const change = section(
      "Change of the output",
      "The output with all heads and with the ablated ones, aligned, with the probability of each token.",
      this.mergeRow,
      this.output,
    );
    return h("div", {}, heads, change);
  }

  build() {
    return h(
      "div",
      { class: "ablation-view" },
      explanation(
        "ablation",
        "What does a head contribute?",
        "Ablate it ([[ablation]]) and compare: the model decodes again without it, and the difference is shown below. Often nothing " +
          "changes, because other [[heads|head]] are redundant with it.",
        "Measure the importance of all heads ([[head importance]]) to find those that matter most, then ablate these.",
      ),
      this.figure,
      section(
        "Head importance",
        "Each head is ablated on its own over a [[dev set|validation set]]. Its toggle above then shows how much worse the model gets " +
          "without it. This takes a while and runs in the background.",
        this.importanceControl.element,
      ),
    );
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    const model = this.context.model() ?? trace?.model ?? null;
    this.body.hidden = model === null;
    setChildren(this.message, model ? null : h("p", { class: "note", role: "status" }, "Choose a model first."));
    if (!model) return;
    const ablated = state.ablated_heads.filter((key) => parseHead(key, state.ablation) !== null);
    this.ablationRow.update(
      [
        { value: "zero", label: "zero" },
        { value: "mean", label: "its mean" },
      ],
      state.ablation,
    );
    this.resetButton.disabled = ablated.length === 0;
    this.decodeButton.disabled = ablated.length === 0 || trace === null;
    this.mergeBox.checked = state.merge_subwords;
    this.mergeRow.hidden = trace !== null && trace.generated.length === 0;
    this.importanceControl.show(model);
    this.grid.update(model, ablated, this.importance);
    if (!trace) {
      this.cancel("");
      setChildren(this.output, h("p", { class: "note" }, "Run a text at the top of the page to compare its output here."));
      return;
    }
    const key = JSON.stringify([trace.id, ablated, state.ablation]);
    if (key !== this.requested) {
      this.cancel(key);
      if (ablated.length === 0)
        setChildren(
          this.output,
          h(
            "p",
            { class: "note" },
            describeUnchanged(trace),
          ),
        );
      else this.timer = setTimeout(() => this.decode(), DELAY);
    } else if (this.shown) this.drawDiff(state.merge_subwords);
  }

  destroy() {
    this.cancel("");
    this.importanceControl.destroy();
  }

  read() {
    const { shown, importance } = this;
    if (!shown && this.context.store.get().ablated_heads.length > 0) return null;
    const summary = (/** @type {Trace} */ { output, generated, log_probability }) => ({ output, generated, log_probability });
    return {
      before: shown && summary(shown.before),
      after: shown && summary(shown.after),
      ablated_heads: shown?.after.request.ablated_heads ?? [],
      importance,
    };
  }

  redraw() {
    this.update(this.context.store.get(), this.context.trace());
  }

  /** Cancel the pending or running comparison, because another one is requested. @param {string} requested */
  cancel(requested) {
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
    this.shown = null;
    this.requested = requested;
  }

  /** @param {string} key */
  toggle(key) {
    const { ablated_heads: ablated } = this.context.store.get();
    const next = ablated.includes(key) ? ablated.filter((other) => other !== key) : [...ablated, key];
    this.context.store.set({ ablated_heads: next });
  }

  async decode() {
    const [trace, state] = [this.context.trace(), this.context.store.get()];
    if (!trace) return;
    clearTimeout(this.timer);
    this.running?.abort();
    const abort = new AbortController();
    this.running = abort;
    const ablated = state.ablated_heads.flatMap((key) => parseHead(key, state.ablation) ?? []);
    setChildren(this.output, h("p", { class: "note", role: "status" }, "Decoding again …"));
    try {
      const before = trace.request.ablated_heads?.length ? await this.run(trace, [], abort.signal) : trace;
      const after = await this.run(trace, ablated, abort.signal);
      if (abort.signal.aborted) return;
      this.shown = { before, after };
      this.drawDiff(state.merge_subwords);
    } catch (error) {
      if (abort.signal.aborted) return;
      this.shown = null;
      showError(this.output, `Decoding again failed: ${errorMessage(error)}`, () => void this.decode());
    }
  }

  /**
   * Run the same text with some heads ablated, once.
   * @param {Trace} trace
   * @param {AblatedHead[]} ablated
   * @param {AbortSignal} signal
   */
  async run(trace, ablated, signal) {
    const model = this.context.store.get().model || trace.model.id;
    /** @type {RunRequest} */
    const request = { ...trace.request, ablated_heads: ablated };
    const key = JSON.stringify([model, request]);
    const cached = this.runs.get(key);
    if (cached) return cached;
    const { source } = this.context;
    const id = await source.run(model, request, () => {}, signal);
    const recorded = await source.trace(id);
    this.runs.set(key, recorded);
    return recorded;
  }

  /** @param {boolean} mergeSubwords */
  drawDiff(mergeSubwords) {
    if (!this.shown) return;
    const { before, after } = this.shown;
    const openButton = h(
      "button",
      { type: "button", "data-no-export": true, onclick: () => this.context.store.set({ trace: after.id }) },
      "Open this run in the other views",
    );
    setChildren(this.output, outputDiff(before, after, mergeSubwords), after.id ? openButton : null);
  }

  /** What both runs that are compared were made with. Which heads are ablated in one of them is drawn. */
  caption() {
    const trace = this.context.trace();
    return describeRun(trace && { ...trace, request: { ...trace.request, ablated_heads: [] } });
  }

  /** The outputs and the heads with their importance, as a table. @returns {(string | number)[][]} */
  rows() {
    const state = this.context.store.get();
    const model = this.context.model();
    /** @type {(string | number)[][]} */
    const rows = [["table", "change", "before", "probability before", "after", "probability after"]];
    if (this.shown) rows.push(...diffRows(this.shown.before, this.shown.after, state.merge_subwords));
    rows.push(["table", "head", "ablated", "value without it", "change", "importance"]);
    const scores = new Map(
      (this.importance?.heads ?? []).map((head) => [`${head.attention_type}.${head.layer}.${head.head}`, head]),
    );
    for (const { attention_type: type, layers, heads } of model?.attention ?? []) {
      for (let layer = 0; layer < layers; layer += 1) {
        for (let head = 0; head < heads; head += 1) {
          const key = `${type}.${layer}.${head}`;
          const score = scores.get(key);
          rows.push([
            "heads",
            key,
            state.ablated_heads.includes(key) ? "yes" : "no",
            score?.value ?? "",
            score?.change ?? "",
            score && this.importance ? harm(this.importance, score) : "",
          ]);
        }
      }
    }
    return rows;
  }
}

/** What is shown while no head is chosen here. @param {Trace} trace */
function describeUnchanged({ output, request }) {
  const text = request.ablated_heads?.length
    ? "The shown run has heads off, as the notice above says; none is chosen here to compare it with"
    : "No head is ablated";
  return output ? `${text}: “${output}”` : `${text}.`;
}

/**
 * A head named "attention_type.layer.head"; null if the name is not valid.
 * @param {string} key
 * @param {"zero" | "mean"} ablation
 * @returns {AblatedHead | null}
 */
function parseHead(key, ablation) {
  const [type, layer, head] = key.split(".");
  const isValid =
    ["encoder", "decoder", "cross"].includes(type) && /^\d+$/.test(layer ?? "") && /^\d+$/.test(head ?? "");
  return isValid
    ? { attention_type: /** @type {AttentionType} */ (type), layer: Number(layer), head: Number(head), ablation }
    : null;
}
