/**
 * A few sentences for who sees a view for the first time. They can be put away, are then not shown again, and come back
 * with a button.
 */

import { h, put } from "./dom.js";
import { recall, remember } from "./memory.js";

/**
 * @param {string} name of the view
 * @param {string} title what one sees here
 * @param {import("./dom.js").Child[]} sentences each a paragraph of its own
 * @returns {HTMLElement}
 */
export function explanation(name, title, ...sentences) {
  const place = h("aside", { class: "explanation", "aria-label": title });
  /** @param {boolean} open */
  function show(open) {
    place.classList.toggle("open", open);
    const button = open
      ? h("button", { type: "button", class: "quiet", onclick: () => turn(false) }, "Got it")
      : h("button", { type: "button", class: "quiet", onclick: () => turn(true) }, "What do I see here?");
    if (!open) return void put(place, button);
    const told = sentences.map((sentence) => h("p", {}, sentence));
    return void put(place, h("h2", {}, title), h("div", { class: "told" }, told), button);
  }
  /** @param {boolean} open */
  function turn(open) {
    remember(`explained.${name}`, open ? "" : "yes");
    show(open);
    place.querySelector("button")?.focus();
  }
  show(recall(`explained.${name}`) !== "yes");
  return place;
}
