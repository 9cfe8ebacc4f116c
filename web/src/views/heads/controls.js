/**
 * What is shown of the heads: which attention, merged or not, averaged or not, from which weight on.
 */

/** @import { Side, State, Trace, ViewContext } from "../../contract" */

import { h, put, unique } from "../../page/dom.js";
import { percent } from "../../page/words.js";

/** @type {Record<Side, [string, string]>} */
const SIDES = {
  encoder: ["Reading", "encoder: words of the text look at each other"],
  decoder: ["Writing", "decoder: what is written looks back at itself"],
  cross: ["From writing to reading", "cross-attention: what is written looks at what was read"],
};

/** @param {ViewContext} context */
export function headControls({ store }) {
  const tabs = h("div", { class: "sides", role: "radiogroup", "aria-label": "Which attention" });
  const about = h("p", { class: "note" });
  const merged = check("Merge sub-words to words", (on) => store.set({ merged: on }));
  const averaged = check("Average the layer’s heads", (on) => store.set({ averaged: on }));
  const special = check("Show special tokens", (on) => store.set({ special: on }));
  const threshold = h("input", { type: "range", min: 0, max: 0.98, step: 0.01, id: unique("threshold") });
  const shown = h("output", { for: threshold.id });
  // By the square, so that there is room among the small weights of long texts.
  threshold.addEventListener("input", () =>
    store.set({ threshold: Number((Number(threshold.value) ** 2).toPrecision(3)) }),
  );
  const strength = h(
    "div",
    { class: "field" },
    h("label", { for: threshold.id }, "Lines from this weight on: ", shown),
    threshold,
  );
  const element = h(
    "div",
    { class: "head-controls", "data-sketch": "no" },
    tabs,
    about,
    h("div", { class: "controls" }, merged.element, averaged.element, special.element, strength),
  );
  let built = "";

  return {
    element,
    /** @param {State} state @param {Trace | null} trace */
    show(state, trace) {
      const there = (trace?.model.attention ?? []).map(({ side }) => side);
      threshold.setAttribute("aria-valuetext", percent(state.threshold));
      if (there.join() !== built) {
        built = there.join();
        put(
          tabs,
          there.map((side) => radio(side, () => store.set({ side, layer: 0, head: 0, heads: [], token: -1 }))),
        );
      }
      for (const input of tabs.querySelectorAll("input")) input.checked = input.value === state.side;
      const picture = trace?.grid !== undefined;
      const said = picture ? "encoder: patches of the picture look at each other" : SIDES[state.side][1];
      about.textContent = there.length === 0 ? "" : `You see the ${said}.`;
      merged.element.hidden = strength.hidden = picture;
      merged.input.checked = state.merged;
      averaged.input.checked = state.averaged;
      special.input.checked = state.special;
      threshold.value = String(Math.sqrt(state.threshold));
      shown.textContent = percent(state.threshold);
    },
  };
}

/** @param {Side} side @param {() => void} choose */
function radio(side, choose) {
  const input = h("input", { type: "radio", name: "side", value: side, class: "visually-hidden" });
  input.addEventListener("change", choose);
  return h("label", { class: "side" }, input, h("span", {}, SIDES[side][0]));
}

/** @param {string} label @param {(on: boolean) => void} turn */
function check(label, turn) {
  const input = h("input", { type: "checkbox" });
  input.addEventListener("change", () => turn(input.checked));
  return { input, element: h("label", { class: "check" }, input, label) };
}
