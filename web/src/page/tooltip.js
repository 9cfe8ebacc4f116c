/**
 * The page's single tooltip. It opens on hover and focus, stays while the mouse is over it, and closes on Escape.
 */

import { h, setChildren, uniqueId } from "./dom.js";

/** @typedef {() => import("./dom.js").Child[] | null} Content */

/** Milliseconds between leaving the element and closing. */
const DELAY = 180;

const tooltip = h("div", { class: "tooltip", role: "tooltip", id: uniqueId("tooltip"), hidden: true });
/** @type {Element | null} */
let owner = null;
let closing = 0;

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Content} content computed each time the tooltip opens; null if there is nothing to say
 */
export function addTooltip(element, content) {
  const open = () => showTooltip(element, content);
  element.addEventListener("mouseenter", open);
  element.addEventListener("focus", open);
  element.addEventListener("mouseleave", hideLater);
  element.addEventListener("blur", hideTooltip);
}

export function hideTooltip() {
  clearTimeout(closing);
  tooltip.hidden = true;
  owner?.removeAttribute("aria-describedby");
  owner = null;
}

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Content} content
 */
function showTooltip(element, content) {
  const children = content();
  if (children === null) return;
  clearTimeout(closing);
  if (!tooltip.isConnected) {
    document.body.append(tooltip);
    tooltip.addEventListener("mouseenter", () => clearTimeout(closing));
    tooltip.addEventListener("mouseleave", hideLater);
    document.addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());
    document.addEventListener("scroll", followOrHide, { capture: true, passive: true });
  }
  if (owner !== null && owner !== element) owner.removeAttribute("aria-describedby");
  owner = element;
  setChildren(tooltip, ...children);
  tooltip.hidden = false;
  element.setAttribute("aria-describedby", tooltip.id);
  place(element);
}

/** The focus scrolls its element into view: the tooltip goes with it. */
function followOrHide() {
  if (owner !== null && owner === document.activeElement) place(owner);
  else hideTooltip();
}

/** @param {Element} element */
function place(element) {
  const box = element.getBoundingClientRect();
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.max(8, Math.min(innerWidth - width - 8, box.left + box.width / 2 - width / 2));
  const below = box.bottom + 8;
  const top = below + height > innerHeight - 8 ? Math.max(8, box.top - height - 8) : below;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${top}px`;
}

function hideLater() {
  clearTimeout(closing);
  closing = setTimeout(hideTooltip, DELAY);
}
