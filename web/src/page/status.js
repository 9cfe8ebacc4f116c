/**
 * Where the page speaks to a person: a sentence that goes away, an error that stays until it is read, and a banner while
 * the server is away.
 */

import { h } from "./dom.js";

/** Milliseconds that a note stays. */
const READ = 7000;

export function openStatus() {
  const notes = h("div", { class: "notes", role: "status", "aria-live": "polite" });
  const errors = h("div", { class: "errors", role: "alert" });
  const banner = h(
    "div",
    { class: "banner", role: "alert", hidden: true },
    "The server went away. What is already here goes on working; the rest comes back when the server does.",
  );

  /**
   * @param {string} sentence
   * @param {"note" | "error"} [kind]
   */
  function say(sentence, kind = "note") {
    if (kind === "note") {
      const note = h("p", { class: "said" }, sentence);
      notes.replaceChildren(note);
      setTimeout(() => note.remove(), READ);
      return;
    }
    if ([...errors.children].some((child) => child.firstChild?.textContent === sentence)) return;
    const close = h("button", { type: "button", class: "quiet", "aria-label": "Close this message" }, "✕");
    const error = h("p", { class: "said error" }, h("span", {}, sentence), close);
    close.addEventListener("click", () => error.remove());
    errors.append(error);
    while (errors.children.length > 3) errors.firstChild?.remove();
  }

  return {
    say,
    banner,
    element: h("div", { class: "status" }, notes, errors),
    /** @param {boolean} there */
    server(there) {
      banner.hidden = there;
      if (there) say("The server is back.");
    },
  };
}
