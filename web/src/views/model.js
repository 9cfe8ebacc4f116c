/**
 * The model diagram: every module with its shapes and parameter count. A click on an attention module opens its heads.
 */

/** @import { ModuleBox, View } from "../contract" */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { formatCount } from "../page/format.js";
import { linkTerms } from "../page/glossary/links.js";
import { KINDS, drawModel } from "./model/draw.js";
import { NARROW, WIDE, layOut } from "./model/layout.js";
import { hasHeads } from "./shared/heads.js";

/** Parameters that are listed for a module. */
const MAX_PARAMETERS = 14;

const TRANSFORMER = [
  "Read it from bottom to top. [[Tokens|token]] are looked up as vectors ([[embedding]]), the [[positional encoding]] tells their order, and every [[layer]] adds to these vectors.",
  "In [[multi-head attention]], tokens exchange information. The [[feed-forward network]] processes each token by itself. The thin lines beside the boxes are [[residual connections|residual connection]]: the input of a sublayer is added to its output (+).",
  "In an encoder–decoder, the [[encoder]] reads the source and the [[decoder]] generates the target; each decoder layer attends to the encoder's output by [[cross-attention]] (blue lines). Click an attention module to see its heads.",
];
const BEFORE_THE_TRANSFORMER = [
  "Read it from bottom to top: [[tokens|token]] are looked up as vectors ([[embedding]]), from which the modules above compute the [[logits|logit]] of the next token. This model is no Transformer; its boxes are its modules, in order of definition.",
  "Where there is attention to the source, a blue line leads from the encoder to it. Click an attention module to see its weights.",
];

/** @type {View} */
export const view = {
  name: "model",
  title: "Model",
  fits: () => true,
  single: (first, second) => (first.id === second.id ? "Both runs are of this model, so there is one pane." : ""),
  mount(element, context) {
    const container = h("div", { class: "diagram-container panel" });
    const details = h("section", { class: "details panel", "aria-label": "The selected module", "aria-live": "polite" });
    const openAll = h("input", { type: "checkbox" });
    const legend = h("div", { class: "kinds" });
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
        legend,
      ),
      h("div", { class: "model-columns" }, container, details),
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

    openAll.addEventListener("change", () => {
      open = openAll.checked ? new Set(layers(root).map((layer) => layer.path)) : firstLayers(root);
      draw();
    });
    const observer = new ResizeObserver(() => draw());
    observer.observe(container);

    function draw() {
      if (root === null) return;
      const sizes = container.clientWidth < 640 ? NARROW : WIDE;
      const trace = context.trace();
      const key = JSON.stringify([
        root.path,
        requested,
        [...open],
        sizes.boxWidth,
        document.documentElement.dataset.theme,
        trace?.id,
      ]);
      if (key === drawn) return;
      drawn = key;
      const hadFocus = container.contains(document.activeElement);
      const svg = drawModel(layOut(root, open, sizes), sizes, trace);
      setChildren(container, svg);
      const modules = /** @type {SVGGElement[]} */ ([...svg.querySelectorAll(".module")]);
      const current = modules.find((module) => module.dataset.path === selected) ?? modules[0];
      current?.setAttribute("tabindex", "0");
      if (hadFocus) current?.focus();
      setChildren(
        legend,
        Object.values(KINDS).map(([color, name]) => kindKey(color, name)),
      );
    }

    /** @param {ModuleBox} box */
    function activate(box) {
      if (box.attention !== undefined) {
        const { attention_type, layer } = box.attention;
        return context.store.set({ view: "heads", attention_type, layer });
      }
      if (box.kind === "block") {
        if (open.has(box.path)) open.delete(box.path);
        else open.add(box.path);
        open = new Set(open);
        draw();
      }
      return showDetails(box);
    }

    /** @param {ModuleBox} box */
    function showDetails(box) {
      selected = box.path;
      setChildren(details, ...describe(box, box.attention === undefined ? null : () => activate(box)));
    }

    /** @param {Event} event */
    const boxAt = (event) => {
      const module = /** @type {Element} */ (event.target).closest?.(".module");
      return module instanceof SVGGElement ? (byPath.get(module.dataset.path ?? "") ?? null) : null;
    };
    for (const name of ["pointerover", "focusin"]) {
      container.addEventListener(name, (event) => {
        const box = boxAt(event);
        if (box !== null && box.path !== selected) showDetails(box);
      });
    }
    container.addEventListener("click", (event) => {
      const box = boxAt(event);
      if (box !== null) activate(box);
    });
    container.addEventListener("keydown", (event) => {
      const box = boxAt(event);
      if (box === null) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        return activate(box);
      }
      return moveFocus(container, event);
    });

    return {
      update(state) {
        draw();
        const id = state.model;
        if (id === "" || id === requested) return;
        requested = id;
        context.source.diagram(id).then(
          (diagram) => {
            if (requested !== id) return;
            root = diagram;
            byPath = new Map(flatten(diagram).map((box) => [box.path, box]));
            open = firstLayers(diagram);
            openAll.checked = false;
            showDetails(diagram);
            draw();
          },
          (error) => {
            requested = "";
            setChildren(container, h("p", { class: "problem" }, error.message));
          },
        );
      },
      destroy: () => observer.disconnect(),
      exports: {
        svg: () => domToSvg(container),
        csv: () => ({ name: "regard-model", rows: table(root) }),
        caption: () => "", // no run of the model is shown
      },
      read: () =>
        root === null
          ? null
          : {
              modules: flatten(root).map(({ path, label, parameter_count, shape }) => ({
                path,
                label,
                parameter_count,
                shape,
              })),
              drawn: /** @type {SVGGElement[]} */ ([...container.querySelectorAll(".module")]).map(({ dataset }) => ({
                path: dataset.path,
                form: dataset.form,
                parameter_count: Number(dataset.parameterCount),
              })),
              crossConnections: container.querySelectorAll("path[marker-end^='url(#arrow-cross']").length,
            },
    };
  },
};

/**
 * @param {ModuleBox} box
 * @param {(() => void) | null} openHeads
 */
function describe(box, openHeads) {
  const rows = box.parameters.map(({ name, shape }) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, name)),
      h("td", { class: "number" }, shape.join(" × ")),
      h("td", { class: "number" }, formatCount(shape.reduce((product, size) => product * size, 1))),
    ),
  );
  return [
    h("h2", {}, box.label),
    h("p", {}, box.description),
    h(
      "dl",
      {},
      h("dt", {}, linkTerms("[[Shapes|shape]]")),
      h("dd", {}, h("code", {}, box.shape)),
      h("dt", {}, linkTerms("[[Parameters|parameter]]")),
      h("dd", {}, formatCount(box.parameter_count)),
    ),
    openHeads === null
      ? null
      : h("button", { type: "button", class: "strong", onclick: openHeads }, "Show its attention heads"),
    rows.length === 0
      ? null
      : h(
          "table",
          { class: "parameters" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["name", "shape", "size"].map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          h("tbody", {}, rows.slice(0, MAX_PARAMETERS)),
        ),
    rows.length > MAX_PARAMETERS &&
      h("p", { class: "note" }, `and ${rows.length - MAX_PARAMETERS} more; the CSV contains all of them.`),
  ];
}

/**
 * @param {string} color
 * @param {string} name
 */
function kindKey(color, name) {
  const swatch = h("span", { class: "swatch" });
  swatch.style.backgroundColor = `var(${color})`;
  return h("span", { class: "kind" }, swatch, linkTerms(name));
}

/**
 * Arrow keys move up and down a column, and left and right to the nearest module of the next column.
 * @param {HTMLElement} container
 * @param {KeyboardEvent} event
 */
function moveFocus(container, event) {
  const modules = /** @type {SVGGElement[]} */ ([...container.querySelectorAll(".module")]);
  const current = /** @type {SVGGElement} */ (document.activeElement);
  /** @param {Element} module */
  const centerY = (module) => {
    const { top, height } = module.getBoundingClientRect();
    return top + height / 2;
  };
  const y = centerY(current);
  const across = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  const down = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : 0;
  if (across === 0 && down === 0) return;
  event.preventDefault();
  const column = Number(current.dataset.column) + across;
  const [next] = modules
    .filter((module) => module !== current && Number(module.dataset.column) === column)
    .filter((module) => across !== 0 || down * (centerY(module) - y) > 0)
    .sort((a, b) => Math.abs(centerY(a) - y) - Math.abs(centerY(b) - y));
  if (next === undefined) return;
  current.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

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

/**
 * @param {ModuleBox | null} root
 * @returns {(string | number)[][]}
 */
function table(root) {
  const header = ["path", "label", "kind", "parameter", "shape", "size"];
  if (root === null) return [header];
  const leaves = flatten(root).filter((box) => box.children.length === 0);
  return [
    header,
    ...leaves.flatMap((box) =>
      box.parameters.map(({ name, shape }) => [
        box.path,
        box.label,
        box.kind,
        name,
        shape.join("x"),
        shape.reduce((product, size) => product * size, 1),
      ]),
    ),
  ];
}
