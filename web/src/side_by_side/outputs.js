/**
 * The outputs of two runs, aligned, with their probabilities and log-probabilities.
 */

/** @import { State, Store, Trace } from "../contract" */

import { h, setChildren } from "../page/dom.js";
import { outputDiff } from "../views/shared/output_diff.js";

/** @param {Store} store */
export function outputsPanel(store) {
  const merge = h("input", { type: "checkbox", onchange: () => store.set({ merge_subwords: merge.checked }) });
  const mergeRow = h("div", { class: "controls" }, h("label", {}, merge, " merge subwords into words"));
  const content = h("div");
  const element = h("section", { class: "panel", "aria-label": "Both outputs" }, h("h2", {}, "Both outputs"), mergeRow, content);
  let drawn = "";
  return {
    element,
    /** Show nothing. */
    clear() {
      drawn = "";
      element.hidden = true;
    },
    /** @param {State} state @param {Trace} first @param {Trace | null} second */
    update(state, first, second) {
      element.hidden = second === null;
      if (second === null) return;
      merge.checked = state.merge_subwords;
      mergeRow.hidden = first.generated.length + second.generated.length === 0;
      const key = JSON.stringify([first.id, second.id, state.merge_subwords]);
      if (key === drawn) return;
      drawn = key;
      setChildren(content, outputDiff(first, second, state.merge_subwords, ["first", "second"]));
    },
  };
}
