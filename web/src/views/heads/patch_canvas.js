/**
 * An image with its patches on top: each may have a translucent color and a short text, and one is framed. A click or the
 * arrow keys select a patch.
 */

/** @import { Trace } from "../../contract" */

import { cssVariable, h } from "../../page/dom.js";

/** Pixels of the longer side, about; the browser scales it to the room there is. */
const LONGER_SIDE = 1200;
/** Pixels of a text in a patch, and the smallest patch that has one. */
const [TEXT_SIZE, MIN_TEXT_PATCH] = [26, 36];

/** @typedef {NonNullable<Trace["grid"]>} Grid */
/** @typedef {{ color: string, opacity: number, text?: string }} Patch */

export class PatchCanvas {
  /** @param {string} label for screen readers @param {(patch: number) => void} select */
  constructor(label, select) {
    this.select = select;
    this.canvas = h("canvas", {
      class: "patch-canvas",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "image",
      "aria-label": label,
    });
    this.image = new Image();
    this.image.addEventListener("load", () => this.paint());
    /** @type {{ grid: Grid, patches: Patch[], framed: number } | null} */
    this.shown = null;
    this.canvas.addEventListener("click", (event) => this.onClick(event));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** @param {Grid} grid @param {Patch[]} patches @param {number} framed the framed patch; -1 for none */
  show(grid, patches, framed) {
    this.shown = { grid, patches, framed };
    const size = Math.max(8, Math.floor(LONGER_SIDE / Math.max(grid.rows, grid.columns)));
    if (this.canvas.width !== size * grid.columns) this.canvas.width = size * grid.columns;
    if (this.canvas.height !== size * grid.rows) this.canvas.height = size * grid.rows;
    this.canvas.style.setProperty("--aspect", String(grid.columns / grid.rows));
    if (this.image.src !== grid.image) this.image.src = grid.image;
    this.paint();
  }

  paint() {
    const context = this.canvas.getContext("2d");
    if (context === null || this.shown === null) return;
    const { grid, patches, framed } = this.shown;
    const { width, height } = this.canvas;
    const size = width / grid.columns;
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = this.image.naturalWidth > width / 8; // a few large pixels stay sharp
    if (this.image.complete && this.image.naturalWidth > 0) context.drawImage(this.image, 0, 0, width, height);
    patches.forEach(({ color, opacity, text }, patch) => {
      const [x, y] = [(patch % grid.columns) * size, Math.floor(patch / grid.columns) * size];
      context.globalAlpha = opacity;
      context.fillStyle = color;
      context.fillRect(x, y, size, size);
      context.globalAlpha = 1;
      if (text !== undefined && size >= MIN_TEXT_PATCH) paintText(context, text, x + size / 2, y + size / 2);
    });
    if (framed < 0) return;
    const [x, y] = [(framed % grid.columns) * size, Math.floor(framed / grid.columns) * size];
    for (const [color, line] of /** @type {[string, number][]} */ ([["--paper", 9], ["--ink", 5]])) {
      context.strokeStyle = cssVariable(color);
      context.lineWidth = line;
      context.strokeRect(x + 2.5, y + 2.5, size - 5, size - 5);
    }
  }

  /** @param {MouseEvent} event */
  onClick(event) {
    if (this.shown === null) return;
    const { rows, columns } = this.shown.grid;
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    this.selectAt(row, column);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move === undefined || this.shown === null) return;
    event.preventDefault();
    const { grid, framed } = this.shown;
    if (framed < 0) return this.selectAt(0, 0);
    this.selectAt(Math.floor(framed / grid.columns) + move[0], (framed % grid.columns) + move[1]);
  }

  /** @param {number} row @param {number} column */
  selectAt(row, column) {
    if (this.shown === null) return;
    const { rows, columns } = this.shown.grid;
    if (row < 0 || column < 0 || row >= rows || column >= columns) return;
    this.shown.framed = row * columns + column; // at once: what it shows of the patch may have to be loaded
    this.paint();
    this.select(this.shown.framed);
  }
}

/** White with a black outline, which can be read on any image. @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y */
function paintText(context, text, x, y) {
  context.font = `600 ${TEXT_SIZE}px ${cssVariable("--font")}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = 5;
  context.strokeStyle = "#000";
  context.fillStyle = "#fff";
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

/** The position of the first patch in the trace's tokens, after the class token and registers. @param {Trace} trace */
export function firstPatch(trace) {
  return trace.source.length - (trace.grid === undefined ? 0 : trace.grid.rows * trace.grid.columns);
}

/** Whether the model classifies the class token; otherwise it is the mean of the patches. @param {Trace} trace */
export function hasClassToken(trace) {
  return trace.source[0]?.piece === "⟨class⟩";
}
