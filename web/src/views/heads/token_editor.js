/**
 * Editing a source token in place and running the model again: how does the attention change if the cat is a dog?
 */

/** @import { Trace, ViewContext } from "../../contract" */

import { h, setChildren } from "../../page/dom.js";
import { tokenLabel } from "../../page/tokens.js";
import { tokenChip } from "../shared/token_row.js";

/** Texts with more tokens are edited in the playground. */
const MAX_TOKENS = 80;

/** @param {ViewContext} context */
export function tokenEditor(context) {
  const row = h("div", {
    class: "tokens editable",
    role: "group",
    "aria-label": "Source tokens; select one to edit it",
  });
  const element = h(
    "div",
    { class: "token-editor", "data-no-export": true },
    h("h3", {}, "Edit a token"),
    h(
      "p",
      { class: "note" },
      "Select a token, type another word, and press Enter: the model runs again, with all other tokens unchanged.",
    ),
    row,
  );
  /** @type {Trace | null} */
  let shown = null;

  /** @param {Trace} trace */
  function showTokens(trace) {
    setChildren(
      row,
      trace.source.map((token, position) =>
        token.special
          ? tokenChip({ text: tokenLabel(token), special: true })
          : tokenChip(
              {
                text: tokenLabel(token),
                attributes: {
                  "data-position": position,
                  "aria-label": `Edit ${tokenLabel(token)}`,
                  onclick: () => edit(trace, position),
                },
              },
              "button",
            ),
      ),
    );
  }

  /** @param {Trace} trace @param {number} position */
  function edit(trace, position) {
    showTokens(trace);
    const original = tokenLabel(trace.source[position]);
    const button = row.querySelector(`[data-position="${position}"]`);
    const input = h("input", {
      class: "token",
      "aria-label": `Replace ${original}`,
      value: original,
      size: Math.max(4, original.length + 2),
    });
    button?.replaceWith(input);
    input.focus();
    input.select();
    let done = false;
    const cancel = () => {
      if (done) return;
      done = true;
      showTokens(trace);
      const restored = row.querySelector(`[data-position="${position}"]`);
      const hasNoFocus = document.activeElement === document.body || document.activeElement === null;
      if (restored instanceof HTMLElement && hasNoFocus) restored.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return cancel();
      if (event.key !== "Enter") return;
      event.preventDefault();
      const text = input.value.trim();
      if (text === "" || text === original) return cancel();
      done = true;
      const tokens = trace.source.map((token, index) => (index === position ? text : token.piece));
      context.notify(`Replaced “${original}” with “${text}”. Running the model again …`);
      void context.run({ ...trace.request, source_tokens: tokens });
    });
    input.addEventListener("blur", cancel);
  }

  return {
    element,
    /** @param {Trace} trace */
    update(trace) {
      const { length } = trace.source;
      element.hidden = !context.source.live || trace.grid !== undefined || length === 0 || length > MAX_TOKENS;
      if (trace !== shown && !element.hidden) showTokens(trace);
      shown = trace;
    },
  };
}
