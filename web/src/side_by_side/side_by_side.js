/**
 * Two runs side by side: the view is mounted twice, with two contexts over one store. What is selected is shared; the
 * second run, its model and its text are in `State.second`. Above the panes: the difference of the outputs and, if the
 * view has one, that of what it shows.
 */

/** @import { Exports, ModelSummary, Mounted, RunRequest, State, Trace, View, ViewContext } from "../contract" */
/** @import { SecondRun } from "./second_run.js" */

import { h, setChildren } from "../page/dom.js";
import { errorMessage } from "../page/messages.js";
import { runToAddress } from "../page/run_conditions.js";
import { createRunner } from "../page/runner.js";
import { showError } from "../views/shared/placeholders.js";
import { combinedExports } from "./combined_exports.js";
import { outputsPanel } from "./outputs.js";
import { createPane } from "./pane.js";
import { alignTraces, createSecondStore } from "./second_store.js";
import { describeSecond, parseSecond, runKey, secondRequest, withoutOutdated } from "./second_run.js";
import { createSetup } from "./setup.js";

/**
 * @typedef {object} SideBySideOptions
 * @property {ViewContext} first the context of the first pane
 * @property {() => ModelSummary[]} models
 * @property {(model: string, change: Partial<State>) => void} open make another run the first: `change` has its text or its trace
 * @property {() => void} redraw
 * @property {(element: HTMLElement, act: () => void) => void} showErrors draw, or say why it failed
 */

/** @param {SideBySideOptions} options */
export function createSideBySide({ first, models, open, redraw, showErrors }) {
  const { store, source } = first;
  /** The second run, and the two as they were aligned. */
  const run = { key: "", problem: "" };
  /** @type {Trace | null} */
  let trace = null;
  /** @type {{ first: Trace, second: Trace, alignment: ReturnType<typeof alignTraces> } | null} */
  let pair = null;
  /** Second runs of this page, by what they were made with. @type {Map<string, Trace>} */
  const runs = new Map();
  /** @type {{ view: View, second: Mounted | null, difference: Mounted | null } | null} */
  let mounted = null;

  let message = "";
  const runner = createRunner(source, (text) => {
    message = text;
  });
  runner.subscribe(() => {
    panes.second.show(trace, runner.running());
    setup.showRunning(runner.running() !== null);
    if (runner.running() === null) redraw();
  });

  const secondModel = () => {
    const id = parseSecond(store.get().second)?.model ?? first.model()?.id;
    return models().find((model) => model.id === id) ?? null;
  };
  /** @type {ViewContext} */
  const second = {
    store: createSecondStore(store, () => pair, secondModel, (id) => void adopt(id)),
    source,
    trace: () => trace,
    model: secondModel,
    notify: first.notify,
    async run(request) {
      const model = secondModel();
      if (model !== null) change(model.id, request);
    },
    running: runner.running,
    onRunning: runner.subscribe,
  };

  const button = h("button", { type: "button", "aria-pressed": "false", onclick: toggle }, "Compare");
  button.hidden = !source.live;
  const setup = createSetup({
    choose(preset) {
      const text = JSON.stringify(preset.second);
      if (preset.first === undefined) store.set({ second: text });
      else open(preset.first.model, { text: preset.first.text, second: text });
    },
    setText: (text) => update({ ...withoutOutdated(parseSecond(store.get().second) ?? {}, "text"), text }),
    setModel(model) {
      const { model: _model, ...rest } = withoutOutdated(parseSecond(store.get().second) ?? {}, "model");
      update(model === first.model()?.id ? rest : { ...rest, model });
    },
    swap,
    stop: () => runner.running()?.stop(),
    close: () => {
      store.set({ second: "" });
      button.focus();
    },
  });
  const outputs = outputsPanel(store);
  const note = h("p", { class: "note", role: "status" });
  const difference = h("div", { class: "side-by-side-difference" });
  const panes = { first: createPane("First run", "first-run"), second: createPane("Second run", "second-run") };
  const top = h("div", { class: "side-by-side-top" }, setup.element, outputs.element, difference, note);
  const both = h("div", { class: "side-by-side" }, panes.first.element, panes.second.element);
  const element = h("div", {}, both);
  panes.second.element.hidden = true;

  function toggle() {
    const isOpen = parseSecond(store.get().second) !== null;
    store.set({ second: isOpen ? "" : "{}" }); // at first, the same run twice
    if (!isOpen) setup.focus();
  }

  /** @param {SecondRun} next */
  function update(next) {
    store.set({ second: JSON.stringify(next) });
  }

  /** Make a request the second run. @param {string} model @param {RunRequest} request */
  function change(model, request) {
    const shown = first.trace();
    if (shown !== null) update(describeSecond(model, request, shown, first.model()?.id ?? ""));
  }

  /** Make a trace of the server the second run. @param {string} id */
  async function adopt(id) {
    try {
      const loaded = await source.trace(id);
      runs.set(runKey(loaded.model, loaded.request), loaded);
      change(loaded.model.id, loaded.request);
    } catch (error) {
      first.notify(errorMessage(error), "error");
    }
  }

  function swap() {
    const shown = first.trace();
    const model = secondModel();
    if (shown === null || trace === null || model === null) return;
    runs.set(runKey(shown.model, shown.request), shown);
    const next = JSON.stringify(describeSecond(shown.model.id, shown.request, trace, model.id));
    const made = runToAddress(trace, store.get(), models());
    open(model.id, { text: trace.request.text, trace: trace.id, run: made, second: next });
  }

  /** Run what the state describes as the second run, unless that is shown already. @param {SecondRun} described @param {Trace} shown */
  function load(described, shown) {
    const model = secondModel();
    if (model === null) {
      [trace, run.problem, run.key] = [null, "There is no such model here. Choose another.", ""];
      return;
    }
    const request = secondRequest(described, shown, model);
    const key = runKey(model, request);
    if (key === run.key) return;
    run.key = key;
    run.problem = "";
    runner.running()?.stop();
    const isFirst = key === runKey(shown.model, shown.request) && model.name === shown.model.name;
    trace = isFirst ? shown : (runs.get(key) ?? null);
    if (trace === null) void start(key, model, request);
  }

  /** @param {string} key @param {ModelSummary} model @param {RunRequest} request */
  async function start(key, model, request) {
    const id = await runner.run(model.id, request);
    if (key !== run.key) return;
    try {
      if (id === null) throw new Error(message);
      const recorded = await source.trace(id);
      runs.set(key, recorded);
      if (key === run.key) trace = recorded;
    } catch (error) {
      if (key === run.key) run.problem = errorMessage(error);
    }
    redraw();
  }

  function retry() {
    run.key = "";
    redraw();
  }

  /** @param {View} view @param {Trace} shown @param {State} state */
  function draw(view, shown, state) {
    if (mounted?.view !== view) {
      leave();
      mounted = { view, second: null, difference: null };
    }
    const parts = mounted;
    const model = secondModel();
    const reason = model === null ? "" : view.fits(model) ? (view.single?.(shown.model, model) ?? "") : `${model.name} has nothing to show in this view.`;
    note.textContent = reason;
    note.hidden = reason === "";
    const hasPane = reason === "" && run.problem === "";
    both.classList.toggle("two", reason === "");
    panes.first.setHeading(reason === "");
    panes.second.setHeading(true);
    panes.second.element.hidden = reason !== "";
    if (!hasPane && parts.second !== null) {
      parts.second.destroy();
      parts.second = null;
    }
    if (reason === "" && run.problem !== "") showError(panes.second.container, run.problem, retry);
    if (hasPane) {
      if (parts.second === null) {
        const container = h("div", { class: `view view-${view.name}`, "data-view": view.name });
        setChildren(panes.second.container, container);
        showErrors(container, () => (parts.second = view.mount(container, second)));
      }
      showErrors(panes.second.container, () => parts.second?.update(second.store.get(), trace));
    }
    const comparable = view.mountDifference !== undefined && hasPane;
    if (!comparable && parts.difference !== null) {
      parts.difference.destroy();
      parts.difference = null;
      setChildren(difference);
    }
    if (comparable && parts.difference === null)
      showErrors(difference, () => (parts.difference = view.mountDifference?.(difference, first, second) ?? null));
    showErrors(difference, () => parts.difference?.update(state, shown));
  }

  /** Take away the second pane. */
  function leave() {
    mounted?.second?.destroy();
    mounted?.difference?.destroy();
    mounted = null;
    setChildren(panes.second.container);
    setChildren(difference);
  }

  return {
    /** The button of the page's header that opens the second pane. */
    button,
    /** The panes, with what stands above them. */
    element,
    /** Where the first pane's view belongs. */
    firstContainer: panes.first.container,
    leave,
    /** @param {View} view @param {State} state @param {Trace | null} shown the first run */
    update(view, state, shown) {
      const described = source.live ? parseSecond(state.second) : null;
      button.setAttribute("aria-pressed", String(described !== null));
      if (described === null) top.remove();
      else if (!top.isConnected) element.prepend(top);
      if (described === null || shown === null) {
        if (described === null) {
          runner.running()?.stop();
          [trace, pair, run.key, run.problem] = [null, null, "", ""];
        }
        leave();
        both.classList.remove("two");
        panes.first.setHeading(false);
        panes.second.element.hidden = true;
        outputs.clear();
        if (described !== null) setup.update(state, shown, { first: first.model(), second: secondModel(), models: models(), text: described.text ?? "", canSwap: false });
        return;
      }
      load(described, shown);
      if (trace === null) pair = null;
      else if (pair?.first !== shown || pair.second !== trace) pair = { first: shown, second: trace, alignment: alignTraces(shown, trace) };
      panes.first.show(shown);
      panes.second.show(trace, runner.running());
      const text = described.text ?? shown.request.text;
      const canSwap = trace !== null && models().some(({ id }) => id === shown.model.id);
      setup.update(state, shown, { first: first.model(), second: secondModel(), models: models(), text, canSwap });
      outputs.update(state, shown, trace);
      draw(view, shown, state);
    },
    /** Whether the second run is there, or not wanted. */
    isReady: () => store.get().second === "" || !source.live || run.problem !== "" || (trace !== null && runner.running() === null),
    /** The exports of both panes, given those of the first. @param {Exports} one @returns {Exports} */
    combine(one) {
      if (pair === null || mounted === null || mounted.second === null) return one;
      const parts = { first: one, second: mounted.second.exports, difference: mounted.difference?.exports };
      return combinedExports(parts, pair.first, pair.second);
    },
    /** What the second pane draws (2), or the difference above both. @param {2 | "difference"} part */
    read: (part) => (part === 2 ? mounted?.second?.read?.() : mounted?.difference?.read?.()),
    /** After the server was restarted: run again what it has lost. */
    async restore() {
      if (trace === null || trace === first.trace()) return;
      const key = run.key;
      try {
        await source.trace(trace.id);
      } catch {
        runs.clear();
        if (key === run.key) retry();
      }
    },
  };
}
