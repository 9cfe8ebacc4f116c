/**
 * The attention of one token as bars: one row per head, one column per key token.
 */

import { s } from "../../page/dom.js";
import { formatFixed, truncate } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";

/** @import { Token } from "../../contract.d.ts" */

const [LEFT, ROW_HEIGHT, LETTER_WIDTH] = [58, 38, 7];

/**
 * @param {number[][]} heads [head][key]
 * @param {Token[]} tokens
 * @param {{ label: string, color: (head: number) => string, maxWidth: number }} options `maxWidth` is exceeded if the
 *   tokens need more
 */
export function attentionBars(heads, tokens, { label, color, maxWidth }) {
  const labels = tokens.map((token) => truncate(tokenLabel(token), 12));
  const longest = Math.max(1, ...labels.map((text) => text.length));
  const step = Math.min(80, Math.max(18, (maxWidth - LEFT) / Math.max(1, tokens.length)));
  const isRotated = longest * LETTER_WIDTH > step - 4;
  const labelHeight = isRotated ? 14 + longest * LETTER_WIDTH * 0.72 : 24;
  const padding = isRotated ? 8 : 0;
  const [width, height] = [LEFT + step * tokens.length + padding, ROW_HEIGHT * heads.length + labelHeight + 6];
  return s(
    "svg",
    {
      class: "attention-bars",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `${label} ${describe(heads, labels)}`,
    },
    heads.map((weights, head) => drawHead(weights, head, { labels, step, width: width - padding, color: color(head) })),
    labels.map((text, key) => {
      const [x, y] = [LEFT + (key + 0.5) * step, ROW_HEIGHT * heads.length + 18];
      const transform = isRotated ? `translate(${x + 4} ${y - 4}) rotate(-45)` : `translate(${x} ${y})`;
      return s("text", { transform, "text-anchor": isRotated ? "end" : "middle" }, text);
    }),
  );
}

/**
 * @param {number[]} weights
 * @param {number} head
 * @param {{ labels: string[], step: number, width: number, color: string }} options
 */
function drawHead(weights, head, { labels, step, width, color }) {
  const baseline = ROW_HEIGHT * (head + 1);
  const maxHeight = ROW_HEIGHT - 12;
  return s(
    "g",
    { class: "head" },
    s("text", { class: "name", x: 0, y: baseline - 6 }, `head ${head + 1}`),
    s("line", { class: "baseline", x1: LEFT, x2: width, y1: baseline, y2: baseline }),
    weights.map((weight, key) => {
      const x = LEFT + key * step;
      const height = Math.max(0, Math.min(1, weight)) * maxHeight;
      return s(
        "g",
        { "data-head": head, "data-key": key, "data-weight": weight },
        s("title", {}, `head ${head + 1} attends to ${labels[key] ?? key}: ${formatFixed(weight, 3)}`),
        s("rect", { class: "hit", x, y: baseline - ROW_HEIGHT, width: step, height: ROW_HEIGHT }),
        s("rect", { x: x + 2, y: baseline - height, width: Math.max(1, step - 4), height, fill: color }),
        weight >= 0.1 && step >= 24
          ? s("text", { class: "number", x: x + step / 2, y: baseline - height - 2 }, formatFixed(weight).replace(/^0/, ""))
          : null,
      );
    }),
  );
}

/** What each head attends to most. @param {number[][]} heads @param {string[]} labels */
function describe(heads, labels) {
  return heads
    .map((weights, head) => {
      const best = weights.indexOf(Math.max(...weights));
      return `Head ${head + 1} attends most to ${labels[best] ?? best} (${formatFixed(weights[best])}).`;
    })
    .join(" ");
}
