/**
 * The frame around a view: navigation, model and theme selection, the input, the save menu, and messages.
 */

/** @import { Exports, ModelSummary, RunRequest, Running, State, Store, Trace, View } from "../contract" */

import { h, s, setChildren } from "./dom.js";
import { createMenu, menuItem } from "./menu.js";
import { errorMessage } from "./messages.js";
import { describeRun, fileSuffix } from "./run_conditions.js";
import { runNotice } from "./run_notice.js";
import { saveCsv, saveFromServer, savePng, saveSvg } from "./save.js";
import { stateToHash } from "./store.js";

/**
 * @typedef {object} FrameOptions
 * @property {Store} store
 * @property {View[]} views
 * @property {boolean} live
 * @property {HTMLElement} inputBox
 * @property {HTMLElement} compare the button that opens a second pane
 * @property {HTMLElement} banner
 * @property {HTMLElement} messages
 * @property {HTMLElement} glossary the button that opens it
 * @property {HTMLElement} tour the button that opens it
 * @property {() => Exports} exports what can be saved of the view
 * @property {() => Trace | null} trace
 * @property {() => Running | null} running
 * @property {(message: string, kind?: "note" | "error") => void} notify
 * @property {(model: string) => void} selectModel
 * @property {(file: File) => void} openFile
 * @property {(request: RunRequest) => void} run
 * @property {(trace: Trace) => boolean} canRun
 */

/** @param {FrameOptions} options */
export function createFrame(options) {
  const { store } = options;
  const modelSelect = h("select", { id: "model", onchange: () => options.selectModel(modelSelect.value) });
  const themeSelect = h(
    "select",
    { id: "theme", onchange: () => store.set({ theme: /** @type {State["theme"]} */ (themeSelect.value) }) },
    h("option", { value: "auto" }, "System"),
    h("option", { value: "light" }, "Light"),
    h("option", { value: "dark" }, "Dark"),
  );
  const notice = runNotice(options.run);
  const traceSummary = h("p", { class: "trace-summary" });
  const cutNote = h("p", { class: "cut-note", role: "status" });
  const tabs = options.views.map((view) => {
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
  const viewContainer = h("div", { class: "view-container" });
  const saveMenu = createSaveMenu(options);

  document.body.prepend(
    h("a", { class: "skip", href: "#main", onclick: skipTo(title) }, "Skip to the view"),
    h(
      "header",
      { class: "top" },
      h("div", { class: "brand" }, logo(), h("span", {}, "regard")),
      h("div", { class: "field" }, h("label", { for: "model" }, "Model"), modelSelect),
      options.inputBox,
      h(
        "div",
        { class: "tools" },
        options.tour,
        options.compare,
        options.glossary,
        saveMenu.element,
        h("div", { class: "field" }, h("label", { for: "theme" }, "Theme"), themeSelect),
      ),
      traceSummary,
      cutNote,
    ),
    h(
      "nav",
      { class: "views", "aria-label": "Views" },
      h(
        "ul",
        {},
        tabs.map(({ item }) => item),
      ),
    ),
    options.banner,
    notice.element,
    h("main", { id: "main" }, title, viewContainer),
    options.messages,
  );

  const showSummary = () => {
    const running = options.running();
    setChildren(traceSummary, ...summarize(options.trace(), running));
    const cuts = (running === null && options.trace()?.cuts?.join(" ")) || "";
    if (cutNote.textContent !== cuts) cutNote.textContent = cuts;
  };

  return {
    viewContainer,
    showSummary,
    /** Move the focus to the view's title, for who went to the view from within another. */
    focusTitle: () => title.focus({ preventScroll: true }),
    /** @param {ModelSummary[]} models */
    setModels(models) {
      setChildren(
        modelSelect,
        models.map((model) => h("option", { value: model.id }, model.name)),
      );
      modelSelect.disabled = models.length < 2;
    },
    /**
     * @param {State} state
     * @param {ModelSummary | null} model
     */
    update(state, model) {
      modelSelect.value = state.model;
      themeSelect.value = state.theme;
      const available = options.views.filter((view) => view.fits(model));
      const current = available.find((view) => view.name === state.view);
      title.textContent = current?.title ?? "";
      document.title = current === undefined ? "regard" : `${current.title} · regard`;
      for (const { view, link, item } of tabs) {
        item.hidden = !available.includes(view);
        link.setAttribute("href", stateToHash({ ...state, view: view.name }));
        if (view.name === state.view) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
      showSummary();
      const trace = options.trace();
      notice.update(trace, trace !== null && options.canRun(trace));
      saveMenu.refresh();
    },
  };
}

/**
 * The input and output of the trace that all views show, or of the run in progress.
 * @param {Trace | null} trace
 * @param {Running | null} running
 */
function summarize(trace, running) {
  if (running !== null) {
    const { text, image } = running.request;
    const input = h("span", { class: "input-text" }, image === undefined ? text : "an image");
    return [input, ` → ${running.tokens.at(-1)?.text ?? ""} …`];
  }
  if (trace === null) return [];
  const input = trace.grid === undefined ? trace.request.text : "an image";
  return [
    h("span", { class: "input-text" }, input),
    trace.output === "" ? null : [" → ", h("span", { class: "output-text" }, trace.output)],
  ].flat();
}

/** @param {HTMLElement} title */
function skipTo(title) {
  return (/** @type {Event} */ event) => {
    event.preventDefault();
    title.focus();
  };
}

/** @param {FrameOptions} options */
function createSaveMenu(options) {
  const menu = createMenu("Save");
  /** @type {(label: string, isEnabled: () => boolean, act: () => unknown) => { button: HTMLButtonElement, isEnabled: () => boolean }} */
  const createItem = (label, isEnabled, act) => {
    const button = menuItem(label, async () => {
      menu.close();
      try {
        await act();
      } catch (error) {
        options.notify(errorMessage(error), "error");
      }
    });
    return { button, isEnabled };
  };
  const { exports } = options;
  const exportSvg = () => /** @type {() => SVGSVGElement} */ (exports().svg)();
  /** What a view's files say of its run, and what their names say. */
  const caption = () => exports().caption?.() ?? describeRun(options.trace());
  const suffix = () => (caption() === "" ? "" : fileSuffix(options.trace()));
  const fileName = () => `regard-${options.store.get().view}${suffix()}`;
  const hasTrace = () => options.live && options.trace() !== null;
  /** @param {string} resource */
  const path = (resource) => `api/traces/${encodeURIComponent(options.trace()?.id ?? "")}/${resource}`;

  const items = [
    createItem(
      "This view as PNG",
      () => exports().svg !== undefined,
      () => savePng(fileName(), exportSvg(), caption()),
    ),
    createItem(
      "This view as SVG",
      () => exports().svg !== undefined,
      () => saveSvg(fileName(), exportSvg(), caption()),
    ),
    createItem(
      "This view’s data as CSV",
      () => exports().csv !== undefined,
      () => {
        const table = exports().csv?.();
        if (table !== undefined) saveCsv({ ...table, name: `${table.name}${suffix()}` }, caption());
      },
    ),
    createItem("The page as a standalone HTML file", hasTrace, () => saveFromServer(path("page.html"), `regard${fileSuffix(options.trace())}.html`)),
    createItem("The trace as a file", hasTrace, () => saveFromServer(path("file"), `trace${fileSuffix(options.trace())}.safetensors`)),
  ];
  const fileInput = h("input", {
    type: "file",
    class: "visually-hidden",
    id: "trace-file",
    tabindex: -1,
    "aria-label": "A trace file",
  });
  fileInput.addEventListener("change", () => {
    const file = fileInput.files?.[0];
    if (file !== undefined) options.openFile(file);
    fileInput.value = "";
  });
  const openItem = createItem(
    "Open a trace file …",
    () => options.live,
    () => fileInput.click(),
  );
  menu.setItems([...items.map(({ button }) => button), openItem.button]);
  menu.element.addEventListener("toggle", () => refresh());
  function refresh() {
    for (const { button, isEnabled } of items) button.disabled = !isEnabled();
    openItem.button.hidden = !options.live;
  }
  return { element: h("div", { class: "save-menu" }, menu.element, fileInput), refresh };
}

/** The page's logo: an eye. */
function logo() {
  return s(
    "svg",
    { viewBox: "0 0 32 20", "aria-hidden": "true" },
    s("path", { d: "M1 10 Q16 -6 31 10 Q16 26 1 10 Z" }),
    s("circle", { cx: 16, cy: 10, r: 4.5 }),
  );
}
