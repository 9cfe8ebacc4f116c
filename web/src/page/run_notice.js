/**
 * The notice under the navigation that says, in every view, what the shown run was made with: heads that are off, edited
 * tokens, a given prefix. A button runs the plain text again.
 */

/** @import { RunRequest, Trace } from "../contract" */

import { h } from "./dom.js";
import { describeRun, plainRequest } from "./run_conditions.js";

/** Heads that are listed one by one. */
const MAX_HEADS = 12;

/** @param {(request: RunRequest) => void} run */
export function runNotice(run) {
  /** @type {Trace | null} */
  let shown = null;
  const text = h("span", { class: "run-conditions" });
  const button = h("button", { type: "button", onclick: () => shown && run(plainRequest(shown.request)) });
  const element = h("div", { class: "run-notice", role: "status", hidden: true }, text, button);
  return {
    element,
    /** @param {Trace | null} trace @param {boolean} canRun whether the model that made the run can run again */
    update(trace, canRun) {
      shown = trace;
      const conditions = describeRun(trace, MAX_HEADS);
      if (text.textContent !== conditions) text.textContent = conditions;
      text.title = describeRun(trace); // with all heads
      element.hidden = conditions === "";
      button.hidden = !canRun;
      button.textContent = trace?.grid === undefined ? "Run the plain text again" : "Run the image with all heads";
    },
  };
}
