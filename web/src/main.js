/**
 * The entry point: chooses the data source, keeps the state, loads traces, and shows the current view.
 */

/** @import { ModelSummary, Mounted, RunRequest, State, Trace, View, ViewContext } from "./contract" */

import { h, setChildren } from "./page/dom.js";
import { createFrame } from "./page/frame.js";
import { createGlossary } from "./page/glossary/dialog.js";
import { createInputBox } from "./page/input/input_box.js";
import { firstSentence } from "./page/input/sentences.js";
import { createMessages, errorMessage, isAboutServer } from "./page/messages.js";
import { modelOfFile, requestFromAddress, runToAddress } from "./page/run_conditions.js";
import { createRunner } from "./page/runner.js";
import { NO_SETTINGS, createStore } from "./page/store.js";
import { applyTheme, onSystemThemeChange, savedTheme } from "./page/theme.js";
import { hideTooltip } from "./page/tooltip.js";
import { createTour } from "./tour/panel.js";
import { EMBEDDED_TRACE, embeddedSource, readEmbedded } from "./source/embedded.js";
import { liveSource, responseError } from "./source/live.js";
import { NOT_RESPONDING } from "./source/not_responding.js";
import { secondForOtherModel } from "./side_by_side/second_run.js";
import { createSideBySide } from "./side_by_side/side_by_side.js";
import { sharpestHead } from "./views/heads/selection.js";
import { VIEWS } from "./views/index.js";

const LOST_IMAGE = "That run no longer exists, and an address cannot hold its image. Choose the image again.";

const store = createStore();
if (store.get().theme === "auto") store.set({ theme: savedTheme() });
applyTheme(store.get().theme);

const messages = createMessages();
const file = readEmbedded(document);
const source = file === "" ? liveSource(onServerReachable, onServerBusy) : embeddedSource(file);
const runner = createRunner(source, messages.notify);

/** @type {ModelSummary[]} */
let models = [];
/** @type {Trace | null} */
let trace = null;
/** @type {{ view: View, mounted: Mounted, element: HTMLElement } | null} */
let current = null;
/** The number of the latest load or run; results of earlier ones are outdated. */
let latestLoad = 0;
/** Traces that are being made or loaded. */
let loads = 0;
/** Whether the URL leaves the decoding method to the model. */
const usesDefaultMethod = !/[#&]method=/.test(location.hash);
/** Whether the URL leaves the choice of a head to the page. */
let usesDefaultHead = !/[#&](attention_type|layer|head|heads|token)=/.test(location.hash);

/** @type {ViewContext} */
const context = {
  store,
  source,
  trace: () => trace,
  model: () => models.find((each) => each.id === store.get().model) ?? null,
  notify: messages.notify,
  run: (request, change) => loading(run(request, { ...resetForRun(request), ...change })),
  running: runner.running,
  onRunning: runner.subscribe,
};

const inputBox = createInputBox(context);
const sideBySide = createSideBySide({ first: context, models: () => models, open: openFirst, redraw: draw, showErrors });
const glossary = createGlossary(store, VIEWS);
const tour = createTour(context, VIEWS);
const frame = createFrame({
  store,
  views: VIEWS,
  live: source.live,
  inputBox: inputBox.element,
  compare: sideBySide.button,
  banner: messages.banner,
  messages: messages.element,
  glossary: glossary.button,
  tour: tour.button,
  exports: () => sideBySide.combine(current?.mounted.exports ?? {}),
  trace: () => trace,
  running: runner.running,
  notify: messages.notify,
  selectModel: (id) => store.set({ ...resetForModel(id), model: id }),
  openFile,
  run: (request) => void loading(run(request)),
  canRun,
});

frame.viewContainer.append(sideBySide.element);
document.body.append(tour.element, glossary.element);

store.subscribe((state, before) => {
  if (state.theme !== before.theme) applyTheme(state.theme);
  if (state.model !== before.model || (state.trace !== before.trace && state.trace !== trace?.id)) void loading(loadTrace());
  draw();
});
runner.subscribe(() => {
  frame.showSummary();
  markReady();
});
onSystemThemeChange(() => {
  applyTheme(store.get().theme);
  draw();
});
/** What a view has drawn in the first pane, in the second (2), or of the difference of both ("difference"). */
const readView = (/** @type {string} */ name, /** @type {1 | 2 | "difference"} */ part = 1) => {
  if (current?.view.name !== name) return undefined;
  return part === 1 ? current.mounted.read?.() : sideBySide.read(part);
};
Object.assign(window, { regard: { read: readView } });
void start();

async function start() {
  draw();
  try {
    models = await source.models();
  } catch (error) {
    return notifyError(error);
  }
  frame.setModels(models);
  if (models.length === 0) return messages.notify("The server has no model to show.", "error");
  const state = store.get();
  if (!models.some((model) => model.id === state.model)) {
    if (state.model !== "")
      messages.notify(`There is no model “${state.model}” here; showing ${models[0].name} instead.`);
    const { method } = models[0].decoding;
    const change = {
      ...(state.model === "" ? {} : resetForModel(models[0].id)),
      ...(usesDefaultMethod ? { method } : {}),
      model: models[0].id,
    };
    return store.set(source.live ? change : { ...change, trace: EMBEDDED_TRACE }); // the subscriber loads the trace
  }
  if (usesDefaultMethod) store.set({ method: context.model()?.decoding.method ?? state.method });
  return loading(loadTrace());
}

/** Load the trace that the state names, or run the model on its text. */
async function loadTrace() {
  const load = ++latestLoad;
  const state = store.get();
  const model = models.find((each) => each.id === state.model);
  if (model === undefined) return;
  if (state.trace !== "" && state.trace === trace?.id) return draw();
  const id = state.trace || (source.live ? "" : EMBEDDED_TRACE);
  if (id !== "") {
    try {
      const loaded = await source.trace(id);
      if (load === latestLoad) await showTrace(loaded);
      return;
    } catch (error) {
      if (load !== latestLoad) return;
      if (source.live && model.input === "image" && inputBox.image() === "") return notifyError(new Error(LOST_IMAGE));
      if (!source.live || state.text === "") return notifyError(error);
      if (modelOfFile(state) !== "") return notifyError(new Error(lostFile(modelOfFile(state))));
      messages.notify("That trace no longer exists, so its run is repeated.");
    }
  }
  const image = model.input === "image" ? inputBox.image() : "";
  const request = image === "" ? requestFromAddress(store.get(), model) : { text: "", image };
  if (image === "" && (request.text === "" || model.input === "image")) {
    trace = null;
    return draw();
  }
  const isPlain = image === "" && state.trace === "" && state.passage === "" && state.run === "";
  try {
    const first = isPlain ? await firstSentence(source, model, request) : { request, change: {} };
    if (load === latestLoad) await run(first.request, first.change);
  } catch (error) {
    notifyError(error);
  }
}

/**
 * Run the selected model and show the result, with these changes of the state.
 * @param {RunRequest} request
 * @param {Partial<State>} [change]
 */
async function run(request, change) {
  const load = ++latestLoad;
  const id = await runner.run(store.get().model, request);
  if (id === null || load !== latestLoad) return;
  try {
    const recorded = await source.trace(id);
    if (load === latestLoad) await showTrace(recorded, change);
  } catch (error) {
    notifyError(error);
  }
}

/**
 * Make a trace the current one. The state keeps its head as far as this trace has it; on the first trace, the sharpest
 * head is chosen.
 * @param {Trace} shown
 * @param {Partial<State>} [change] what else changes in the state
 */
async function showTrace(shown, change = {}) {
  const load = latestLoad;
  const specs = shown.model.attention;
  if (usesDefaultHead && specs.length > 0) {
    const type = specs.find((spec) => spec.attention_type === "cross")?.attention_type ?? specs[0].attention_type;
    change = { ...change, attention_type: type, ...(await sharpestHead(source, shown, type).catch(() => ({}))) };
    if (load !== latestLoad) return;
  }
  usesDefaultHead = false;
  trace = shown;
  const next = { ...store.get(), ...change };
  const spec = specs.find((each) => each.attention_type === next.attention_type) ?? specs[0];
  if (spec !== undefined) {
    change.attention_type = spec.attention_type;
    change.layer = clampIndex(next.layer, spec.layers);
    change.head = clampIndex(next.head, spec.heads);
  }
  if (!next.passage.includes(shown.request.text)) Object.assign(change, { passage: "", sentence: -1 });
  const isKnown = models.some((model) => model.id === shown.model.id);
  store.set({ ...change, trace: shown.id, model: isKnown ? shown.model.id : next.model, text: shown.request.text });
  draw();
}

/**
 * What a new run leaves behind: the node that was selected, and for another text everything that names a token.
 * @param {RunRequest} request
 * @returns {Partial<State>}
 */
function resetForRun(request) {
  if (trace?.request.text === request.text) return { node: -1 };
  return { node: -1, step: 1, token: -1, position: -1, contrast: "" };
}

/**
 * The changes that go with selecting another model: its own decoding method, and nothing of the last model's trace but
 * the text, if the model takes it.
 * @param {string} id
 * @returns {Partial<State>}
 */
function resetForModel(id) {
  usesDefaultHead = true;
  const model = models.find((each) => each.id === id);
  const method = model?.decoding.method ?? "beam";
  const text = model === undefined ? "" : inputBox.textFor(model);
  const selection = { layer: 0, head: 0, heads: [], token: -1, node: -1, step: 1, ablated_heads: [] };
  const choice = { position: -1, contrast: "" };
  const second = secondForOtherModel(store.get().second);
  return { ...NO_SETTINGS, method, trace: "", text, passage: "", sentence: -1, run: "", second, ...selection, ...choice };
}

/**
 * Make another run the first of two.
 * @param {string} model
 * @param {Partial<State>} change its text, or its trace
 */
function openFirst(model, change) {
  const other = model === store.get().model ? {} : resetForModel(model);
  const none = { passage: "", sentence: -1, run: "", trace: "", node: -1, step: 1, token: -1, position: -1, contrast: "" };
  store.set({ ...other, ...none, model, ...change });
}

/** @param {File} chosen */
async function openFile(chosen) {
  try {
    const response = await fetch("api/traces", { method: "POST", body: chosen }).catch(() => null);
    if (response === null) throw new Error(`${NOT_RESPONDING}, so it cannot open this file now.`);
    if (!response.ok) throw new Error(await responseError(response));
    store.set({ trace: (await response.json()).trace, token: -1, node: -1, step: 1, heads: [] });
    messages.notify(`Opened ${chosen.name}.`);
  } catch (error) {
    notifyError(error);
  }
}

/** Draw the current view. A view that fails shows its error; the rest of the page keeps working. */
function draw() {
  const state = store.get();
  const model = context.model();
  const available = VIEWS.filter((view) => view.fits(model));
  const view = available.find((each) => each.name === state.view) ?? available[0];
  if (view === undefined) return;
  if (view.name !== state.view && model !== null) return store.set({ view: view.name });
  if (source.live && trace !== null && trace.id === state.trace) {
    const made = runToAddress(trace, state, models);
    if (made !== state.run) return store.set({ run: made });
  }
  if (current?.view !== view) {
    const isFocused = frame.viewContainer.contains(document.activeElement);
    if (current !== null) scrollTo(0, 0);
    leaveView();
    const element = h("div", { class: `view view-${view.name}`, "data-view": view.name });
    setChildren(sideBySide.firstContainer, element);
    showErrors(element, () => {
      current = { view, element, mounted: view.mount(element, context) };
    });
    if (isFocused) frame.focusTitle();
  }
  if (current !== null) showErrors(current.element, () => current?.mounted.update(state, trace));
  sideBySide.update(view, state, trace);
  inputBox.update(state, model);
  frame.update(state, model);
  glossary.update(state, model);
  tour.update(state, trace);
  markReady();
}

function leaveView() {
  hideTooltip();
  sideBySide.leave();
  current?.mounted.destroy();
  current = null;
}

/** While a trace is being made or loaded, the page is not complete. @param {Promise<void>} work */
async function loading(work) {
  loads += 1;
  markReady();
  try {
    await work;
  } finally {
    loads -= 1;
    markReady();
  }
}

/** Mark the page as complete, for tests and screenshots. */
function markReady() {
  const isReady = trace !== null && loads === 0 && sideBySide.isReady();
  document.documentElement.dataset.ready = isReady ? "yes" : "no";
}

/**
 * @param {HTMLElement} element
 * @param {() => void} act
 */
function showErrors(element, act) {
  try {
    act();
  } catch (error) {
    console.error(error);
    setChildren(element, h("p", { class: "problem" }, `This view could not be drawn: ${errorMessage(error)}`));
  }
}

/**
 * The server became reachable or unreachable. A restarted server has lost its traces; then the run is repeated.
 * @param {boolean} reachable
 */
function onServerReachable(reachable) {
  messages.setServerReachable(reachable);
  if (!reachable) return;
  if (current !== null && [...current.element.querySelectorAll(".problem")].some(isAboutServer)) {
    leaveView(); // it loads again what it could not load
    draw();
  }
  if (models.length === 0) void start();
  else if (trace !== null) source.trace(trace.id).catch(runAgain);
  void sideBySide.restore();
}

/** Repeat the run of the shown trace, which the server has lost. The page still has all of its request, even an image. */
function runAgain() {
  if (trace === null) return;
  if (canRun(trace)) return void loading(run(trace.request));
  notifyError(new Error(lostFile(trace.model.name)));
}

/** Whether the selected model is the one that made a trace. @param {Trace} made */
function canRun({ model }) {
  return source.live && model.id === store.get().model && models.some(({ id }) => id === model.id);
}

/** @param {string} model */
function lostFile(model) {
  return `This run of ${model} came from a file, and the server no longer has it. Open the file again.`;
}

/** @param {string} message */
function onServerBusy(message) {
  messages.notify(`${message} This page does so by itself.`);
}

/**
 * The nearest valid index.
 * @param {number} index
 * @param {number} count
 */
function clampIndex(index, count) {
  return Math.max(0, Math.min(count - 1, Math.trunc(index)));
}

/** @param {unknown} error */
function notifyError(error) {
  messages.notify(errorMessage(error), "error");
}
