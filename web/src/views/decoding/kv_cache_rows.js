/**
 * The rows of the KV cache through the steps of a search: which were kept, and which were copied.
 */

import { s, uniqueId } from "../../page/dom.js";
import { truncate } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";

/** @import { CacheCell } from "./search_tree.js" */

const [LEFT, ROW_HEIGHT, HEADER_HEIGHT, GAP, LETTER_WIDTH] = [46, 30, 26, 34, 7.2];

export class KvCacheRows {
  /** @param {CacheCell[]} cells @param {(id: number) => void} select */
  constructor(cells, select) {
    const labels = cells.map((cell) => truncate(tokenLabel(cell.node.token), 12));
    const rows = 1 + Math.max(0, ...cells.map(({ row }) => row));
    this.steps = Math.max(1, ...cells.map(({ step }) => step));
    this.cellWidth = Math.max(40, ...labels.map((label) => label.length * LETTER_WIDTH + 12));
    const width = LEFT + 20 + this.steps * (this.cellWidth + GAP);
    const height = HEADER_HEIGHT + rows * ROW_HEIGHT + 4;
    this.stepBand = s("rect", { class: "band", y: 2, width: this.cellWidth + 16, height: height - 4, rx: 6 });
    const marker = uniqueId("cache-arrow");
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
      arrowHead(marker),
      this.stepBand,
      Array.from({ length: rows }, (_, row) => s("text", { class: "name", x: 0, y: rowCenter(row) + 4 }, `row ${row + 1}`)),
      Array.from({ length: this.steps }, (_, index) => this.stepNumber(index + 1)),
      cells.map((cell) => drawArrow(cell, this.left(cell.step - 1) + this.cellWidth, this.left(cell.step), marker)),
      cells.map((cell, index) => this.drawCell(cell, labels[index], select)),
    );
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

  /** @param {CacheCell} cell @param {string} label @param {(id: number) => void} select */
  drawCell(cell, label, select) {
    const [x, y] = [this.left(cell.step), rowCenter(cell.row)];
    const origin = cell.copied ? `copied from row ${cell.from + 1}` : "kept";
    const attributes = {
      class: `cell ${cell.copied ? "copied" : "kept"}${cell.node.in_output ? " output" : ""}`,
      "data-step": cell.step,
      "data-row": cell.row,
      "data-from": cell.from,
      onclick: () => select(cell.node.id),
    };
    return s(
      "g",
      attributes,
      s("title", {}, `step ${cell.step}, row ${cell.row + 1}: ${label}, ${origin}`),
      s("rect", { x, y: y - 10, width: this.cellWidth, height: 20, rx: 4 }),
      s("text", { x: x + this.cellWidth / 2, y: y + 4 }, label),
    );
  }
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
