/**
 * A button that opens a list of actions. Escape and a click elsewhere close it.
 */

import { h, setChildren } from "./dom.js";

/**
 * @param {string} label
 * @param {HTMLButtonElement[]} [items]
 */
export function createMenu(label, items = []) {
  const summary = h("summary", {}, label);
  const list = h("div", { class: "menu-items" }, items);
  const element = h("details", { class: "menu" }, summary, list);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && element.open) close();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!element.contains(/** @type {Node} */ (event.target))) element.open = false;
  });

  function close() {
    element.open = false;
    summary.focus();
  }
  return {
    element,
    close,
    /** @param {HTMLButtonElement[]} children */
    setItems: (children) => setChildren(list, children),
  };
}

/**
 * @param {string} label
 * @param {() => void} act
 */
export function menuItem(label, act) {
  return h("button", { type: "button", class: "menu-item", onclick: act }, label);
}
