/**
 * Attention over a picture: each head as a copy of it on which the patches that are looked at are lit. A click, or the
 * arrow keys, choose the patch that looks; the class token, which the answer is read from, is chosen by its button.
 */

/** @import { Trace } from "../../contract" */
/** @import { Selection } from "./selection.js" */
/** @import { Pin } from "./lines.js" */

import { css, h, put } from "../../page/dom.js";
import { headName, percent } from "../../page/words.js";

const SIDE = 224;

/** @param {(pin: Pin | null) => void} pin */
export function patchPanel(pin) {
  const first = h("div", { class: "controls" });
  const copies = h("div", { class: "copies" });
  const said = h("p", { class: "note", "aria-live": "polite" });
  const element = h("div", { class: "patches", hidden: true }, first, copies, said);
  const picture = new Image();
  /** @type {(() => void) | null} */
  let again = null;
  picture.addEventListener("load", () => again?.());

  return {
    element,
    /**
     * @param {Trace} trace
     * @param {Selection} selection
     * @param {string[]} colours
     * @param {Pin | null} pinned
     */
    show(trace, selection, colours, pinned) {
      const { grid } = trace;
      element.hidden = grid === undefined || selection.pooled > 1;
      if (grid === undefined || element.hidden) return;
      const before = trace.source.length - grid.rows * grid.columns;
      const row = pinned?.side === "query" ? pinned.group : 0;
      const groupOf = new Map(selection.rows.flatMap((group, number) => group.tokens.map((token) => [token, number])));
      const token = selection.rows[row]?.tokens[0] ?? 0;
      put(
        first,
        trace.source
          .slice(0, before)
          .map((special, place) =>
            h(
              "button",
              {
                type: "button",
                "aria-pressed": String(token === place),
                onclick: () => pin({ side: "query", group: groupOf.get(place) ?? 0 }),
              },
              `Where does ${special.piece} look?`,
            ),
          ),
      );
      const paint = () =>
        put(
          copies,
          selection.over.map(({ layer, head, matrix }, number) => {
            const canvas = h("canvas", {
              width: SIDE,
              height: SIDE,
              tabindex: 0,
              role: "application",
              "aria-roledescription": "picture",
              "aria-label": `${headName(layer, head)}: what is looked at; arrow keys choose the patch that looks`,
            });
            const weights = selection.columns.map((_, column) => matrix.values[row * matrix.columns + column]);
            light(canvas, picture, grid, weights, selection, before, colours[number], token);
            /** @param {number} down @param {number} across */
            const go = (down, across) => {
              if (down < 0 || across < 0 || down >= grid.rows || across >= grid.columns) return;
              const group = groupOf.get(before + down * grid.columns + across);
              if (group === undefined) return;
              pin({ side: "query", group });
              const next = copies.querySelectorAll("canvas")[number];
              next?.focus();
            };
            canvas.addEventListener("click", (event) => {
              const box = canvas.getBoundingClientRect();
              go(
                Math.floor(((event.clientY - box.top) / box.height) * grid.rows),
                Math.floor(((event.clientX - box.left) / box.width) * grid.columns),
              );
            });
            canvas.addEventListener("keydown", (event) => {
              const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
              if (move === undefined) return;
              event.preventDefault();
              const patch = Math.max(0, token - before);
              go(Math.floor(patch / grid.columns) + move[0], (patch % grid.columns) + move[1]);
            });
            return h("figure", {}, canvas, h("figcaption", {}, headName(layer, head)));
          }),
        );
      again = paint;
      if (picture.src !== grid.picture) picture.src = grid.picture;
      paint();
      const strongest = selection.over.map(({ layer, head, matrix }) => {
        let best = 0;
        for (let column = 0; column < matrix.columns; column++)
          if (matrix.values[row * matrix.columns + column] > matrix.values[row * matrix.columns + best]) best = column;
        return `${headName(layer, head)}: most at ${selection.columns[best]?.label}, ${percent(matrix.values[row * matrix.columns + best])}`;
      });
      said.textContent = `The framed patch looks; the brighter a patch, the more weight it gets. ${strongest.join(". ")}.`;
    },
  };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLImageElement} picture
 * @param {{ rows: number, columns: number }} grid
 * @param {number[]} weights of the columns
 * @param {Selection} selection
 * @param {number} before tokens that are no patches
 * @param {string} colour
 * @param {number} token that looks
 */
function light(canvas, picture, grid, weights, selection, before, colour, token) {
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  const [wide, high] = [canvas.width / grid.columns, canvas.height / grid.rows];
  pen.imageSmoothingEnabled = false;
  pen.globalAlpha = 0.55;
  if (picture.complete && picture.naturalWidth > 0) pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const top = Math.max(...selection.columns.map((column, at) => (column.tokens[0] < before ? 0 : weights[at])), 1e-6);
  pen.fillStyle = colour;
  selection.columns.forEach((column, at) => {
    const patch = column.tokens[0] - before;
    if (patch < 0) return;
    pen.globalAlpha = 0.9 * Math.sqrt(weights[at] / top);
    pen.fillRect((patch % grid.columns) * wide, Math.floor(patch / grid.columns) * high, wide, high);
  });
  pen.globalAlpha = 1;
  pen.strokeStyle = css("--warn");
  pen.lineWidth = 3;
  const own = token - before;
  if (own >= 0)
    pen.strokeRect((own % grid.columns) * wide + 1.5, Math.floor(own / grid.columns) * high + 1.5, wide - 3, high - 3);
}
