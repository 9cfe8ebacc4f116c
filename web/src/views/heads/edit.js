/**
 * A token changed where it stands, and everything run again: what does the model look at if the cat was a dog?
 */

/** @import { Trace, ViewContext } from "../../contract" */

import { h, put } from "../../page/dom.js";
import { label } from "../../page/tokens.js";

/** More tokens than this are changed in the box. */
const MOST = 80;

/** @param {ViewContext} context */
export function editRow(context) {
  const row = h("div", {
    class: "tokens editable",
    role: "group",
    "aria-label": "What was read; choose a token to change it",
  });
  const element = h(
    "div",
    { class: "edit", "data-sketch": "no" },
    h("h3", {}, "Change a word"),
    h(
      "p",
      { class: "note" },
      "Choose one, type another in its place, press Enter: the model runs again with everything else as it was.",
    ),
    row,
  );
  /** @type {Trace | null} */
  let shown = null;

  /** @param {Trace} trace */
  function fill(trace) {
    put(
      row,
      trace.source.map((token, place) =>
        token.special
          ? h("span", { class: "token special" }, h("span", { class: "letters" }, label(token)))
          : h(
              "button",
              {
                type: "button",
                class: "token",
                "data-place": place,
                "aria-label": `Change ${label(token)}`,
                onclick: () => change(trace, place),
              },
              label(token),
            ),
      ),
    );
  }

  /** @param {Trace} trace @param {number} place */
  function change(trace, place) {
    fill(trace);
    const before = label(trace.source[place]);
    const button = row.querySelector(`[data-place="${place}"]`);
    const input = h("input", {
      class: "token",
      "aria-label": `In place of ${before}`,
      value: before,
      size: Math.max(4, before.length + 2),
    });
    button?.replaceWith(input);
    input.focus();
    input.select();
    let done = false;
    const back = () => {
      if (done) return;
      done = true;
      fill(trace);
      const again = row.querySelector(`[data-place="${place}"]`);
      if (again instanceof HTMLElement && (document.activeElement === document.body || document.activeElement === null))
        again.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return back();
      if (event.key !== "Enter") return;
      event.preventDefault();
      const word = input.value.trim();
      if (word === "" || word === before) return back();
      done = true;
      const tokens = trace.source.map((token, at) => (at === place ? word : token.piece));
      context.say(`“${before}” is now “${word}”. The model runs again …`);
      void context.run({ ...trace.request, source_tokens: tokens });
    });
    input.addEventListener("blur", back);
  }

  return {
    element,
    /** @param {Trace} trace */
    show(trace) {
      element.hidden =
        !context.source.live || trace.grid !== undefined || trace.source.length === 0 || trace.source.length > MOST;
      if (trace !== shown && !element.hidden) fill(trace);
      shown = trace;
    },
  };
}
