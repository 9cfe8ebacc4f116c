/**
 * The rows of the cache through the steps of a search: which went on with what they had, and which were copied.
 */

import { s } from "../../page/dom.js";
import { label } from "../../page/tokens.js";

/** @import { CacheCell } from "./beam.js" */

const [LEFT, ROW, HEAD, GAP, LETTER] = [46, 30, 26, 34, 7.2];

export class CacheRows {
  /** @param {CacheCell[]} cells @param {(id: number) => void} open */
  constructor(cells, open) {
    const texts = cells.map((cell) => cut(label(cell.node.token)));
    const rows = 1 + Math.max(0, ...cells.map(({ row }) => row));
    this.steps = Math.max(1, ...cells.map(({ step }) => step));
    this.wide = Math.max(40, ...texts.map((text) => text.length * LETTER + 12));
    const [width, height] = [LEFT + 20 + this.steps * (this.wide + GAP), HEAD + rows * ROW + 4];
    this.band = s("rect", { class: "band", y: 2, width: this.wide + 16, height: height - 4, rx: 6 });
    const name = "Rows of the cache, step by step";
    this.element = s(
      "svg",
      { class: "cache-rows", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": name },
      arrowHead(),
      this.band,
      Array.from({ length: rows }, (_, row) =>
        s("text", { class: "name", x: 0, y: middle(row) + 4 }, `row ${row + 1}`),
      ),
      Array.from({ length: this.steps }, (_, at) => this.number(at + 1)),
      cells.map((cell) => arrow(cell, this.left(cell.step - 1) + this.wide, this.left(cell.step))),
      cells.map((cell, index) => this.box(cell, texts[index], open)),
    );
  }

  /** Where the column of a step begins. @param {number} step */
  left(step) {
    return LEFT + 14 + (step - 1) * (this.wide + GAP);
  }

  /** @param {number} step the one that is looked at */
  mark(step) {
    this.band.setAttribute("x", String(this.left(step) - 8));
    this.band.toggleAttribute("hidden", step > this.steps);
  }

  /** @param {number} step */
  number(step) {
    return s("text", { class: "step", x: this.left(step) + this.wide / 2, y: 18 }, step === 1 ? "step 1" : step);
  }

  /** @param {CacheCell} cell @param {string} text @param {(id: number) => void} open */
  box(cell, text, open) {
    const [x, y] = [this.left(cell.step), middle(cell.row)];
    const what = cell.copied ? `copied from row ${cell.from + 1}` : "reused";
    const facts = {
      class: `cell ${cell.copied ? "copied" : "reused"}${cell.node.won ? " won" : ""}`,
      "data-step": cell.step,
      "data-row": cell.row,
      "data-from": cell.from,
      onclick: () => open(cell.node.id),
    };
    return s(
      "g",
      facts,
      s("title", {}, `step ${cell.step}, row ${cell.row + 1}: ${text}, ${what}`),
      s("rect", { x, y: y - 10, width: this.wide, height: 20, rx: 4 }),
      s("text", { x: x + this.wide / 2, y: y + 4 }, text),
    );
  }
}

/** @param {number} row */
function middle(row) {
  return HEAD + row * ROW + ROW / 2;
}

function arrowHead() {
  const size = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" };
  return s(
    "defs",
    {},
    s("marker", { id: "cache-arrow", ...size }, s("path", { class: "arrow-head", d: "M0 0L8 4L0 8z" })),
  );
}

/** @param {CacheCell} cell @param {number} from @param {number} to */
function arrow(cell, from, to) {
  const start = cell.step === 1 ? to - 12 : from;
  const d = `M${start} ${middle(cell.from)}L${to - 2} ${middle(cell.row)}`;
  return s("path", { class: cell.copied ? "arrow copied" : "arrow reused", d, "marker-end": "url(#cache-arrow)" });
}

/** @param {string} text */
function cut(text) {
  return text.length > 12 ? `${text.slice(0, 11)}…` : text;
}
