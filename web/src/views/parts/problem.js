/**
 * Where something could not be had: a sentence in its place, and the rest goes on working.
 */

import { h, put } from "../../page/dom.js";

/** @param {Element} element @param {string} sentence @param {(() => void)} [again] what trying again does */
export function showProblem(element, sentence, again) {
  const button = again && h("button", { type: "button", onclick: again }, "Try again");
  put(element, h("p", { class: "problem", role: "status" }, sentence, " ", button));
}

/** @param {Element} element @param {string} sentence */
export function showWaiting(element, sentence) {
  put(element, h("p", { class: "note waiting", role: "status" }, sentence));
}
