/**
 * The model diagram as SVG.
 */

/** @import { ModuleBox, Trace } from "../../contract" */
/** @import { Coloring } from "./coloring.js" */
/** @import { Arrow, ColumnEnd, Layout, PlacedBox, Sizes, Sum } from "./layout.js" */
/** @import { BoxFigures } from "./quantities.js" */

import { cssVariable, s, uniqueId } from "../../page/dom.js";
import { formatCount, formatNumber, truncate } from "../../page/format.js";
import { KINDS } from "./coloring.js";
import { NARROW } from "./layout.js";
import { formatShape } from "./quantities.js";

/**
 * @typedef {object} Drawing what the boxes show
 * @property {Sizes} sizes
 * @property {Coloring} coloring
 * @property {(path: string) => BoxFigures} figures
 */

/**
 * @param {Layout} layout
 * @param {Drawing} drawing
 * @param {Trace | null} trace whose texts label the input and output
 * @returns {SVGSVGElement}
 */
export function drawModel(layout, drawing, trace) {
  const markers = { arrow: uniqueId("arrow"), cross: uniqueId("arrow-cross") };
  const arrowHead = s(
    "marker",
    {
      id: markers.arrow,
      viewBox: "0 0 8 8",
      refX: 7,
      refY: 4,
      markerWidth: 7,
      markerHeight: 7,
      orient: "auto-start-reverse",
    },
    s("path", { d: "M0 0L8 4L0 8Z", fill: cssVariable("--ink-soft") }),
  );
  const crossArrowHead = /** @type {SVGMarkerElement} */ (arrowHead.cloneNode(true));
  crossArrowHead.id = markers.cross;
  crossArrowHead.querySelector("path")?.setAttribute("fill", cssVariable("--accent"));
  const inputs = layout.ends.filter(({ end }) => end === "input").length;
  return s(
    "svg",
    {
      class: "diagram",
      width: layout.width + 4,
      height: layout.height,
      viewBox: `-2 0 ${layout.width + 4} ${layout.height}`,
      role: "group",
      "aria-label": "The model diagram; arrow keys move from module to module",
      "font-family": cssVariable("--font"),
    },
    s("defs", {}, arrowHead, crossArrowHead),
    layout.boxes.filter((box) => box.form === "open").map(drawOpenLayer),
    layout.arrows.map((arrow) => drawArrow(arrow, markers)),
    layout.sums.flatMap(drawSum),
    layout.boxes
      .filter((box) => box.form !== "open")
      .map((box) => (box.form === "closed" ? drawClosedLayer(box, drawing) : drawModule(box, drawing))),
    layout.ends.map((end) => drawEnd(end, endLabel(trace, end, inputs), drawing.sizes)),
  );
}

/** @param {Arrow} arrow @param {{ arrow: string, cross: string }} markers the ids of the arrow heads */
function drawArrow({ points, kind }, markers) {
  return s("path", {
    d: `M${points.map(([x, y]) => `${x} ${y}`).join("L")}`,
    fill: "none",
    stroke: cssVariable(kind === "cross" ? "--accent" : "--ink-soft"),
    "stroke-width": kind === "cross" ? 2 : 1.4,
    "stroke-linejoin": "round",
    "marker-end": `url(#${kind === "cross" ? markers.cross : markers.arrow})`,
  });
}

/** A plus, or two bars where vectors are concatenated. @param {Sum} sum */
function drawSum({ x, y, of, joins }) {
  const stroke = { stroke: cssVariable("--ink-soft"), "stroke-width": 1.5 };
  const sign = joins === "added" ? `M${x - 5} ${y}H${x + 5}M${x} ${y - 5}V${y + 5}` : `M${x - 2.5} ${y - 5}v10m5 0v-10`;
  return [
    s("circle", { class: "sum", cx: x, cy: y, r: 9, fill: cssVariable("--panel"), "data-of": of, ...stroke }),
    s("path", { d: sign, fill: "none", ...stroke }),
  ];
}

/**
 * @param {ColumnEnd} end
 * @param {string} label
 * @param {Sizes} sizes
 */
function drawEnd({ x, y, end }, label, sizes) {
  return s(
    "text",
    {
      x,
      y: end === "input" ? y + 18 : y - 8,
      "text-anchor": "middle",
      "font-size": 13,
      "font-style": "italic",
      fill: cssVariable("--ink"),
    },
    truncate(label, sizes === NARROW ? 20 : 34),
  );
}

/**
 * @param {PlacedBox} placed
 * @param {Drawing} drawing
 */
function drawModule(placed, drawing) {
  const { box, x, y, width, height } = placed;
  const isNarrow = drawing.sizes === NARROW;
  const { fill, ink, value } = drawing.coloring.of(box);
  const center = x + width / 2;
  const lines = [shortShape(box.shape), ...liveLines(drawing.figures(box.path), isNarrow), value].filter(Boolean);
  const first = y + (height - 15 * lines.length) / 2 + 4;
  return drawGroup(
    placed,
    box.attention === undefined ? "" : "Opens its heads.",
    s("rect", { x, y, width, height, rx: 7, fill, stroke: cssVariable("--module-line"), "stroke-width": 1.2 }),
    s(
      "text",
      {
        x: center,
        y: first,
        "text-anchor": "middle",
        "font-size": isNarrow ? 11.5 : 13.5,
        "font-weight": 600,
        fill: ink,
      },
      `${truncate(box.label, isNarrow ? 20 : 30)} `,
    ),
    lines.map((text, index) =>
      s(
        "text",
        { x: center, y: first + 16 + 15 * index, "text-anchor": "middle", "font-size": isNarrow ? 11 : 11.5, fill: ink },
        `${truncate(text, isNarrow ? 22 : 38)} `,
      ),
    ),
    box.attention !== undefined && box.position === "rotary" && drawRotary(placed),
  );
}

/** The sign of rotary positions, on the corner of attention. @param {PlacedBox} placed */
function drawRotary({ x, y, width }) {
  return [
    s("rect", {
      x: x + width - 40,
      y: y - 7,
      width: 36,
      height: 15,
      rx: 7,
      fill: cssVariable("--module-position"),
      stroke: cssVariable("--module-line"),
    }),
    s(
      "text",
      { x: x + width - 22, y: y + 4, "text-anchor": "middle", "font-size": 10, fill: cssVariable("--module-ink") },
      "RoPE ",
    ),
  ];
}

/**
 * A closed layer: its name, what leaves it, and a swatch for each module.
 * @param {PlacedBox} placed
 * @param {Drawing} drawing
 */
function drawClosedLayer(placed, drawing) {
  const { box, x, y, width, height } = placed;
  const isNarrow = drawing.sizes === NARROW;
  const { fill, ink, value } = drawing.coloring.of(box);
  const kinds = drawing.coloring.isByKind ? moduleKinds(box) : [];
  const lines = [...liveLines(drawing.figures(box.path), isNarrow), isNarrow ? "" : value].filter(Boolean);
  const text = lines.length > 1 && !isNarrow ? [lines.join(" · ")] : lines;
  const first = y + (height - 15 * text.length) / 2 + 4.5;
  const swatches = kinds.map((kind, index) =>
    s("rect", {
      x: x + width - 12 - 13 * (kinds.length - index),
      y: first - 9.5,
      width: 10,
      height: 10,
      rx: 2,
      fill: cssVariable(KINDS[kind]?.[0] ?? "--panel"),
      stroke: cssVariable("--module-line"),
    }),
  );
  return drawGroup(
    placed,
    "Closed. Opens the layer.",
    s("rect", { x, y, width, height, rx: 7, fill, stroke: cssVariable("--line"), "stroke-width": 1.5 }),
    s("text", { x: x + 12, y: first, "font-size": 13, "font-weight": 600, fill: ink }, `▸ ${box.label} `),
    text.map((line, index) =>
      s(
        "text",
        { x: x + 12, y: first + 15 * (index + 1), "font-size": isNarrow ? 11 : 11.5, fill: ink },
        `${truncate(line, isNarrow ? 20 : 40)} `,
      ),
    ),
    isNarrow &&
      !drawing.coloring.isByKind &&
      s("text", { x: x + width - 8, y: first, "text-anchor": "end", "font-size": 10, fill: ink }, `${value} `),
    swatches,
  );
}

/**
 * The shape of what leaves a box, and its mean norm.
 * @param {BoxFigures} figures
 * @param {boolean} isNarrow in two lines
 */
function liveLines({ shape, norm }, isNarrow) {
  if (shape === undefined) return [];
  const norms = norm === undefined ? [] : [`norm ${formatNumber(norm)}`];
  return isNarrow ? [formatShape(shape), ...norms] : [[formatShape(shape), ...norms].join(" · ")];
}

/** The frame and title of an open layer. @param {PlacedBox} placed */
function drawOpenLayer(placed) {
  const { box, x, y, width, height } = placed;
  return s(
    "g",
    {},
    s("rect", {
      x,
      y,
      width,
      height,
      rx: 10,
      fill: cssVariable("--paper"),
      stroke: cssVariable("--line"),
      "stroke-width": 1.5,
    }),
    drawGroup(
      placed,
      "Open. Closes the layer.",
      s("rect", { x: x + 4, y: y + 4, width: width - 8, height: 20, rx: 5, fill: cssVariable("--paper") }),
      s(
        "text",
        { x: x + 12, y: y + 18, "font-size": 12.5, "font-weight": 600, fill: cssVariable("--ink-soft") },
        `▾ ${box.label} `,
      ),
      s(
        "text",
        { x: x + width - 12, y: y + 18, "text-anchor": "end", "font-size": 11.5, fill: cssVariable("--ink-soft") },
        formatCount(box.parameter_count),
      ),
    ),
  );
}

/**
 * @param {PlacedBox} placed
 * @param {string} action what a click does
 * @param {Parameters<typeof s>[2][]} children
 */
function drawGroup({ box, form, column, y }, action, ...children) {
  return s(
    "g",
    {
      class: "module",
      role: "button",
      tabindex: -1,
      "aria-description": action === "" ? null : action,
      "data-path": box.path,
      "data-form": form,
      "data-column": column,
      "data-parameter-count": box.parameter_count,
      "data-y": y,
    },
    ...children,
  );
}

/**
 * A shape that fits into a box: what does not change is written once.
 * @param {string} shape such as "(batch, tokens, 256) → 4 heads of 64 → (batch, tokens, 256)"
 */
function shortShape(shape) {
  const steps = shape.split(" → ");
  if (steps.length > 2) return steps.slice(1, -1).join(" → ");
  if (steps.length === 2 && steps[0] === steps[1]) return steps[0];
  return shape.length <= 36 ? shape : `→ ${steps[steps.length - 1]}`;
}

/**
 * The kinds of modules in a layer, in order.
 * @param {ModuleBox} box
 * @returns {string[]}
 */
function moduleKinds(box) {
  if (box.children.length === 0) return KINDS[box.kind] === undefined || box.kind === "norm" ? [] : [box.kind];
  return box.children.flatMap(moduleKinds);
}

/**
 * @param {Trace | null} trace
 * @param {ColumnEnd} end
 * @param {number} inputs
 */
function endLabel(trace, { end, column }, inputs) {
  if (end === "output") return trace?.output || "output";
  if (inputs > 1 && column === inputs - 1) return "target so far";
  return trace === null ? "input" : trace.grid === undefined ? trace.request.text : "image patches";
}
