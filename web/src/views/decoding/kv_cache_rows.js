/**
 * The rows of the KV cache through the steps of a search: which were kept, and which were copied. Of a long search only the
 * visible steps are drawn.
 */

import { s, uniqueId } from "../../page/dom.js";
import { truncate } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { onVisibleChange, updateChildren, visibleBox } from "../shared/visible_part.js";

/** @import { CacheCell } from "./search_tree.js" */

const [LEFT, ROW_HEIGHT, HEADER_HEIGHT, GAP, LETTER_WIDTH] = [46, 30, 26, 34, 7.2];

/** More cells are drawn only where they are visible. */
const MAX_DRAWN = 100;

export class KvCacheRows {
  /** @param {HTMLElement} frame which scrolls @param {CacheCell[]} cells @param {(id: number) => void} select */
  constructor(frame, cells, select) {
    this.frame = frame;
    this.select = select;
    this.isWindowed = cells.length > MAX_DRAWN;
    /** @type {Map<number, CacheCell[]>} */
    this.byStep = new Map();
    let [rows, longest] = [1, 0];
    this.steps = 1;
    for (const cell of cells) {
      this.byStep.set(cell.step, [...(this.byStep.get(cell.step) ?? []), cell]);
      rows = Math.max(rows, cell.row + 1);
      longest = Math.max(longest, label(cell).length);
      this.steps = Math.max(this.steps, cell.step);
    }
    this.cellWidth = Math.max(40, longest * LETTER_WIDTH + 12);
    const width = LEFT + 20 + this.steps * (this.cellWidth + GAP);
    const height = HEADER_HEIGHT + rows * ROW_HEIGHT + 4;
    this.stepBand = s("rect", { class: "band", y: 2, width: this.cellWidth + 16, height: height - 4, rx: 6 });
    this.marker = uniqueId("cache-arrow");
    this.columns = s("g");
    /** The columns of steps that are drawn. @type {Map<string, Element>} */
    this.drawn = new Map();
    this.element = s(
      "svg",
      {
        class: "kv-cache",
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: "group",
        "aria-label": "Rows of the KV cache or state, step by step",
      },
      arrowHead(this.marker),
      this.stepBand,
      Array.from({ length: rows }, (_, row) => s("text", { class: "name", x: 0, y: rowCenter(row) + 4 }, `row ${row + 1}`)),
      this.columns,
    );
    frame.replaceChildren(this.element);
    this.drawVisible();
    this.stopWatching = onVisibleChange(frame, () => this.drawVisible());
  }

  destroy() {
    this.stopWatching();
  }

  drawVisible() {
    let [first, last] = [1, this.steps];
    if (this.isWindowed) {
      const { left, right } = visibleBox(this.frame);
      const stepAt = (/** @type {number} */ x) => 1 + Math.floor((x - this.left(1)) / (this.cellWidth + GAP));
      [first, last] = [Math.max(1, stepAt(left)), Math.min(this.steps, stepAt(right) + 1)];
    }
    const steps = Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
    updateChildren(this.columns, this.drawn, steps, String, (step) => this.drawStep(step));
  }

  /** @param {number} step */
  drawStep(step) {
    const cells = this.byStep.get(step) ?? [];
    const arrows = cells.map((cell) => drawArrow(cell, this.left(step - 1) + this.cellWidth, this.left(step), this.marker));
    return s("g", {}, this.stepNumber(step), arrows, cells.map((cell) => this.drawCell(cell)));
  }

  /** The left edge of a step's column. @param {number} step */
  left(step) {
    return LEFT + 14 + (step - 1) * (this.cellWidth + GAP);
  }

  /** @param {number} step */
  markStep(step) {
    this.stepBand.setAttribute("x", String(this.left(step) - 8));
    this.stepBand.toggleAttribute("hidden", step > this.steps);
  }

  /** @param {number} step */
  stepNumber(step) {
    return s("text", { class: "step", x: this.left(step) + this.cellWidth / 2, y: 18 }, step === 1 ? "step 1" : step);
  }

  /** @param {CacheCell} cell */
  drawCell(cell) {
    const [x, y] = [this.left(cell.step), rowCenter(cell.row)];
    const origin = cell.copied ? `copied from row ${cell.from + 1}` : "kept";
    const attributes = {
      class: `cell ${cell.copied ? "copied" : "kept"}${cell.node.in_output ? " output" : ""}`,
      "data-step": cell.step,
      "data-row": cell.row,
      "data-from": cell.from,
      onclick: () => this.select(cell.node.id),
    };
    return s(
      "g",
      attributes,
      s("title", {}, `step ${cell.step}, row ${cell.row + 1}: ${label(cell)}, ${origin}`),
      s("rect", { x, y: y - 10, width: this.cellWidth, height: 20, rx: 4 }),
      s("text", { x: x + this.cellWidth / 2, y: y + 4 }, label(cell)),
    );
  }
}

/** @param {CacheCell} cell */
function label({ node }) {
  return truncate(tokenLabel(node.token), 12);
}

/** @param {number} row */
function rowCenter(row) {
  return HEADER_HEIGHT + row * ROW_HEIGHT + ROW_HEIGHT / 2;
}

/** @param {string} id */
function arrowHead(id) {
  const size = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" };
  return s(
    "defs",
    {},
    s("marker", { id, ...size }, s("path", { class: "arrow-head", d: "M0 0L8 4L0 8z" })),
  );
}

/** @param {CacheCell} cell @param {number} from @param {number} to @param {string} marker the id of the arrow head */
function drawArrow(cell, from, to, marker) {
  const start = cell.step === 1 ? to - 12 : from;
  const d = `M${start} ${rowCenter(cell.from)}L${to - 2} ${rowCenter(cell.row)}`;
  return s("path", { class: cell.copied ? "arrow copied" : "arrow kept", d, "marker-end": `url(#${marker})` });
}
