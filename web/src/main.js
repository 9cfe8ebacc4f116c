/**
 * The page begins here: where data comes from, what the state is, which view is in front, which trace is looked at.
 */

/** @import { ModelSummary, Mounted, RunRequest, State, Trace, View, ViewContext } from "./contract" */

import { headColour } from "./page/colour.js";
import { h, put } from "./page/dom.js";
import { openFrame } from "./page/frame.js";
import { decodingOf, openRunner } from "./page/runner.js";
import { openStatus } from "./page/status.js";
import { openStore } from "./page/store.js";
import { dress, onNightfall, usualTheme } from "./page/theme.js";
import { closeTip } from "./page/tooltip.js";
import { ONLY, carried, embeddedSource } from "./source/embedded.js";
import { liveSource, sentence } from "./source/live.js";
import { clearest } from "./views/heads/selection.js";
import { VIEWS } from "./views/index.js";

const store = openStore();
if (store.get().theme === "auto") store.set({ theme: usualTheme() });
dress(store.get().theme);

const status = openStatus();
const file = read();
const source = file === null ? liveSource(hearServer) : embeddedSource(file);
const runner = openRunner(source, status.say);

/** @type {ModelSummary[]} */
let models = [];
/** @type {Trace | null} */
let trace = null;
/** @type {{ view: View, mounted: Mounted, element: HTMLElement } | null} */
let front = null;
/** What is being fetched or run; what was asked for earlier is then out of date. */
let turn = 0;
/** Whether nobody has said yet how to search. */
const anyMethod = !/[#&]method=/.test(location.hash);
/** Whether nobody has said yet which head to look at. */
let anyHead = !/[#&](side|layer|head|heads|token)=/.test(location.hash);

/** @type {ViewContext} */
const context = {
  store,
  source,
  trace: () => trace,
  model: () => models.find((each) => each.id === store.get().model) ?? null,
  say: status.say,
  colour: headColour,
  run,
  running: runner.running,
  listen: runner.listen,
};

const frame = openFrame({
  store,
  views: VIEWS,
  live: source.live,
  banner: status.banner,
  status: status.element,
  mounted: () => front?.mounted ?? null,
  trace: () => trace,
  say: status.say,
  choose: (id) => store.set({ ...fresh(id), model: id }),
  open: openFile,
});

store.listen((state, before) => {
  if (state.theme !== before.theme) dress(state.theme);
  if (state.model !== before.model || (state.trace !== before.trace && state.trace !== trace?.id)) void look();
  draw();
});
runner.listen(mark);
onNightfall(() => {
  dress(store.get().theme);
  draw();
});
Object.assign(window, {
  regard: { read: (/** @type {string} */ name) => (front?.view.name === name ? front.mounted.read?.() : undefined) },
});
void begin();

async function begin() {
  draw();
  try {
    models = await source.models();
  } catch (problem) {
    return tell(problem);
  }
  frame.models(models);
  if (models.length === 0) return status.say("The server has no model to look into.", "error");
  const state = store.get();
  if (!models.some((model) => model.id === state.model)) {
    if (state.model !== "") status.say(`There is no model “${state.model}” here, so this is ${models[0].name}.`);
    const { method } = models[0].decoding;
    const change = {
      ...(state.model === "" ? {} : fresh(models[0].id)),
      ...(anyMethod ? { method } : {}),
      model: models[0].id,
    };
    return store.set(source.live ? change : { ...change, trace: ONLY }); // and whoever listens looks
  }
  if (anyMethod) store.set({ method: context.model()?.decoding.method ?? state.method });
  return look();
}

/** Have the trace that the state asks for: fetched, or made by running the model. */
async function look() {
  const mine = ++turn;
  const state = store.get();
  const model = models.find((each) => each.id === state.model);
  if (model === undefined) return;
  if (state.trace !== "" && state.trace === trace?.id) return draw();
  const wanted = state.trace || (source.live ? "" : ONLY);
  if (wanted !== "") {
    try {
      const found = await source.trace(wanted);
      if (mine === turn) await take(found);
      return;
    } catch (problem) {
      if (mine !== turn) return;
      if (!source.live || state.text === "") return tell(problem);
      status.say("That trace is no longer there, so the text is run again.");
    }
  }
  const text = state.text || model.example;
  if (text === "" || model.task === "pictures") {
    trace = null;
    return draw();
  }
  await run({ text, decoding: decodingOf(store.get(), model) });
}

/** @param {RunRequest} request */
async function run(request) {
  const mine = ++turn;
  const id = await runner.run(store.get().model, request);
  if (id === null || mine !== turn) return;
  try {
    const found = await source.trace(id);
    if (mine === turn) await take(found);
  } catch (problem) {
    tell(problem);
  }
}

/**
 * Look at this trace from now on. What the state asked for of the one before is kept where this one has it too; at the
 * beginning, that is the head whose links are clearest.
 * @param {Trace} found
 */
async function take(found) {
  const mine = turn;
  const sides = found.model.attention;
  /** @type {Partial<State>} */
  let change = {};
  if (anyHead && sides.length > 0) {
    const side = sides.find((each) => each.side === "cross")?.side ?? sides[0].side;
    change = { side, ...(await clearest(source, found, side).catch(() => ({}))) };
    if (mine !== turn) return;
  }
  anyHead = false;
  trace = found;
  const wanted = { ...store.get(), ...change };
  const shape = sides.find((each) => each.side === wanted.side) ?? sides[0];
  if (shape !== undefined) {
    change.side = shape.side;
    change.layer = within(wanted.layer, shape.layers);
    change.head = within(wanted.head, shape.heads);
  }
  const known = models.some((model) => model.id === found.model.id);
  store.set({ ...change, trace: found.id, model: known ? found.model.id : wanted.model, text: found.request.text });
  draw();
}

/**
 * What another model changes: nothing of the last one's trace is left, and its own decoding is taken.
 * @param {string} id
 * @returns {Partial<State>}
 */
function fresh(id) {
  anyHead = true;
  const method = models.find((model) => model.id === id)?.decoding.method ?? "beam";
  const none = { beams: 0, longest: 0, temperature: 0, top_k: 0, top_p: 0, seed: 0 };
  return { ...none, method, trace: "", text: "", layer: 0, head: 0, heads: [], token: -1, node: -1, step: 1, off: [] };
}

/** @param {File} chosen */
async function openFile(chosen) {
  try {
    const answer = await fetch("api/traces", { method: "POST", body: chosen }).catch(() => null);
    if (answer === null) throw new Error("The server does not answer, so it cannot open this file now.");
    if (!answer.ok) throw new Error(await sentence(answer));
    store.set({ trace: (await answer.json()).trace, token: -1, node: -1, step: 1, heads: [] });
    status.say(`This is what ${chosen.name} holds.`);
  } catch (problem) {
    tell(problem);
  }
}

/** Show what is to be shown. A view that fails says so in its own place, and the others go on. */
function draw() {
  const state = store.get();
  const model = context.model();
  const fitting = VIEWS.filter((view) => view.fits(model));
  const view = fitting.find((each) => each.name === state.view) ?? fitting[0];
  if (view === undefined) return;
  if (view.name !== state.view && model !== null) return store.set({ view: view.name });
  if (front?.view !== view) {
    closeTip();
    front?.mounted.destroy();
    front = null;
    const element = h("div", { class: `view view-${view.name}`, "data-view": view.name });
    put(frame.place, element);
    attempt(element, () => {
      front = { view, element, mounted: view.mount(element, context) };
    });
  }
  if (front !== null) attempt(front.element, () => front?.mounted.update(state, trace));
  frame.show(state, model, trace);
  mark();
}

/** Whether what is shown is all there is: for tests, and for who makes pictures of the page. */
function mark() {
  document.documentElement.dataset.ready = trace !== null && runner.running() === null ? "yes" : "no";
}

/**
 * @param {HTMLElement} element
 * @param {() => void} act
 */
function attempt(element, act) {
  try {
    act();
  } catch (problem) {
    console.error(problem);
    const reason = problem instanceof Error ? problem.message : String(problem);
    put(element, h("p", { class: "problem" }, `This view could not be drawn: ${reason}`));
  }
}

/**
 * The server went away or came back. One that was started anew has forgotten its traces: then the text is run again.
 * @param {boolean} there
 */
function hearServer(there) {
  status.server(there);
  if (!there) return;
  if (models.length === 0) void begin();
  else if (trace !== null) source.trace(trace.id).catch(() => store.set({ trace: "" }));
}

/**
 * The nearest of so many numbers from 0 on.
 * @param {number} number
 * @param {number} count
 */
function within(number, count) {
  return Math.max(0, Math.min(count - 1, Math.trunc(number)));
}

/** @param {unknown} problem */
function tell(problem) {
  status.say(problem instanceof Error ? problem.message : String(problem), "error");
}

function read() {
  try {
    return carried(document);
  } catch {
    status.say("The data in this file is damaged, so there is nothing to show. Please make it again.", "error");
    return null;
  }
}
