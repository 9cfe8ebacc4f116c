/**
 * Messages to the user: notes that disappear by themselves, errors that stay until they are closed, and a banner while
 * the server is unreachable.
 */

import { NOT_RESPONDING } from "../source/not_responding.js";
import { h } from "./dom.js";

/** Milliseconds that a note stays. */
const NOTE_DURATION = 7000;

export function createMessages() {
  const notes = h("div", { class: "notes", role: "status", "aria-live": "polite" });
  const errors = h("div", { class: "errors", role: "alert" });
  const banner = h(
    "div",
    { class: "banner", role: "alert", hidden: true },
    `${NOT_RESPONDING}. What is already loaded keeps working; the rest returns with the server.`,
  );

  /**
   * @param {string} text
   * @param {"note" | "error"} [kind]
   */
  function notify(text, kind = "note") {
    if (kind === "note") {
      const note = h("p", { class: "message" }, text);
      notes.replaceChildren(note);
      setTimeout(() => note.remove(), NOTE_DURATION);
      return;
    }
    if ([...errors.children].some((child) => child.firstChild?.textContent === text)) return;
    const close = h("button", { type: "button", class: "quiet", "aria-label": "Close this message" }, "✕");
    const error = h("p", { class: "message error" }, h("span", {}, text), close);
    close.addEventListener("click", () => error.remove());
    errors.append(error);
    while (errors.children.length > 3) errors.firstChild?.remove();
  }

  return {
    notify,
    banner,
    element: h("div", { class: "messages" }, notes, errors),
    /** @param {boolean} reachable */
    setServerReachable(reachable) {
      banner.hidden = reachable;
      if (!reachable) return;
      for (const error of [...errors.children]) if (isAboutServer(error)) error.remove();
      notify("The server is back.");
    },
  };
}

/** Whether an element says that the server does not respond. @param {Element} element */
export function isAboutServer(element) {
  return element.textContent?.includes(NOT_RESPONDING) === true;
}

/** @param {unknown} error */
export function errorMessage(error) {
  return error instanceof Error && error.message ? error.message : String(error);
}
