/**
 * The model diagram: every module with its parameters, and with what leaves it and what it costs in the current trace.
 * A click on an attention module opens its heads.
 */

/** @import { ModuleActivations, ModuleBox, State, View } from "../contract" */
/** @import { BoxFigures } from "./model/quantities.js" */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { coloring } from "./model/coloring.js";
import { costNotes, describe, parameterTable } from "./model/details.js";
import { drawModel } from "./model/draw.js";
import { moveFocus } from "./model/keyboard.js";
import { NARROW, WIDE, layOut } from "./model/layout.js";
import { QUANTITIES } from "./model/quantities.js";
import { readDiagram, tableOf } from "./model/read.js";
import { TimeControl } from "./model/time_control.js";
import { ValuesPanel } from "./model/values_panel.js";
import { radioRow } from "./shared/choices.js";
import { hasHeads } from "./shared/heads.js";
import { LatestRequest } from "./shared/latest_request.js";

/** Milliseconds for which the mouse rests on a box before it replaces another: on its way to the details it crosses some. */
const REST = 150;

const TRANSFORMER = [
  "Read it from bottom to top. [[Tokens|token]] are looked up as vectors ([[embedding]]), the [[positional encoding]] tells their order, and every [[layer]] adds to these vectors.",
  "In [[multi-head attention]], tokens exchange information. The [[feed-forward network]] processes each token by itself. The thin lines beside the boxes are [[residual connections|residual connection]]: the input of a sublayer is added to its output (+).",
  "In an encoder–decoder, the [[encoder]] reads the source and the [[decoder]] generates the target; each decoder layer attends to the encoder's output by [[cross-attention]] (blue lines). Click an attention module to see its heads.",
  "Each box shows the [[shape]] of what leaves it for the current input, and the mean norm of these vectors: their length. Point at a box, or move to it with the arrow keys, to see the numbers themselves.",
];
const BEFORE_THE_TRANSFORMER = [
  "Read it from bottom to top: [[tokens|token]] are looked up as vectors ([[embedding]]), from which the modules above compute the [[logits|logit]] of the next token. This model is no Transformer; its boxes are its modules, in order of definition.",
  "Where there is attention to the source, a blue line leads from the encoder to it. Click an attention module to see its weights.",
  TRANSFORMER[3],
];

/** @type {View} */
export const view = {
  name: "model",
  title: "Model",
  fits: () => true,
  mount(element, context) {
    const { source, store } = context;
    const legend = h("div", { class: "kinds" });
    const drawing = h("div", { class: "drawing" });
    const container = h("div", { class: "diagram-container panel" }, legend, drawing);
    const facts = h("div", { class: "facts", "aria-live": "polite" });
    const parameters = h("details", {});
    const details = h("section", { class: "details panel", "aria-label": "The selected module" }, facts, parameters);
    const values = new ValuesPanel(source);
    const valuesSection = h("section", { class: "values panel", "aria-label": "Values of the selected module" }, values.element);
    const notes = h("div", { class: "cost-notes" });
    const openAll = h("input", { type: "checkbox" });
    const colorRow = radioRow("Color by", (by) => store.set({ color_by: /** @type {State["color_by"]} */ (by) }));
    const times = new TimeControl(source, () => {
      draw();
      select(selected);
    });
    const model = context.model();
    element.append(
      explanation(
        "model",
        "The architecture of the model",
        ...(model === null || hasHeads(model) ? TRANSFORMER : BEFORE_THE_TRANSFORMER),
      ),
      h(
        "div",
        { class: "controls", "data-no-export": true },
        h("label", { class: "check" }, openAll, "Show all layers"),
        colorRow.element,
        times.element,
      ),
      h("div", { class: "model-columns" }, container, h("div", { class: "model-side" }, details, valuesSection)),
      notes,
    );

    /** @type {ModuleBox | null} */
    let root = null;
    /** The paths of the open layers. @type {Set<string>} */
    let open = new Set();
    /** @type {Map<string, ModuleBox>} */
    let byPath = new Map();
    let requested = "";
    let drawn = "";
    let selected = "";
    let rest = 0;
    const requests = new LatestRequest();
    /** @type {ModuleActivations | null} */
    let activations = null;
    let activationsOf = "";
    let problem = "";
    /** @type {Map<string, BoxFigures>} */
    let live = new Map();

    openAll.addEventListener("change", () => {
      open = openAll.checked ? new Set(layers(root).map((layer) => layer.path)) : firstLayers(root);
      draw();
    });
    const observer = new ResizeObserver(() => draw());
    observer.observe(container);

    /** The current trace, if it is one of the model that is drawn. */
    function currentTrace() {
      const trace = context.trace();
      return trace !== null && trace.model.id === requested ? trace : null;
    }

    /** @param {string} path @returns {BoxFigures} */
    function figures(path) {
      const measured = times.times?.boxes.find((box) => box.path === path);
      return { ...live.get(path), seconds: measured?.seconds };
    }

    function draw() {
      if (root === null) return;
      const sizes = container.clientWidth < 640 ? NARROW : WIDE;
      const { color_by: by } = store.get();
      const trace = currentTrace();
      const key = JSON.stringify([
        root.path,
        requested,
        [...open],
        sizes.boxWidth,
        document.documentElement.dataset.theme,
        trace?.id,
        activations !== null,
        by,
        by === "time" && times.times,
      ]);
      if (key === drawn) return;
      drawn = key;
      const hadFocus = drawing.contains(document.activeElement);
      const boxes = flatten(root).filter((box) => box.kind === "block" || (box.children.length === 0 && box !== root));
      const colors = coloring(by, boxes, figures);
      const svg = drawModel(layOut(root, open, sizes), { sizes, coloring: colors, figures }, trace);
      setChildren(drawing, svg);
      const modules = /** @type {SVGGElement[]} */ ([...svg.querySelectorAll(".module")]);
      const current = modules.find((module) => module.dataset.path === selected) ?? modules[0];
      current?.setAttribute("tabindex", "0");
      if (selected !== "" && current?.dataset.path === selected) current.classList.add("selected");
      if (hadFocus) current?.focus();
      setChildren(legend, colors.legend());
    }

    /** @param {ModuleBox} box */
    function activate(box) {
      if (box.attention !== undefined) {
        const { attention_type, layer } = box.attention;
        return store.set({ view: "heads", attention_type, layer });
      }
      if (box.kind === "block") {
        if (open.has(box.path)) open.delete(box.path);
        else open.add(box.path);
        open = new Set(open);
        draw();
      }
      return select(box.path);
    }

    /** @param {string} path */
    function select(path) {
      clearTimeout(rest);
      const box = byPath.get(path);
      if (box === undefined) return;
      if (path !== selected) {
        drawing.querySelector(".module.selected")?.classList.remove("selected");
        drawing.querySelector(`.module[data-path="${CSS.escape(path)}"]`)?.classList.add("selected");
      }
      selected = path;
      setChildren(facts, ...describe(box, figures(path), box.attention === undefined ? null : () => activate(box)));
      setChildren(parameters, ...parameterTable(box));
      parameters.hidden = box.parameters.length === 0;
      const shape = live.get(path)?.shape;
      values.show(currentTrace(), path, path !== "" && shape !== undefined);
      valuesSection.hidden = values.element.childElementCount === 0;
    }

    /** @param {Event} event */
    const boxAt = (event) => {
      const module = /** @type {Element} */ (event.target).closest?.(".module");
      return module instanceof SVGGElement ? (byPath.get(module.dataset.path ?? "") ?? null) : null;
    };
    drawing.addEventListener("pointerover", (event) => {
      clearTimeout(rest);
      const box = boxAt(event);
      if (box === null || box.path === selected || event.pointerType === "touch") return;
      if (selected === "") select(box.path);
      else rest = setTimeout(() => select(box.path), REST);
    });
    drawing.addEventListener("pointerleave", () => clearTimeout(rest));
    drawing.addEventListener("focusin", (event) => {
      const box = boxAt(event);
      if (box !== null && box.path !== selected && drawing.querySelector(":focus-visible")) select(box.path);
    });
    drawing.addEventListener("click", (event) => {
      const box = boxAt(event);
      if (box === null) return;
      // There is nothing to point with on a touch screen: the first tap selects, the second opens.
      const isTouch = event instanceof PointerEvent && event.pointerType === "touch";
      if (isTouch && box.path !== selected) select(box.path);
      else activate(box);
    });
    drawing.addEventListener("keydown", (event) => {
      const box = boxAt(event);
      if (box === null) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        return activate(box);
      }
      return moveFocus(drawing, event);
    });

    /** Load what leaves each box in the current trace. */
    function loadActivations() {
      const trace = currentTrace();
      times.show(trace);
      if ((trace?.id ?? "") === activationsOf) return;
      activationsOf = trace?.id ?? "";
      activations = null;
      problem = "";
      live = new Map();
      requests.cancel();
      showActivations();
      if (trace === null) return;
      requests.start(
        source.activations(trace.id),
        (loaded) => {
          activations = loaded;
          live = new Map(loaded.boxes.map(({ path, ...known }) => [path, known]));
          showActivations();
        },
        (message) => {
          problem = message;
          showActivations();
        },
      );
    }

    function showActivations() {
      if (problem !== "") setChildren(notes, h("p", { class: "problem", role: "status" }, problem));
      else setChildren(notes, ...(activations === null ? [] : costNotes(activations)));
      draw();
      select(selected);
    }

    return {
      update(state) {
        const choices = Object.entries(QUANTITIES).filter(([name]) => name !== "time" || source.live);
        const names = choices.map(([value, { label }]) => ({ value, label }));
        colorRow.update([{ value: "kind", label: "kind" }, ...names], state.color_by);
        loadActivations();
        draw();
        select(selected);
        const id = state.model;
        if (id === "" || id === requested) return;
        requested = id;
        source.diagram(id).then(
          (diagram) => {
            if (requested !== id) return;
            root = diagram;
            byPath = new Map(flatten(diagram).map((box) => [box.path, box]));
            open = firstLayers(diagram);
            openAll.checked = false;
            selected = "";
            loadActivations();
            draw();
            select("");
          },
          (error) => {
            requested = "";
            setChildren(drawing, h("p", { class: "problem" }, error.message));
          },
        );
      },
      destroy() {
        clearTimeout(rest);
        observer.disconnect();
        requests.cancel();
        values.destroy();
        times.leave();
      },
      exports: {
        svg: () => domToSvg(container, details, valuesSection),
        csv: () => ({ name: "regard-model", rows: tableOf(root === null ? [] : flatten(root), figures) }),
      },
      read: () =>
        root === null || (activationsOf !== "" && activations === null && problem === "") || !values.settled
          ? null
          : {
              ...readDiagram(flatten(root), drawing, figures),
              totals: activations && { flops: activations.flops, bytes: activations.bytes },
              notes: notes.textContent,
              legend: legend.textContent,
              selected,
              values: values.shown,
              times: times.times,
            },
    };
  },
};

/**
 * @param {ModuleBox} box
 * @returns {ModuleBox[]}
 */
function flatten(box) {
  return [box, ...box.children.flatMap(flatten)];
}

/** @param {ModuleBox | null} root */
function layers(root) {
  return root === null ? [] : flatten(root).filter((box) => box.kind === "block");
}

/**
 * The first layer of each stack, which is open initially.
 * @param {ModuleBox | null} root
 */
function firstLayers(root) {
  const stacks = root === null ? [] : flatten(root).filter((box) => box.kind === "stack");
  const first = stacks.flatMap((stack) => stack.children.filter((box) => box.kind === "block").slice(0, 1));
  return new Set(first.map((box) => box.path));
}
