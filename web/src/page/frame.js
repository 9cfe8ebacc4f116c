/**
 * What is around a view: its name and those of the others, the model and its text, light and dark, saving, and the place
 * where the page speaks.
 */

/** @import { ModelSummary, Mounted, State, Store, Trace, View } from "../contract" */

import { h, put, s } from "./dom.js";
import { saveCsv, saveFrom, savePng, saveSvg } from "./save.js";
import { address } from "./store.js";

/**
 * @typedef {object} Parts what the frame is made of and asks for
 * @property {Store} store
 * @property {View[]} views
 * @property {boolean} live
 * @property {HTMLElement} banner
 * @property {HTMLElement} status
 * @property {() => Mounted | null} mounted
 * @property {() => Trace | null} trace
 * @property {(sentence: string, kind?: "note" | "error") => void} say
 * @property {(model: string) => void} choose
 * @property {(file: File) => void} open
 */

/** @param {Parts} parts */
export function openFrame(parts) {
  const { store } = parts;
  const models = h("select", { id: "model", onchange: () => parts.choose(models.value) });
  const themes = h(
    "select",
    { id: "theme", onchange: () => store.set({ theme: /** @type {State["theme"]} */ (themes.value) }) },
    h("option", { value: "auto" }, "As the system"),
    h("option", { value: "light" }, "Light"),
    h("option", { value: "dark" }, "Dark"),
  );
  const sentence = h("p", { class: "sentence", "data-role": "sentence" });
  const offered = parts.views.map((view) => {
    const link = h("a", { "data-name": view.name }, view.title);
    link.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      store.set({ view: view.name });
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    return { view, link, item: h("li", {}, link) };
  });
  const title = h("h1", { id: "title", tabindex: -1 });
  const place = h("div", { class: "place" });
  const saving = saveMenu(parts);

  document.body.prepend(
    h("a", { class: "skip", href: "#place", onclick: skipTo(title) }, "Skip to the view"),
    h(
      "header",
      { class: "top" },
      h("div", { class: "brand" }, eye(), h("span", {}, "regard")),
      h("div", { class: "field" }, h("label", { for: "model" }, "Model"), models),
      sentence,
      h(
        "div",
        { class: "tools" },
        saving.element,
        h("div", { class: "field" }, h("label", { for: "theme" }, "Colours"), themes),
      ),
    ),
    h(
      "nav",
      { class: "views", "aria-label": "Views" },
      h(
        "ul",
        {},
        offered.map(({ item }) => item),
      ),
    ),
    parts.banner,
    h("main", { id: "place" }, title, place),
    parts.status,
  );

  return {
    place,
    /** @param {ModelSummary[]} known */
    models(known) {
      put(
        models,
        known.map((model) => h("option", { value: model.id }, model.name)),
      );
      models.disabled = known.length < 2;
    },
    /**
     * @param {State} state
     * @param {ModelSummary | null} model
     * @param {Trace | null} trace
     */
    show(state, model, trace) {
      models.value = state.model;
      themes.value = state.theme;
      const shown = parts.views.filter((view) => view.fits(model));
      const current = shown.find((view) => view.name === state.view);
      title.textContent = current?.title ?? "";
      document.title = current === undefined ? "regard" : `${current.title} · regard`;
      for (const { view, link, item } of offered) {
        item.hidden = !shown.includes(view);
        link.setAttribute("href", address({ ...state, view: view.name }));
        if (view.name === state.view) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
      put(sentence, ...spoken(trace));
      saving.refresh();
    },
  };
}

/** @param {Trace | null} trace */
function spoken(trace) {
  if (trace === null) return [];
  const read = trace.grid === undefined ? trace.request.text : "a picture";
  return [
    h("span", { class: "read" }, read),
    trace.output === "" ? null : [" → ", h("span", { class: "written" }, trace.output)],
  ].flat();
}

/** @param {HTMLElement} title */
function skipTo(title) {
  return (/** @type {Event} */ event) => {
    event.preventDefault();
    title.focus();
  };
}

/** @param {Parts} parts */
function saveMenu(parts) {
  /** @type {(label: string, can: () => boolean, act: () => unknown) => { button: HTMLButtonElement, can: () => boolean }} */
  const entry = (label, can, act) => {
    const button = h("button", { type: "button", class: "entry" }, label);
    button.addEventListener("click", async () => {
      menu.open = false;
      summary.focus();
      try {
        await act();
      } catch (problem) {
        parts.say(problem instanceof Error ? problem.message : String(problem), "error");
      }
    });
    return { button, can };
  };
  const exports = () => parts.mounted()?.exports ?? {};
  const name = () => `regard-${parts.store.get().view}`;
  const traced = () => parts.live && parts.trace() !== null;
  /** @param {string} rest */
  const path = (rest) => `api/traces/${encodeURIComponent(parts.trace()?.id ?? "")}/${rest}`;

  const entries = [
    entry(
      "This view as PNG",
      () => Boolean(exports().canvas ?? exports().svg),
      () => savePng(name(), exports()),
    ),
    entry(
      "This view as SVG",
      () => exports().svg !== undefined,
      () => exports().svg && saveSvg(name(), /** @type {() => string} */ (exports().svg)),
    ),
    entry(
      "Its numbers as CSV",
      () => exports().csv !== undefined,
      () => {
        const table = exports().csv?.();
        if (table !== undefined) saveCsv(table);
      },
    ),
    entry("The whole page as one HTML file", traced, () => saveFrom(path("page.html"), "regard.html")),
    entry("The trace as a file", traced, () => saveFrom(path("file"), "trace.safetensors")),
  ];
  const file = h("input", {
    type: "file",
    class: "visually-hidden",
    id: "trace-file",
    tabindex: -1,
    "aria-label": "A trace file",
  });
  file.addEventListener("change", () => {
    const chosen = file.files?.[0];
    if (chosen !== undefined) parts.open(chosen);
    file.value = "";
  });
  const opening = entry(
    "Open a trace file …",
    () => parts.live,
    () => file.click(),
  );
  const summary = h("summary", {}, "Save");
  const menu = h(
    "details",
    { class: "menu" },
    summary,
    h(
      "div",
      { class: "entries" },
      entries.map(({ button }) => button),
      opening.button,
    ),
  );
  menu.addEventListener("toggle", () => refresh());
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    summary.focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (menu.open && !menu.contains(/** @type {Node} */ (event.target))) menu.open = false;
  });
  function refresh() {
    for (const { button, can } of entries) button.disabled = !can();
    opening.button.hidden = !parts.live;
  }
  return { element: h("div", { class: "saving" }, menu, file), refresh };
}

/** The sign of the page: an eye, drawn. */
function eye() {
  return s(
    "svg",
    { viewBox: "0 0 32 20", "aria-hidden": "true" },
    s("path", { d: "M1 10 Q16 -6 31 10 Q16 26 1 10 Z" }),
    s("circle", { cx: 16, cy: 10, r: 4.5 }),
  );
}
