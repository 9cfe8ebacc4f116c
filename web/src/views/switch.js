/**
 * Switch heads off, decode again, and see what changes in the output; and what each head is worth on a development set.
 *
 * Which heads are off is in the store. The run with heads off stands beside the trace that is looked at, which stays.
 */

import { h, put } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { radioRow } from "./parts/choose.js";
import { HeadGrid, harm } from "./parts/head_grid.js";
import { sentence } from "./parts/latest.js";
import { diffRows, outputDiff } from "./parts/output_diff.js";
import { pictureOf } from "./parts/picture.js";
import { showProblem } from "./parts/problem.js";
import { section } from "./parts/section.js";
import { WorthControl } from "./parts/worth_control.js";

/** @import { Mounted, RunRequest, Side, State, Switched, Trace, View, ViewContext, Worth } from "../contract.d.ts" */

/** How long a person may go on switching before it is decoded again, in milliseconds. */
const PATIENCE = 350;

/** @type {View} */
export const view = {
  name: "switch",
  title: "Switch heads off",
  fits: (model) => model === null || model.attention.length > 0,
  mount: (element, context) => new Switches(element, context),
};

/** @implements {Mounted} */
class Switches {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store } = context;
    /** What was run, by what was asked. @type {Map<string, Trace>} */
    this.runs = new Map();
    /** @type {{ before: Trace, after: Trace } | null} */
    this.shown = null;
    /** @type {Worth | null} */
    this.worth = null;
    this.wanted = "";
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.waiting = undefined;
    this.grid = new HeadGrid((key) => this.turn(key));
    this.how = radioRow("A head that is off gives", (value) =>
      store.set({ off_how: /** @type {"zero" | "mean"} */ (value) }),
    );
    this.allOn = h(
      "button",
      { type: "button", "data-no-picture": true, onclick: () => store.set({ off: [] }) },
      "All on",
    );
    this.again = h("button", { type: "button", "data-no-picture": true, onclick: () => this.decode() }, "Decode again");
    this.units = h("input", { type: "checkbox", onchange: () => store.set({ merged: this.units.checked }) });
    this.unitsRow = h(
      "div",
      { class: "controls", "data-no-picture": true },
      h("label", {}, this.units, " merge sub-words to words"),
    );
    this.output = h("div");
    this.control = new WorthControl(
      context.source,
      store,
      (worth) => {
        this.worth = worth;
        this.redraw();
      },
    );
    this.message = h("div");
    this.figure = this.draft();
    this.body = this.build();
    put(element, this.message, this.body);
    this.exports = {
      svg: () => pictureOf(this.figure),
      csv: () => ({ name: "heads-off", rows: this.rows() }),
    };
  }

  /** The switches and what they change: what is saved as a picture. */
  draft() {
    const heads = section(
      "The heads",
      "Each switch is one head. Click it, or walk with the arrow keys and press the space bar.",
      h("div", { class: "controls" }, this.how.element, this.allOn, this.again),
      this.grid.element,
    );
    const change = section(
      "What changes in the output",
      "The output with all heads and without those that are off, word under word, with the probability the " +
        "model gave to each.",
      this.unitsRow,
      this.output,
    );
    return h("div", {}, heads, change);
  }

  build() {
    return h(
      "div",
      { class: "switch-view" },
      explanation(
        "switch",
        "What is a head good for?",
        "Switch it off and see. The model writes again without it, and below stands what changed. Often " +
          "nothing does: other heads know the same.",
        "Measure every head to see which ones matter most, then switch off the strongest.",
      ),
      this.figure,
      section(
        "What each head is worth",
        "Every head is switched off by itself over a set of sentences. The map above fills with how much " +
          "worse the model gets without it. This takes a while and goes on in the background.",
        this.control.element,
      ),
    );
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    const model = this.context.model() ?? trace?.model ?? null;
    this.body.hidden = model === null;
    put(this.message, model ? null : h("p", { class: "note", role: "status" }, "Choose a model first."));
    if (!model) return;
    const off = state.off.filter((key) => switched(key, state.off_how) !== null);
    this.how.show(
      [
        { value: "zero", label: "nothing (zero)" },
        { value: "mean", label: "its mean" },
      ],
      state.off_how,
    );
    this.allOn.disabled = off.length === 0;
    this.again.disabled = off.length === 0 || trace === null;
    this.units.checked = state.merged;
    this.unitsRow.hidden = trace !== null && trace.written.length === 0;
    this.control.show(model);
    this.grid.show(model, off, this.worth);
    if (!trace) {
      this.wait("");
      put(
        this.output,
        h("p", { class: "note" }, "Write a text in the box and run it; then its output is compared here."),
      );
      return;
    }
    const wanted = JSON.stringify([trace.id, off, state.off_how]);
    if (wanted !== this.wanted) {
      this.wait(wanted);
      if (off.length === 0)
        put(
          this.output,
          h(
            "p",
            { class: "note" },
            trace.output ? `All heads are on: “${trace.output}”` : "All heads are on.",
          ),
        );
      else this.waiting = setTimeout(() => this.decode(), PATIENCE);
    } else if (this.shown) this.drawDiff(state.merged);
  }

  destroy() {
    this.wait("");
    this.control.destroy();
  }

  read() {
    const { shown, worth } = this;
    if (!shown && this.context.store.get().off.length > 0) return null;
    return {
      before: shown && { output: shown.before.output, written: shown.before.written, total: shown.before.total },
      after: shown && { output: shown.after.output, written: shown.after.written, total: shown.after.total },
      off: shown?.after.request.off ?? [],
      worth,
    };
  }

  redraw() {
    this.update(this.context.store.get(), this.context.trace());
  }

  /** Something else is wanted: what was under way is no longer. @param {string} wanted */
  wait(wanted) {
    clearTimeout(this.waiting);
    this.running?.abort();
    this.running = null;
    this.shown = null;
    this.wanted = wanted;
  }

  /** @param {string} key */
  turn(key) {
    const { off } = this.context.store.get();
    this.context.store.set({ off: off.includes(key) ? off.filter((other) => other !== key) : [...off, key] });
  }

  async decode() {
    const [trace, state] = [this.context.trace(), this.context.store.get()];
    if (!trace) return;
    clearTimeout(this.waiting);
    this.running?.abort();
    const stop = new AbortController();
    this.running = stop;
    const off = state.off.flatMap((key) => switched(key, state.off_how) ?? []);
    put(this.output, h("p", { class: "note waiting", role: "status" }, "Decoding again …"));
    try {
      const before = trace.request.off?.length ? await this.run(trace, [], stop) : trace;
      const after = await this.run(trace, off, stop);
      if (stop.signal.aborted) return;
      this.shown = { before, after };
      this.drawDiff(state.merged);
    } catch (error) {
      if (stop.signal.aborted) return;
      this.shown = null;
      showProblem(this.output, `It could not be decoded again: ${sentence(error)}`, () => void this.decode());
    }
  }

  /**
   * Run the same text with some heads off, once.
   * @param {Trace} trace
   * @param {Switched[]} off
   * @param {AbortController} stop
   */
  async run(trace, off, stop) {
    const model = this.context.store.get().model || trace.model.id;
    /** @type {RunRequest} */
    const request = { ...trace.request, off };
    const key = JSON.stringify([model, request]);
    const known = this.runs.get(key);
    if (known) return known;
    const { source } = this.context;
    const id = await source.run(model, request, () => {}, stop.signal);
    const found = await source.trace(id);
    this.runs.set(key, found);
    return found;
  }

  /** @param {boolean} merged */
  drawDiff(merged) {
    if (!this.shown) return;
    const { before, after } = this.shown;
    const look = h(
      "button",
      { type: "button", "data-no-picture": true, onclick: () => this.context.store.set({ trace: after.id }) },
      "Look at this run in the other views",
    );
    put(this.output, outputDiff(before, after, merged), after.id ? look : null);
  }

  /** The heads with what they are worth, then the outputs, for a table. @returns {(string | number)[][]} */
  rows() {
    const state = this.context.store.get();
    const model = this.context.model();
    /** @type {(string | number)[][]} */
    const rows = [["table", "what", "before", "probability before", "after", "probability after"]];
    if (this.shown) rows.push(...diffRows(this.shown.before, this.shown.after, state.merged));
    rows.push(["table", "head", "switch", "value without it", "change", "worth"]);
    const known = new Map((this.worth?.heads ?? []).map((head) => [`${head.side}.${head.layer}.${head.head}`, head]));
    for (const { side, layers, heads } of model?.attention ?? []) {
      for (let layer = 0; layer < layers; layer += 1) {
        for (let head = 0; head < heads; head += 1) {
          const key = `${side}.${layer}.${head}`;
          const found = known.get(key);
          const worth = found && this.worth ? harm(this.worth, found) : "";
          rows.push([
            "heads",
            key,
            state.off.includes(key) ? "off" : "on",
            found?.value ?? "",
            found?.change ?? "",
            worth,
          ]);
        }
      }
    }
    return rows;
  }
}

/**
 * "side.layer.head" as the request has it; null for a word that is none.
 * @param {string} key
 * @param {"zero" | "mean"} how
 * @returns {Switched | null}
 */
function switched(key, how) {
  const [side, layer, head] = key.split(".");
  const known = ["encoder", "decoder", "cross"].includes(side) && /^\d+$/.test(layer ?? "") && /^\d+$/.test(head ?? "");
  return known ? { side: /** @type {Side} */ (side), layer: Number(layer), head: Number(head), how } : null;
}
