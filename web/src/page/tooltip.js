/**
 * One tooltip for the whole page. It comes on hover and on focus, stays while the mouse is on it, and goes on Escape.
 */

import { h, put, unique } from "./dom.js";

/** @typedef {() => import("./dom.js").Child[]} Content */

const bubble = h("div", { class: "tooltip", role: "tooltip", id: unique("tooltip"), hidden: true });
/** @type {Element | null} */
let owner = null;
let leaving = 0;

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Content} content asked each time it is shown
 */
export function tip(element, content) {
  const come = () => open(element, content);
  element.addEventListener("mouseenter", come);
  element.addEventListener("focus", come);
  element.addEventListener("mouseleave", later);
  element.addEventListener("blur", closeTip);
}

/**
 * Show it beside an element, or at a place on the screen.
 * @param {HTMLElement | SVGElement} element
 * @param {Content} content
 * @param {{ x: number, y: number }} [at]
 */
export function open(element, content, at) {
  clearTimeout(leaving);
  if (!bubble.isConnected) {
    document.body.append(bubble);
    bubble.addEventListener("mouseenter", () => clearTimeout(leaving));
    bubble.addEventListener("mouseleave", later);
    document.addEventListener("keydown", (event) => event.key === "Escape" && closeTip());
    document.addEventListener("scroll", closeTip, { capture: true, passive: true });
  }
  if (owner !== null && owner !== element) owner.removeAttribute("aria-describedby");
  owner = element;
  put(bubble, content());
  bubble.hidden = false;
  element.setAttribute("aria-describedby", bubble.id);
  const box = at === undefined ? element.getBoundingClientRect() : new DOMRect(at.x, at.y, 0, 0);
  const { width, height } = bubble.getBoundingClientRect();
  const left = Math.max(8, Math.min(innerWidth - width - 8, box.left + box.width / 2 - width / 2));
  const below = box.bottom + 8;
  const top = below + height > innerHeight - 8 ? Math.max(8, box.top - height - 8) : below;
  bubble.style.left = `${left}px`;
  bubble.style.top = `${top}px`;
}

export function closeTip() {
  clearTimeout(leaving);
  bubble.hidden = true;
  owner?.removeAttribute("aria-describedby");
  owner = null;
}

function later() {
  clearTimeout(leaving);
  leaving = setTimeout(closeTip, 180);
}
