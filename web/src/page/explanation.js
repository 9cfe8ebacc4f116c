/**
 * A short introduction to a view for first-time visitors, with links to the glossary ([[terms]]). It can be dismissed, stays
 * hidden from then on, and can be brought back with a button.
 */

import { h, setChildren } from "./dom.js";
import { linkTerms } from "./glossary/links.js";
import { readSetting, saveSetting } from "./local_storage.js";

/**
 * @param {string} name of the view
 * @param {string} title
 * @param {string[]} paragraphs
 * @returns {HTMLElement}
 */
export function explanation(name, title, ...paragraphs) {
  const element = h("aside", { class: "explanation", "aria-label": title });
  /** @param {boolean} open */
  function show(open) {
    element.classList.toggle("open", open);
    const button = open
      ? h("button", { type: "button", class: "quiet", onclick: () => toggle(false) }, "Got it")
      : h("button", { type: "button", class: "quiet", onclick: () => toggle(true) }, "What am I seeing?");
    if (!open) return void setChildren(element, button);
    const text = paragraphs.map((paragraph) => h("p", {}, linkTerms(paragraph)));
    return void setChildren(element, h("h2", {}, title), h("div", { class: "explanation-text" }, text), button);
  }
  /** @param {boolean} open */
  function toggle(open) {
    saveSetting(`explained.${name}`, open ? "" : "yes");
    show(open);
    element.querySelector("button")?.focus();
  }
  show(readSetting(`explained.${name}`) !== "yes");
  return element;
}
