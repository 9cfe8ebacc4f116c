/**
 * What an element shows while its content is loading or could not be loaded.
 */

import { h, setChildren } from "../../page/dom.js";

/** @param {Element} element @param {string} message @param {() => void} [retry] */
export function showError(element, message, retry) {
  const button = retry && h("button", { type: "button", onclick: retry }, "Try again");
  setChildren(element, h("p", { class: "problem", role: "status" }, message, " ", button));
}

/** @param {Element} element @param {string} message */
export function showLoading(element, message) {
  setChildren(element, h("p", { class: "note", role: "status" }, message));
}
