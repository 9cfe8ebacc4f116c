/**
 * One token's attention as bars: a row for each head, a column for each token that could be looked at.
 */

import { s } from "../../page/dom.js";
import { label as nameOf } from "../../page/tokens.js";
import { fixed } from "./numbers.js";

/** @import { Token } from "../../contract.d.ts" */

const [LEFT, ROW, LETTER] = [58, 38, 7];

/**
 * @param {number[][]} heads [head][key]
 * @param {Token[]} tokens
 * @param {{ label: string, colour: (head: number) => string, room: number }} options `room`: how wide it
 *   may be, where that is enough
 */
export function attentionBars(heads, tokens, { label, colour, room }) {
  const texts = tokens.map((token) => cut(nameOf(token)));
  const longest = Math.max(1, ...texts.map((text) => text.length));
  const step = Math.min(80, Math.max(18, (room - LEFT) / Math.max(1, tokens.length)));
  const turned = longest * LETTER > step - 4;
  const foot = turned ? 14 + longest * LETTER * 0.72 : 24;
  const edge = turned ? 8 : 0;
  const [width, height] = [LEFT + step * tokens.length + edge, ROW * heads.length + foot + 6];
  return s(
    "svg",
    {
      class: "attention-bars",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `${label} ${inWords(heads, texts)}`,
    },
    heads.map((weights, head) => row(weights, head, { texts, step, width: width - edge, colour: colour(head) })),
    texts.map((text, key) => {
      const [x, y] = [LEFT + (key + 0.5) * step, ROW * heads.length + 18];
      const turn = turned ? `translate(${x + 4} ${y - 4}) rotate(-45)` : `translate(${x} ${y})`;
      return s("text", { class: "word", transform: turn, "text-anchor": turned ? "end" : "middle" }, text);
    }),
  );
}

/**
 * @param {number[]} weights
 * @param {number} head
 * @param {{ texts: string[], step: number, width: number, colour: string }} facts
 */
function row(weights, head, { texts, step, width, colour }) {
  const floor = ROW * (head + 1);
  const most = ROW - 12;
  return s(
    "g",
    { class: "head" },
    s("text", { class: "name", x: 0, y: floor - 6 }, `head ${head + 1}`),
    s("line", { class: "floor", x1: LEFT, x2: width, y1: floor, y2: floor }),
    weights.map((weight, key) => {
      const x = LEFT + key * step;
      const size = Math.max(0, Math.min(1, weight)) * most;
      return s(
        "g",
        { "data-head": head, "data-key": key, "data-weight": weight },
        s("title", {}, `head ${head + 1} looks at ${texts[key] ?? key} with ${fixed(weight, 3)}`),
        s("rect", { class: "hit", x, y: floor - ROW, width: step, height: ROW }),
        s("rect", { x: x + 2, y: floor - size, width: Math.max(1, step - 4), height: size, fill: colour }),
        weight >= 0.1 && step >= 24
          ? s("text", { class: "number", x: x + step / 2, y: floor - size - 2 }, fixed(weight).replace(/^0/, ""))
          : null,
      );
    }),
  );
}

/** Where each head looks most. @param {number[][]} heads @param {string[]} texts */
function inWords(heads, texts) {
  return heads
    .map((weights, head) => {
      const best = weights.indexOf(Math.max(...weights));
      return `Head ${head + 1} looks most at ${texts[best] ?? best} (${fixed(weights[best])}).`;
    })
    .join(" ");
}

/** @param {string} text */
function cut(text) {
  return text.length > 12 ? `${text.slice(0, 11)}…` : text;
}
