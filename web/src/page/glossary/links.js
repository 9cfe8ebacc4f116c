/**
 * Links from texts to the glossary. A term is marked as [[softmax]], or as [[logits|logit]] where it is spelled in another
 * way than its entry. What opens the glossary is in `dialog.js`.
 */

import { h } from "../dom.js";
import { termId } from "./entries.js";

/** @import { Child } from "../dom.js" */

/** A text with its terms as links. @param {string} text @returns {Child[]} */
export function linkTerms(text) {
  return text.split(/\[\[(.+?)\]\]/).map((part, index) => {
    if (index % 2 === 0) return part;
    const [shown, term = shown] = part.split("|");
    return termLink(termId(term), shown);
  });
}

/** @param {string} id @param {string} text */
function termLink(id, text) {
  return h("a", { class: "glossary-link", href: `#glossary=${id}`, "data-term": id, title: "Open the glossary" }, text);
}
