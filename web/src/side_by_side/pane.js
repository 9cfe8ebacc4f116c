/**
 * One of two panes: its name, the run that it shows, and the view.
 */

/** @import { Running, Trace } from "../contract" */

import { h, setChildren } from "../page/dom.js";
import { truncate } from "../page/format.js";
import { describeRun } from "../page/run_conditions.js";

/** Letters of an input in the heading, and heads that are listed one by one. */
const [MAX_TEXT, MAX_HEADS] = [160, 12];

/** @param {string} name @param {string} className */
export function createPane(name, className) {
  const run = h("p", { class: "pane-run" });
  const heading = h("div", { class: "pane-heading", hidden: true }, h("h2", {}, name), run);
  const container = h("div", { class: "pane-view" });
  const element = h("div", { class: `run-pane ${className}` }, heading, container);
  return {
    element,
    container,
    /** @param {boolean} isOneOfTwo */
    setHeading(isOneOfTwo) {
      heading.hidden = !isOneOfTwo;
      if (isOneOfTwo) element.setAttribute("role", "region");
      else element.removeAttribute("role");
      if (isOneOfTwo) element.setAttribute("aria-label", name);
      else element.removeAttribute("aria-label");
    },
    /** @param {Trace | null} trace @param {Running | null} [running] */
    show(trace, running = null) {
      if (running !== null) return setChildren(run, "Running … ", running.tokens.at(-1)?.text ?? "");
      if (trace === null) return setChildren(run, "No run yet.");
      const conditions = describeRun(trace, MAX_HEADS);
      return setChildren(
        run,
        h("span", { class: "note" }, `${trace.model.name}: `),
        trace.grid === undefined ? truncate(trace.request.text, MAX_TEXT) : "an image",
        trace.output !== "" && [" → ", h("strong", {}, truncate(trace.output, MAX_TEXT))],
        conditions !== "" && h("span", { class: "pane-conditions" }, ` ${conditions}`),
      );
    },
  };
}
