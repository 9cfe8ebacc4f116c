/**
 * Attention over an image: for each head, a copy of the image with the attended patches highlighted. A click or the arrow
 * keys select the query patch; the class token and registers have buttons.
 */

/** @import { Trace } from "../../contract" */
/** @import { Selection } from "./selection.js" */
/** @import { Pin } from "./lines.js" */

import { cssVariable, h, setChildren } from "../../page/dom.js";
import { formatPercent, headName } from "../../page/format.js";
import { paletteColor } from "../../page/colors/palette.js";
import { headKey } from "./weighted_sum.js";

const IMAGE_SIZE = 224;

/** @param {(pin: Pin | null) => void} pin */
export function patchPanel(pin) {
  const specialButtons = h("div", { class: "controls" });
  const headImages = h("div", { class: "head-images" });
  const summary = h("p", { class: "note", "aria-live": "polite" });
  const element = h("div", { class: "patches", hidden: true }, specialButtons, headImages, summary);
  const image = new Image();
  /** @type {(() => void) | null} */
  let repaint = null;
  image.addEventListener("load", () => repaint?.());

  return {
    element,
    /**
     * @param {Trace} trace
     * @param {Selection} selection
     * @param {number} limit the weight that has the full color
     * @param {Pin | null} pinned
     */
    show(trace, selection, limit, pinned) {
      const { grid } = trace;
      element.hidden = grid === undefined || selection.pooled > 1;
      if (grid === undefined || element.hidden) return;
      const firstPatch = trace.source.length - grid.rows * grid.columns;
      const row = pinned?.role === "query" ? pinned.group : 0;
      const groupOf = new Map(selection.rows.flatMap((group, index) => group.tokens.map((token) => [token, index])));
      const query = selection.rows[row]?.tokens[0] ?? 0;
      setChildren(
        specialButtons,
        trace.source.slice(0, firstPatch).map((special, position) =>
          h(
            "button",
            {
              type: "button",
              "aria-pressed": String(query === position),
              onclick: () => pin({ role: "query", group: groupOf.get(position) ?? 0 }),
            },
            `Attention of ${special.piece}`,
          ),
        ),
      );
      const paint = () =>
        setChildren(
          headImages,
          selection.overlaid.map(({ layer, head, matrix }, index) => {
            const canvas = h("canvas", {
              width: IMAGE_SIZE,
              height: IMAGE_SIZE,
              tabindex: 0,
              role: "application",
              "aria-roledescription": "image",
              "aria-label": `${headName(layer, head)}: attended patches; arrow keys move the query patch`,
            });
            const weights = selection.columns.map((_, column) => matrix.values[row * matrix.columns + column]);
            paintPatches(canvas, image, grid, weights, selection, { firstPatch, color: paletteColor(index), limit, query });
            /** @param {number} patchRow @param {number} patchColumn */
            const pinPatch = (patchRow, patchColumn) => {
              if (patchRow < 0 || patchColumn < 0 || patchRow >= grid.rows || patchColumn >= grid.columns) return;
              const group = groupOf.get(firstPatch + patchRow * grid.columns + patchColumn);
              if (group === undefined) return;
              pin({ role: "query", group });
              headImages.querySelectorAll("canvas")[index]?.focus();
            };
            canvas.addEventListener("click", (event) => {
              const box = canvas.getBoundingClientRect();
              pinPatch(
                Math.floor(((event.clientY - box.top) / box.height) * grid.rows),
                Math.floor(((event.clientX - box.left) / box.width) * grid.columns),
              );
            });
            canvas.addEventListener("keydown", (event) => {
              const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
              if (move === undefined) return;
              event.preventDefault();
              const patch = Math.max(0, query - firstPatch);
              pinPatch(Math.floor(patch / grid.columns) + move[0], (patch % grid.columns) + move[1]);
            });
            return h("figure", {}, canvas, h("figcaption", {}, headKey(headName(layer, head), index)));
          }),
        );
      repaint = paint;
      if (image.src !== grid.image) image.src = grid.image;
      paint();
      const largest = selection.overlaid.map(({ layer, head, matrix }) => {
        let best = 0;
        for (let column = 0; column < matrix.columns; column++)
          if (matrix.values[row * matrix.columns + column] > matrix.values[row * matrix.columns + best]) best = column;
        const weight = formatPercent(matrix.values[row * matrix.columns + best]);
        return `${headName(layer, head)}: most on ${selection.columns[best]?.label}, ${weight}`;
      });
      summary.textContent = `The framed patch is the query; the stronger the color of a patch, the larger its weight, up to ${formatPercent(limit)}. ${largest.join(". ")}.`;
    },
  };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLImageElement} image
 * @param {{ rows: number, columns: number }} grid
 * @param {number[]} weights of the columns
 * @param {Selection} selection
 * @param {{ firstPatch: number, color: string, limit: number, query: number }} options the positions of the first patch,
 *   after the special tokens, and of the query; the head's color, and the weight that has it in full
 */
function paintPatches(canvas, image, grid, weights, selection, { firstPatch, color, limit, query }) {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const [width, height] = [canvas.width / grid.columns, canvas.height / grid.rows];
  /** @type {(patch: number) => [number, number]} */
  const corner = (patch) => [(patch % grid.columns) * width, Math.floor(patch / grid.columns) * height];
  context.imageSmoothingEnabled = false;
  context.globalAlpha = 0.55;
  if (image.complete && image.naturalWidth > 0) context.drawImage(image, 0, 0, canvas.width, canvas.height);
  context.fillStyle = color;
  selection.columns.forEach((column, index) => {
    const patch = column.tokens[0] - firstPatch;
    if (patch < 0) return;
    context.globalAlpha = 0.9 * Math.sqrt(Math.min(1, weights[index] / limit));
    context.fillRect(...corner(patch), width, height);
  });
  context.globalAlpha = 1;
  context.strokeStyle = cssVariable("--warn");
  context.lineWidth = 3;
  const queryPatch = query - firstPatch;
  if (queryPatch < 0) return;
  const [x, y] = corner(queryPatch);
  context.strokeRect(x + 1.5, y + 1.5, width - 3, height - 3);
}
