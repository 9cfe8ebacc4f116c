/**
 * A row of tokens. A long one is shown page by page: thousands of tokens would make the whole page slow.
 */

import { h, setChildren } from "../../page/dom.js";
import { formatCount } from "../../page/format.js";
import { tokenRow } from "./token_row.js";

/** Tokens of a page, and how many more a row may have without being divided. */
const [PAGE, TOLERANCE] = [60, 20];

/**
 * @param {string} label
 * @param {number} count the number of tokens
 * @param {(index: number) => HTMLElement} chip
 * @param {{ at?: number, describe?: (first: number, last: number) => string }} [options] `at`: a token of the page that is
 *   shown first; `describe`: more about the tokens of a page, from the first to before the last
 */
export function tokenPages(label, count, chip, { at = 0, describe } = {}) {
  const chips = (/** @type {number} */ first, /** @type {number} */ last) =>
    Array.from({ length: last - first }, (_, index) => chip(first + index));
  if (count <= PAGE + TOLERANCE) return tokenRow(label, chips(0, count));
  const pages = Math.ceil(count / PAGE);
  let page = Math.max(0, Math.min(pages - 1, Math.floor(at / PAGE)));
  const turn = (/** @type {number} */ by) => () => {
    page += by;
    draw();
  };
  const earlier = h("button", { type: "button", "aria-label": "Earlier tokens", onclick: turn(-1) }, "←");
  const later = h("button", { type: "button", "aria-label": "Later tokens", onclick: turn(1) }, "→");
  const position = h("span", { class: "note", role: "status" });
  const body = h("div");
  function draw() {
    const [first, last] = [page * PAGE, Math.min(count, (page + 1) * PAGE)];
    const range = `Tokens ${formatCount(first + 1)}–${formatCount(last)} of ${formatCount(count)}`;
    position.textContent = [range, describe?.(first, last)].filter(Boolean).join("; ");
    earlier.disabled = page === 0;
    later.disabled = page === pages - 1;
    setChildren(body, tokenRow(`${label}, ${range.toLowerCase()}`, chips(first, last)));
  }
  draw();
  return h("div", { class: "token-pages" }, h("div", { class: "token-page-control" }, earlier, later, position), body);
}
