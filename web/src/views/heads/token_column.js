/**
 * One of the two columns of tokens between which lines are drawn. Of a long column only the visible tokens are elements, and
 * the one that the Tab key goes to.
 */

/** @import { TokenGroup } from "../../page/tokens.js" */

import { h } from "../../page/dom.js";
import { labelSides } from "../../page/tokens.js";
import { updateChildren, visibleBox } from "../shared/visible_part.js";

/** A column of more tokens is drawn only where it is visible. */
const MAX_DRAWN = 120;
/** The width of a long column, in characters at most: its tokens are not all there to be measured. */
const MAX_WIDTH = 22;

export class TokenColumn {
  /** @param {"query" | "key"} role @param {string} label @param {() => HTMLElement} frame which scrolls */
  constructor(role, label, frame) {
    this.role = role;
    this.frame = frame;
    this.element = h("div", { class: `line-tokens ${role === "query" ? "queries" : "keys"}`, role: "group", "aria-label": label });
    /** @type {TokenGroup[]} */
    this.groups = [];
    this.rowHeight = 28;
    this.stop = 0;
    /** The drawn tokens by their index. @type {Map<string, Element>} */
    this.drawn = new Map();
  }

  /** @param {TokenGroup[]} groups @param {number} rowHeight */
  show(groups, rowHeight) {
    this.groups = groups;
    this.rowHeight = rowHeight;
    this.stop = 0;
    this.drawn.clear();
    this.element.replaceChildren();
    this.element.classList.toggle("windowed", this.isWindowed);
    const longest = groups.reduce((most, { label }) => Math.max(most, label.length), 4);
    this.element.style.width = this.isWindowed ? `${Math.min(MAX_WIDTH, longest) + 7}ch` : "";
    this.element.style.height = this.isWindowed ? `${groups.length * rowHeight}px` : "";
    this.drawVisible();
  }

  get isWindowed() {
    return this.groups.length > MAX_DRAWN;
  }

  drawVisible() {
    let [first, last] = [0, this.groups.length];
    if (this.isWindowed) {
      const { top, bottom } = visibleBox(this.frame());
      first = Math.max(0, Math.floor(top / this.rowHeight));
      last = Math.min(this.groups.length, Math.ceil(bottom / this.rowHeight));
    }
    const indices = Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index);
    if (this.stop < this.groups.length && !indices.includes(this.stop)) indices.push(this.stop);
    indices.sort((one, other) => one - other);
    updateChildren(this.element, this.drawn, indices, String, (index) => this.token(index));
  }

  /** The drawn tokens with their indices. @returns {[number, HTMLElement][]} */
  tokens() {
    return [...this.drawn].map(([index, token]) => [Number(index), /** @type {HTMLElement} */ (token)]);
  }

  /** Make a token the only one that the Tab key goes to. @param {number} index @param {boolean} [focus] */
  setStop(index, focus = false) {
    if (this.groups[index] === undefined) return;
    this.stop = index;
    this.drawVisible();
    for (const [each, token] of this.tokens()) token.tabIndex = each === index ? 0 : -1;
    const token = this.drawn.get(String(index));
    if (focus && token instanceof HTMLElement) token.focus();
  }

  /** @param {number} index */
  token(index) {
    const group = this.groups[index];
    const weights = h("span", { class: "weights" });
    const [first, second] = labelSides(group.label);
    const text = h(
      "span",
      { class: "token-text" },
      h("span", { class: "side" }, first),
      second !== undefined && [h("span", { class: "arrow" }, " → "), h("span", { class: "side" }, second)],
    );
    const token = h(
      "button",
      {
        type: "button",
        class: group.special ? "line-token special" : "line-token",
        title: group.label,
        "data-group": index,
        tabindex: index === this.stop ? 0 : -1,
        "aria-pressed": "false",
      },
      this.role === "query" ? [weights, text] : [text, weights],
    );
    if (this.isWindowed) token.style.top = `${index * this.rowHeight}px`;
    return token;
  }
}
