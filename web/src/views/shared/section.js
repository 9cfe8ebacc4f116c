/**
 * A section of a view: a title, a short description, and its content.
 */

import { h } from "../../page/dom.js";
import { linkTerms } from "../../page/glossary/links.js";

/** @import { Child } from "../../page/dom.js" */

/**
 * @param {Child} title
 * @param {string | Element} description a text may link to the glossary: [[softmax]]
 * @param {(Child | Child[])[]} children
 */
export function section(title, description, ...children) {
  const note = h("p", { class: "note" }, typeof description === "string" ? linkTerms(description) : description);
  return h("section", { class: "section" }, h("h2", {}, title), note, ...children);
}

/**
 * A container for content that may be wider than the screen: it scrolls by itself, also by keyboard.
 * @param {string} label
 * @param {(Child | Child[])[]} children
 */
export function scrollable(label, ...children) {
  return h("div", { class: "scrollable", tabindex: 0, role: "region", "aria-label": label }, ...children);
}
