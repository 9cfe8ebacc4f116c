/**
 * The model: its stack drawn from what it is made of, every box with its shapes and how many numbers were trained in it.
 * A click on an attention opens its heads.
 */

/** @import { Part, View } from "../contract" */

import { h, put } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { sketch } from "../page/sketch.js";
import { whole } from "../page/words.js";
import { KINDS, drawModel } from "./model/draw.js";
import { NARROW, ROOMY, layOut } from "./model/layout.js";

/** @type {View} */
export const view = {
  name: "model",
  title: "Model",
  fits: () => true,
  mount(element, context) {
    const place = h("div", { class: "stack-place panel" });
    const details = h("section", {
      class: "details panel",
      "aria-label": "The box that is pointed at",
      "aria-live": "polite",
    });
    const all = h("input", { type: "checkbox" });
    const legend = h("div", { class: "kinds" });
    element.append(
      explanation(
        "model",
        "What the model is made of",
        "Read it from below. Words become lists of numbers, and every layer changes these lists a little.",
        "In attention, words look at each other. In the feed-forward, every word is worked on alone. Thin lines past the boxes carry on what was there before, and it is added again (+).",
        "Where a model both reads and writes, an encoder reads and a decoder writes, and each layer of the decoder looks at what the encoder made (the blue lines). Click an attention to see where its heads look.",
      ),
      h(
        "div",
        { class: "controls", "data-sketch": "no" },
        h("label", { class: "check" }, all, "Show all layers open"),
        legend,
      ),
      h("div", { class: "beside" }, place, details),
    );

    /** @type {Part | null} */
    let model = null;
    /** @type {Set<string>} */
    let open = new Set();
    /** @type {Map<string, Part>} */
    let byPath = new Map();
    let asked = "";
    let drawn = "";
    let here = "";

    all.addEventListener("change", () => {
      open = all.checked ? new Set(blocks(model).map((block) => block.path)) : firstLayers(model);
      draw();
    });
    const watcher = new ResizeObserver(() => draw());
    watcher.observe(place);

    function draw() {
      if (model === null) return;
      const sizes = place.clientWidth < 640 ? NARROW : ROOMY;
      const trace = context.trace();
      const wanted = JSON.stringify([
        model.path,
        asked,
        [...open],
        sizes.box,
        document.documentElement.dataset.theme,
        trace?.id,
      ]);
      if (wanted === drawn) return;
      drawn = wanted;
      const had = place.contains(document.activeElement);
      const svg = drawModel(layOut(model, open, sizes), sizes, trace);
      put(place, svg);
      const boxes = /** @type {SVGGElement[]} */ ([...svg.querySelectorAll(".part")]);
      const current = boxes.find((box) => box.dataset.path === here) ?? boxes[0];
      current?.setAttribute("tabindex", "0");
      if (had) current?.focus();
      put(
        legend,
        Object.values(KINDS).map(([colour, name]) => kind(colour, name)),
      );
    }

    /** @param {Part} part */
    function act(part) {
      if (part.attention !== undefined) {
        return context.store.set({ view: "heads", side: part.attention.side, layer: part.attention.layer });
      }
      if (part.kind === "block") {
        if (open.has(part.path)) open.delete(part.path);
        else open.add(part.path);
        open = new Set(open);
        draw();
      }
      return describe(part);
    }

    /** @param {Part} part */
    function describe(part) {
      here = part.path;
      put(details, ...about(part, part.attention === undefined ? null : () => act(part)));
    }

    /** @param {Event} event */
    const partAt = (event) => {
      const box = /** @type {Element} */ (event.target).closest?.(".part");
      return box instanceof SVGGElement ? (byPath.get(box.dataset.path ?? "") ?? null) : null;
    };
    for (const name of ["pointerover", "focusin"]) {
      place.addEventListener(name, (event) => {
        const part = partAt(event);
        if (part !== null && part.path !== here) describe(part);
      });
    }
    place.addEventListener("click", (event) => {
      const part = partAt(event);
      if (part !== null) act(part);
    });
    place.addEventListener("keydown", (event) => {
      const part = partAt(event);
      if (part === null) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        return act(part);
      }
      return walk(place, event);
    });

    return {
      update(state) {
        draw();
        const id = state.model;
        if (id === "" || id === asked) return;
        asked = id;
        context.source.parts(id).then(
          (parts) => {
            if (asked !== id) return;
            model = parts;
            byPath = new Map(flat(parts).map((part) => [part.path, part]));
            open = firstLayers(parts);
            all.checked = false;
            describe(parts);
            draw();
          },
          (problem) => {
            asked = "";
            put(place, h("p", { class: "problem" }, problem.message));
          },
        );
      },
      destroy: () => watcher.disconnect(),
      exports: {
        svg: () => sketch(place),
        csv: () => ({ name: "regard-model", rows: table(model) }),
      },
      read: () =>
        model === null
          ? null
          : {
              parts: flat(model).map(({ path, label, count, shape }) => ({ path, label, count, shape })),
              drawn: /** @type {SVGGElement[]} */ ([...place.querySelectorAll(".part")]).map(({ dataset }) => ({
                path: dataset.path,
                as: dataset.as,
                count: Number(dataset.count),
              })),
              crossings: place.querySelectorAll("path[marker-end='url(#arrow-cross)']").length,
            },
    };
  },
};

/**
 * What is said of a box.
 * @param {Part} part
 * @param {(() => void) | null} go to its heads
 */
function about(part, go) {
  const rows = part.parameters.map(({ name, shape }) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, name)),
      h("td", { class: "number" }, shape.join(" × ")),
      h("td", { class: "number" }, whole(shape.reduce((product, size) => product * size, 1))),
    ),
  );
  const most = 14;
  return [
    h("h2", {}, part.label),
    h("p", {}, part.about),
    h(
      "dl",
      {},
      h("dt", {}, "What goes in and comes out"),
      h("dd", {}, h("code", {}, part.shape)),
      h("dt", {}, "Numbers trained in it"),
      h("dd", {}, whole(part.count)),
    ),
    go === null ? null : h("button", { type: "button", class: "strong", onclick: go }, "See where its heads look"),
    rows.length === 0
      ? null
      : h(
          "table",
          { class: "plain" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["name", "shape", "numbers"].map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          h("tbody", {}, rows.slice(0, most)),
        ),
    rows.length > most && h("p", { class: "note" }, `and ${rows.length - most} more; all are in the CSV.`),
  ];
}

/**
 * @param {string} colour
 * @param {string} name
 */
function kind(colour, name) {
  const spot = h("span", { class: "spot" });
  spot.style.backgroundColor = `var(${colour})`;
  return h("span", { class: "kind" }, spot, name);
}

/**
 * Arrow keys: up and down along a column, left and right to the box beside.
 * @param {HTMLElement} place
 * @param {KeyboardEvent} event
 */
function walk(place, event) {
  const boxes = /** @type {SVGGElement[]} */ ([...place.querySelectorAll(".part")]);
  const now = /** @type {SVGGElement} */ (document.activeElement);
  /** @param {Element} box */
  const middle = (box) => {
    const { left, width, top, height } = box.getBoundingClientRect();
    return { x: left + width / 2, y: top + height / 2 };
  };
  const at = middle(now);
  const beside = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  const down = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : 0;
  if (beside === 0 && down === 0) return;
  event.preventDefault();
  const column = Number(now.dataset.column) + beside;
  const [next] = boxes
    .filter((box) => box !== now && Number(box.dataset.column) === column)
    .filter((box) => beside !== 0 || down * (middle(box).y - at.y) > 0)
    .sort((one, other) => Math.abs(middle(one).y - at.y) - Math.abs(middle(other).y - at.y));
  if (next === undefined) return;
  now.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

/**
 * @param {Part} part
 * @returns {Part[]}
 */
function flat(part) {
  return [part, ...part.parts.flatMap(flat)];
}

/** @param {Part | null} model */
function blocks(model) {
  return model === null ? [] : flat(model).filter((part) => part.kind === "block");
}

/**
 * The first layer of each stack is open at the beginning.
 * @param {Part | null} model
 */
function firstLayers(model) {
  const stacks = model === null ? [] : flat(model).filter((part) => part.kind === "stack");
  return new Set(
    stacks.flatMap((stack) => stack.parts.filter((part) => part.kind === "block").slice(0, 1)).map((part) => part.path),
  );
}

/**
 * @param {Part | null} model
 * @returns {(string | number)[][]}
 */
function table(model) {
  const head = ["path", "label", "kind", "parameter", "shape", "numbers"];
  if (model === null) return [head];
  const leaves = flat(model).filter((part) => part.parts.length === 0);
  return [
    head,
    ...leaves.flatMap((part) =>
      part.parameters.map(({ name, shape }) => [
        part.path,
        part.label,
        part.kind,
        name,
        shape.join("x"),
        shape.reduce((product, size) => product * size, 1),
      ]),
    ),
  ];
}
