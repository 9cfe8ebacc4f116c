/**
 * What if: decode on from another token, or with required and forbidden words, and compare the outputs.
 */

/** @import { Contrast, RunRequest, Trace, ViewContext } from "../../contract" */

import { h, setChildren } from "../../page/dom.js";
import { errorMessage } from "../../page/messages.js";
import { firstGenerated } from "../../page/tokens.js";
import { outputDiff } from "../shared/output_diff.js";
import { describeConditions } from "../shared/conditions.js";
import { showError } from "../shared/placeholders.js";
import { section } from "../shared/section.js";

const ALWAYS_A_TREE = "The output of this model is always a tree over the words; nothing else can be required of it.";

/** What a run is asked for. @typedef {Pick<RunRequest, "prefix_tokens" | "require" | "forbid">} Conditions */

export class WhatIf {
  /** @param {ViewContext} context */
  constructor(context) {
    this.context = context;
    this.require = wordField("contains");
    this.forbid = wordField("does not contain");
    this.output = h("div", { class: "what-if-output" });
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      this.decodeWithWords();
    };
    this.form = h(
      "form",
      { class: "controls", "data-no-export": true, onsubmit: submit },
      this.require.element,
      this.forbid.element,
      h("button", { type: "submit" }, "Decode again"),
    );
    this.element = section(
      "What if?",
      "Choose an alternative above, and the model decodes on from there. Or say what the output contains and what not, as " +
        "words separated by commas.",
      this.form,
      this.output,
    );
    this.key = "";
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {{ before: Trace, after: Trace } | null} */
    this.shown = null;
    /** @type {AbortController | null} */
    this.running = null;
  }

  /** Show a trace; what another one was asked is dropped. @param {Trace} trace */
  update(trace) {
    if (trace.id === this.trace?.id) return void this.draw();
    this.leave();
    this.trace = trace;
    this.form.hidden = trace.model.task === "parsing";
    setChildren(this.output, this.form.hidden && h("p", { class: "note" }, ALWAYS_A_TREE));
  }

  /** Decode on from the contrast, where it would stand. @param {Contrast} contrast */
  decodeFrom(contrast) {
    const { trace } = this;
    if (trace === null || this.form.hidden) return;
    const before = trace.target.slice(firstGenerated(trace), contrast.position + 1);
    const tokens = [...before, ...contrast.contrast_tokens];
    void this.decode({ prefix_tokens: tokens.map(({ id }) => id) });
  }

  decodeWithWords() {
    const [require, forbid] = [this.require.words(), this.forbid.words()];
    if (require.length + forbid.length === 0) return;
    void this.decode({ ...(require.length > 0 ? { require } : {}), ...(forbid.length > 0 ? { forbid } : {}) });
  }

  /** @param {Conditions} conditions */
  async decode(conditions) {
    const before = this.trace;
    const key = JSON.stringify([before?.id, conditions]);
    if (before === null || key === this.key) return;
    this.leave();
    this.key = key;
    const abort = new AbortController();
    this.running = abort;
    setChildren(this.output, h("p", { class: "note", role: "status" }, "Decoding …"));
    try {
      const { source, store } = this.context;
      const request = { ...before.request, ...conditions };
      const id = await source.run(store.get().model || before.model.id, request, () => {}, abort.signal);
      const after = await source.trace(id);
      if (abort.signal.aborted) return;
      this.shown = { before, after };
      this.draw();
    } catch (error) {
      if (abort.signal.aborted) return;
      this.key = "";
      showError(this.output, `Decoding failed: ${errorMessage(error)}`, () => void this.decode(conditions));
    }
  }

  draw() {
    if (this.shown === null) return;
    const { before, after } = this.shown;
    const { store } = this.context;
    setChildren(
      this.output,
      h("p", { class: "conditions" }, `${describeConditions(after)} All probabilities are the model’s own.`),
      outputDiff(before, after, store.get().merge_subwords),
      h(
        "p",
        { "data-no-export": true },
        h(
          "button",
          { type: "button", onclick: () => store.set({ trace: after.id, position: -1, contrast: "" }) },
          "Open this run in all views",
        ),
      ),
    );
  }

  /** Drop the run that is in progress or shown. */
  leave() {
    this.running?.abort();
    this.running = null;
    this.shown = null;
    this.key = "";
  }
}

/** A field for words that are separated by commas. @param {string} label */
function wordField(label) {
  const input = h("input", { type: "text", maxlength: 400, autocomplete: "off", spellcheck: "false" });
  return {
    element: h("label", {}, `The output ${label}: `, input),
    words: () =>
      input.value
        .split(",")
        .map((word) => word.trim())
        .filter((word) => word !== ""),
  };
}
