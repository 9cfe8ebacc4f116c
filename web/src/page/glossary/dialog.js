/**
 * The glossary: a dialog with all terms, which opens from the header and from the links in texts. Which entry is open is in
 * the state, so that a link shows it. Escape closes it.
 */

/** @import { ModelSummary, State, Store, View } from "../../contract" */

import { h, setChildren } from "../dom.js";
import { stateToHash } from "../store.js";
import { GLOSSARY } from "./entries.js";

/** The state of a glossary that is open at no entry. */
const ALL = "all";

/**
 * @param {Store} store
 * @param {View[]} views
 */
export function createGlossary(store, views) {
  const open = (/** @type {string} */ glossary) => store.set({ glossary });
  const button = h("button", { type: "button", "aria-haspopup": "dialog", onclick: () => open(ALL) }, "Glossary");
  const title = h("h2", { id: "glossary-title", tabindex: -1 }, "Glossary");
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const list = h("dl", {});
  const dialog = h(
    "dialog",
    { class: "glossary", "aria-labelledby": title.id, onclose: () => open("") },
    h("div", { class: "glossary-header" }, title, close),
    list,
  );
  // A click on the dialog itself, not on what is in it, is one on the backdrop.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[data-term]") : null;
    if (!(link instanceof HTMLElement) || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    open(link.dataset.term ?? ALL);
  });
  let shown = "";

  /** @param {State} state @param {ModelSummary | null} model */
  function draw(state, model) {
    const available = views.filter((view) => view.fits(model));
    const link = (/** @type {View} */ view) => {
      const change = { view: view.name, glossary: "" };
      const onclick = (/** @type {Event} */ event) => {
        event.preventDefault();
        store.set(change);
      };
      return h("a", { href: stateToHash({ ...state, ...change }), onclick }, view.title);
    };
    const entries = [...GLOSSARY].map(([id, { term, text, views: names }]) => {
      const links = available.filter(({ name }) => names.includes(name)).flatMap((view) => [", ", link(view)]);
      return h(
        "div",
        { "data-entry": id, class: id === state.glossary ? "current" : null },
        h("dt", { tabindex: -1 }, term),
        h("dd", {}, text),
        h("dd", { class: "note" }, links.length === 0 ? "Not in the views of this model." : ["See ", ...links.slice(1), "."]),
      );
    });
    setChildren(list, ...entries);
  }

  return {
    button,
    element: dialog,
    /** @param {State} state @param {ModelSummary | null} model */
    update(state, model) {
      const key = state.glossary === "" ? "" : JSON.stringify([state.glossary, state.view, model?.id]);
      if (key === shown) return;
      shown = key;
      if (key === "") return dialog.close();
      draw(state, model);
      if (!dialog.open) dialog.showModal();
      const term = list.querySelector(".current dt") ?? title;
      if (!(term instanceof HTMLElement)) return;
      term.scrollIntoView({ block: "center" });
      term.focus({ preventScroll: true });
    },
  };
}
