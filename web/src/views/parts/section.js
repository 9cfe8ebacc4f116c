/**
 * A part of a view: a title, a sentence or two on what is seen and what to try, and the thing itself.
 */

import { h } from "../../page/dom.js";

/** @import { Child } from "../../page/dom.js" */

/** @param {string} title @param {string} about @param {(Child | Child[])[]} children */
export function section(title, about, ...children) {
  return h("section", { class: "passage" }, h("h2", {}, title), h("p", { class: "note" }, about), ...children);
}

/**
 * Something that may be wider than the screen: it scrolls by itself, also by the keyboard.
 * @param {string} label
 * @param {(Child | Child[])[]} children
 */
export function scroller(label, ...children) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, ...children);
}
