/**
 * The stack as SVG. Colours are set on the elements themselves, so that a saved picture has them too.
 */

/** @import { Part, Trace } from "../../contract" */
/** @import { Box, Layout, Arrow, Sizes } from "./layout.js" */

import { css, s } from "../../page/dom.js";
import { whole } from "../../page/words.js";
import { NARROW } from "./layout.js";

/** The colour of a kind, by its CSS variable. */
export const KINDS = /** @type {Record<string, [string, string]>} */ ({
  attention: ["--part-attention", "attention"],
  "feed-forward": ["--part-feed-forward", "feed-forward"],
  norm: ["--part-norm", "norm"],
  input: ["--part-input", "input"],
  output: ["--part-output", "output"],
});

/**
 * @param {Layout} layout
 * @param {Sizes} sizes
 * @param {Trace | null} trace whose words stand at the ends
 * @returns {SVGSVGElement}
 */
export function drawModel(layout, sizes, trace) {
  const ink = css("--ink");
  const head = s(
    "marker",
    {
      id: "arrow",
      viewBox: "0 0 8 8",
      refX: 7,
      refY: 4,
      markerWidth: 7,
      markerHeight: 7,
      orient: "auto-start-reverse",
    },
    s("path", { d: "M0 0L8 4L0 8Z", fill: css("--ink-soft") }),
  );
  const crossHead = /** @type {SVGMarkerElement} */ (head.cloneNode(true));
  crossHead.id = "arrow-cross";
  crossHead.querySelector("path")?.setAttribute("fill", css("--accent"));
  const frames = layout.boxes.filter((box) => box.as === "frame");
  const boxes = layout.boxes.filter((box) => box.as !== "frame");
  return s(
    "svg",
    {
      class: "stack",
      width: layout.width + 4,
      height: layout.height,
      viewBox: `-2 0 ${layout.width + 4} ${layout.height}`,
      role: "group",
      "aria-label": "The model, box by box; arrow keys go from one to the next",
      "font-family": css("--font"),
    },
    s("defs", {}, head, crossHead),
    frames.map((box) => frame(box)),
    layout.arrows.map(line),
    layout.sums
      .map(({ x, y }) => [
        s("circle", { cx: x, cy: y, r: 9, fill: css("--panel"), stroke: css("--ink-soft"), "stroke-width": 1.5 }),
        s("path", {
          d: `M${x - 5} ${y}H${x + 5}M${x} ${y - 5}V${y + 5}`,
          stroke: css("--ink-soft"),
          "stroke-width": 1.5,
        }),
      ])
      .flat(),
    boxes.map((box) => (box.as === "closed" ? closed(box) : open(box, sizes))),
    layout.ends.map(({ x, y, of, column }) =>
      s(
        "text",
        {
          x,
          y: of === "in" ? y + 18 : y - 8,
          "text-anchor": "middle",
          "font-size": 13,
          "font-style": "italic",
          fill: ink,
        },
        short(said(trace, of, column, layout.ends.filter((end) => end.of === "in").length), sizes === NARROW ? 20 : 34),
      ),
    ),
  );
}

/** @param {Arrow} arrow */
function line({ points, as }) {
  return s("path", {
    d: `M${points.map(([x, y]) => `${x} ${y}`).join("L")}`,
    fill: "none",
    stroke: css(as === "cross" ? "--accent" : "--ink-soft"),
    "stroke-width": as === "cross" ? 2 : 1.4,
    "stroke-linejoin": "round",
    "marker-end": as === "cross" ? "url(#arrow-cross)" : "url(#arrow)",
  });
}

/**
 * @param {Box} box
 * @param {Sizes} sizes
 */
function open(box, sizes) {
  const { part, x, y, width, height } = box;
  const [colour] = KINDS[part.kind] ?? ["--panel"];
  const narrow = sizes === NARROW;
  const middle = x + width / 2;
  const lines = [brief(part.shape), counted(part)];
  return group(
    box,
    part.attention === undefined ? "" : "Opens its heads.",
    s("rect", { x, y, width, height, rx: 7, fill: css(colour), stroke: css("--part-line"), "stroke-width": 1.2 }),
    s(
      "text",
      {
        x: middle,
        y: y + 18,
        "text-anchor": "middle",
        "font-size": narrow ? 11.5 : 13.5,
        "font-weight": 600,
        fill: css("--part-ink"),
      },
      `${short(part.label, narrow ? 22 : 30)} `,
    ),
    lines.map((text, number) =>
      s(
        "text",
        { x: middle, y: y + 35 + 15 * number, "text-anchor": "middle", "font-size": 11.5, fill: css("--part-ink") },
        `${short(text, narrow ? 21 : 38)} `,
      ),
    ),
  );
}

/** @param {Box} box a layer of which only the name is shown, and a spot for each box in it */
function closed(box) {
  const { part, x, y, width, height } = box;
  const kinds = inside(part);
  const spots = kinds.map((kind, number) =>
    s("rect", {
      x: x + width - 12 - 13 * (kinds.length - number),
      y: y + height / 2 - 5,
      width: 10,
      height: 10,
      rx: 2,
      fill: css(KINDS[kind]?.[0] ?? "--panel"),
      stroke: css("--part-line"),
    }),
  );
  return group(
    box,
    "Closed. Opens the layer.",
    s("rect", { x, y, width, height, rx: 7, fill: css("--panel"), stroke: css("--line"), "stroke-width": 1.5 }),
    s(
      "text",
      { x: x + 12, y: y + height / 2 + 4.5, "font-size": 13, "font-weight": 600, fill: css("--ink") },
      `▸ ${part.label} `,
    ),
    width > 200 &&
      s("text", { x: x + 84, y: y + height / 2 + 4, "font-size": 11.5, fill: css("--ink-soft") }, whole(part.count)),
    spots,
  );
}

/** @param {Box} box an open layer */
function frame(box) {
  const { part, x, y, width, height } = box;
  return s(
    "g",
    {},
    s("rect", { x, y, width, height, rx: 10, fill: css("--paper"), stroke: css("--line"), "stroke-width": 1.5 }),
    group(
      box,
      "Open. Closes the layer.",
      s("rect", { x: x + 4, y: y + 4, width: width - 8, height: 20, rx: 5, fill: css("--paper") }),
      s(
        "text",
        { x: x + 12, y: y + 18, "font-size": 12.5, "font-weight": 600, fill: css("--ink-soft") },
        `▾ ${part.label} `,
      ),
      s(
        "text",
        { x: x + width - 12, y: y + 18, "text-anchor": "end", "font-size": 11.5, fill: css("--ink-soft") },
        whole(part.count),
      ),
    ),
  );
}

/**
 * @param {Box} box
 * @param {string} does what a click on it does
 * @param {Parameters<typeof s>[2][]} children
 */
function group(box, does, ...children) {
  return s(
    "g",
    {
      class: "part",
      role: "button",
      tabindex: -1,
      "aria-description": does === "" ? null : does,
      "data-path": box.part.path,
      "data-as": box.as,
      "data-column": box.column,
      "data-count": box.part.count,
    },
    ...children,
  );
}

/** @param {Part} part */
export function counted(part) {
  if (part.count === 0 && part.parameters.length > 0) return "shared numbers";
  return part.count === 0 ? "nothing trained" : `${whole(part.count)} ${part.count === 1 ? "number" : "numbers"}`;
}

/**
 * A shape short enough for a box: what stays the same is said once.
 * @param {string} shape such as "(rows, words, 256) → 4 heads of 64 → (rows, words, 256)"
 */
function brief(shape) {
  const steps = shape.split(" → ");
  if (steps.length > 2) return steps.slice(1, -1).join(" → ");
  if (steps.length === 2 && steps[0] === steps[1]) return steps[0];
  return shape.length <= 36 ? shape : `→ ${steps[steps.length - 1]}`;
}

/**
 * The kinds of boxes in a layer, in their order.
 * @param {Part} part
 * @returns {string[]}
 */
function inside(part) {
  if (part.parts.length === 0) return KINDS[part.kind] === undefined || part.kind === "norm" ? [] : [part.kind];
  return part.parts.flatMap(inside);
}

/**
 * @param {Trace | null} trace
 * @param {"in" | "out"} of
 * @param {number} column
 * @param {number} columns
 */
function said(trace, of, column, columns) {
  if (of === "out") return trace?.output || "what it says";
  if (columns > 1 && column === columns - 1) return "what is written so far";
  return trace === null ? "what it reads" : trace.grid === undefined ? trace.request.text : "the patches of a picture";
}

/**
 * @param {string} text
 * @param {number} longest
 */
function short(text, longest) {
  return text.length <= longest ? text : `${text.slice(0, longest - 1)}…`;
}
