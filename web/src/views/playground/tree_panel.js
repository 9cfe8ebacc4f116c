/**
 * The parse tree of an output, linked to the attention of the step that opened each bracket: the selected phrase or tag
 * shows, on the words, what the decoder attended to when it wrote it.
 */

/** @import { HeadChoice, Source, State, Store, Token, Trace } from "../../contract" */
/** @import { Constituent, DrawnTree, TreeItem, Word } from "./parse_tree.js" */

import { weightLegend } from "../../page/colors/legend.js";
import { scaleColor, textColor, weightLimit } from "../../page/colors/scales.js";
import { cssVariable, h, s, setChildren } from "../../page/dom.js";
import { formatPercent, headName } from "../../page/format.js";
import { linkTerms } from "../../page/glossary/links.js";
import { firstGenerated, stepLabel, tokenLabel } from "../../page/tokens.js";
import { dropDown } from "../shared/choices.js";
import { LatestRequest } from "../shared/latest_request.js";
import { tokenChip, tokenRow } from "../shared/token_row.js";
import { drawParseTree } from "./parse_tree.js";

/** @typedef {{ layers: number, heads: number }} Spec */
/** @typedef {{ key: string, weights: number[] }} Row */

export class TreePanel {
  /** @param {Source} source @param {Store} store */
  constructor(source, store) {
    this.source = source;
    this.store = store;
    this.frame = h("div", { class: "parse-tree" });
    this.layer = dropDown("Layer", (layer) => this.choose({ layer: Number(layer) }));
    this.head = dropDown("Head", (head) => this.choose({ head: head === "mean" ? head : Number(head) }));
    this.controls = h("div", { class: "controls", "data-no-export": true }, this.layer.element, this.head.element);
    this.text = h("p", { "aria-live": "polite" });
    this.tokens = h("div", { class: "tree-tokens" });
    this.legend = h("div", { class: "legends" });
    this.links = h(
      "p",
      { "data-no-export": true },
      h("button", { type: "button", onclick: () => this.openDecoding() }, "Open this step in Decoding →"),
      " ",
      (this.headsLink = h("button", { type: "button", onclick: () => this.openHeads() }, "Open this row in Attention heads →")),
    );
    this.element = h("div", { class: "tree-panel" }, this.frame, this.controls, this.text, this.tokens, this.legend, this.links);
    this.request = new LatestRequest();
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {DrawnTree | null} */
    this.drawn = null;
    /** @type {Row | null} */
    this.row = null;
    this.requested = "";
    this.problem = "";
  }

  /** @param {Trace} trace @param {Constituent} tree */
  show(trace, tree) {
    this.trace = trace;
    this.row = null;
    this.requested = "";
    const drawn = drawParseTree(tree);
    this.drawn = drawn;
    const isLinked = tree.position !== undefined;
    drawn.svg.setAttribute("aria-label", `The sentence as a parse tree.${isLinked ? " Arrow keys move through it." : ""}`);
    if (isLinked) this.makeInteractive(drawn);
    setChildren(this.frame, drawn.svg);
    this.controls.hidden = this.links.hidden = !isLinked;
    this.update(this.store.get());
  }

  /** @param {DrawnTree} drawn */
  makeInteractive({ svg, items, words, wordsOf }) {
    svg.setAttribute("role", "tree");
    for (const { node, element } of items) {
      const [first, last] = wordsOf(node);
      const text = words.slice(first, last + 1).map(({ label }) => label);
      const siblings = node.parent?.children ?? [node];
      const attributes = {
        role: "treeitem",
        "aria-label": `${node.data.label}: ${text.join(" ")}`,
        "aria-level": node.depth + 1,
        "aria-setsize": siblings.length,
        "aria-posinset": siblings.indexOf(node) + 1,
        "data-position": node.data.position,
        tabindex: -1,
      };
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
      element.addEventListener("focus", () => this.select(node.data.position));
      element.addEventListener("click", () => element.focus());
      element.addEventListener("keydown", (event) => this.onKey(event, node));
    }
  }

  /** @param {KeyboardEvent} event @param {TreeItem["node"]} node */
  onKey(event, node) {
    const children = (node.children ?? []).filter(({ data }) => !data.isWord);
    const siblings = node.parent?.children ?? [node];
    const next = {
      ArrowUp: node.parent,
      ArrowDown: children[0],
      ArrowLeft: siblings[siblings.indexOf(node) - 1] ?? this.neighbor(node, -1),
      ArrowRight: siblings[siblings.indexOf(node) + 1] ?? this.neighbor(node, 1),
      Home: this.drawn?.items[0].node,
    }[event.key];
    if (!["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home"].includes(event.key)) return;
    event.preventDefault();
    if (next) this.itemOf(next)?.element.focus();
  }

  /** The next node at the same depth, under another parent. @param {TreeItem["node"]} node @param {1 | -1} step */
  neighbor(node, step) {
    const level = (this.drawn?.items ?? []).map((item) => item.node).filter(({ depth }) => depth === node.depth);
    return level[level.indexOf(node) + step];
  }

  /** @param {TreeItem["node"]} node */
  itemOf(node) {
    return this.drawn?.items.find((item) => item.node === node);
  }

  /** @param {number | undefined} position */
  select(position) {
    if (position !== undefined && position !== this.store.get().position) this.store.set({ position, contrast: "" });
  }

  /** The cross-attention that the model has. @returns {Spec | null} */
  get spec() {
    return this.trace?.model.attention.find((each) => each.attention_type === "cross") ?? null;
  }

  /** The layer and head that are chosen: by default, the mean over the heads of the last layer. @param {Spec} spec */
  choice({ layers, heads }) {
    const [layer, head] = this.store.get().tree_head.split(".");
    const isKnown = layer !== "" && Number(layer) < layers && (head === "mean" || Number(head) < heads);
    if (isKnown) return { layer: Number(layer), head: head === "mean" ? head : Number(head) };
    return { layer: layers - 1, head: heads === 1 ? 0 : "mean" };
  }

  /** @param {{ layer?: number, head?: HeadChoice }} change */
  choose(change) {
    if (this.spec === null) return;
    const { layer, head } = { ...this.choice(this.spec), ...change };
    this.store.set({ tree_head: `${layer}.${head}` });
  }

  /** @param {State} state */
  update(state) {
    if (this.trace === null || this.drawn === null) return;
    const { spec, trace } = this;
    const selected = this.drawn.items.find(({ node }) => node.data.position !== undefined && node.data.position === state.position);
    for (const item of this.drawn.items) this.markItem(item, item === selected);
    const [first, last] = selected === undefined ? [0, -1] : this.drawn.wordsOf(selected.node);
    this.drawn.span.setAttribute("d", underline(this.drawn.words.slice(first, last + 1)));
    if (selected === undefined) this.drawn.items[0].element.setAttribute("tabindex", this.links.hidden ? "-1" : "0");
    this.layer.element.hidden = (spec?.layers ?? 0) < 2;
    this.head.element.hidden = (spec?.heads ?? 0) < 2;
    this.headsLink.hidden = spec === null;
    if (spec === null || selected === undefined) {
      this.request.cancel();
      [this.row, this.requested] = [null, ""];
      return this.draw(selected);
    }
    const { layer, head } = this.choice(spec);
    this.layer.update(numbered(spec.layers), String(layer));
    this.head.update([{ value: "mean", label: "mean of all heads" }, ...numbered(spec.heads)], String(head));
    const key = JSON.stringify([trace.id, layer, head, state.position]);
    if (key === this.row?.key) return this.draw(selected);
    if (key === this.requested) return;
    [this.requested, this.problem, this.row] = [key, "", null];
    this.request.start(
      this.source.row(trace.id, "cross", layer, /** @type {HeadChoice} */ (head), state.position - 1),
      (matrix) => {
        this.row = { key, weights: Array.from(matrix.values) };
        this.draw(selected);
      },
      (message) => {
        [this.requested, this.problem] = ["", message];
        this.draw(selected);
      },
    );
  }

  /** @param {TreeItem} item @param {boolean} isSelected */
  markItem({ element }, isSelected) {
    const [background, text] = element.children;
    background.setAttribute("fill", isSelected ? cssVariable("--accent") : "transparent");
    text.setAttribute("fill", cssVariable(isSelected ? "--paper" : "--accent"));
    if (this.links.hidden) return;
    element.setAttribute("aria-selected", String(isSelected));
    element.setAttribute("tabindex", isSelected ? "0" : "-1");
  }

  /** @param {TreeItem | undefined} selected */
  draw(selected) {
    const trace = /** @type {Trace} */ (this.trace);
    for (const button of this.links.querySelectorAll("button")) button.disabled = selected === undefined;
    this.controls.hidden = this.links.hidden || this.spec === null || selected === undefined;
    const weights = this.row?.weights ?? null;
    const words = weights === null ? null : this.weightsOfWords(weights);
    const limit = weightLimit(words ?? weights ?? []);
    this.shadeWords(words, limit);
    setChildren(this.text, ...this.describe(selected, words));
    setChildren(this.legend, weights !== null && weightLegend(limit));
    const chips = weights !== null && words === null ? weights.map((value, key) => sourceChip(trace.source[key], value, limit)) : [];
    setChildren(this.tokens, chips.length > 0 && tokenRow("The tokens of the source and their attention weights", chips));
  }

  /**
   * Each word's weight: the sum over its tokens. Null if the trace does not say which word of the tree a token is part of.
   * @param {number[]} weights of the source tokens
   */
  weightsOfWords(weights) {
    const trace = /** @type {Trace} */ (this.trace);
    const count = this.drawn?.words.length ?? 0;
    const known = new Set(trace.source.filter(({ special }) => !special).map(({ word }) => word));
    if (known.size !== count || !Array.from({ length: count }, (_, word) => word).every((word) => known.has(word))) return null;
    const sums = Array.from({ length: count }, () => 0);
    trace.source.forEach(({ special, word }, key) => {
      if (!special) sums[word] += weights[key];
    });
    return sums;
  }

  /** @param {number[] | null} weights @param {number} limit */
  shadeWords(weights, limit) {
    if (this.drawn === null) return;
    for (const number of this.drawn.svg.querySelectorAll(".word-weight")) number.remove();
    this.drawn.words.forEach(({ background, text, x, y }, index) => {
      const weight = weights?.[index];
      const color = weight === undefined ? null : scaleColor("weight", weight, limit);
      background.setAttribute("fill", color === null ? "transparent" : `rgb(${color.join(", ")})`);
      text.setAttribute("fill", color === null ? cssVariable("--ink") : textColor(color));
      if (weight === undefined) return;
      const font = { "font-size": 11, "font-family": cssVariable("--font"), fill: cssVariable("--ink-soft") };
      const number = s("text", { class: "word-weight", x, y: y + 26, "text-anchor": "middle", ...font }, formatPercent(weight));
      background.parentElement?.append(number);
    });
  }

  /** @param {TreeItem | undefined} selected @param {number[] | null} words */
  describe(selected, words) {
    const trace = /** @type {Trace} */ (this.trace);
    const position = selected?.node.data.position;
    if (this.links.hidden) return ["The symbols of this output do not match its tree, so its steps cannot be linked."];
    if (selected === undefined || position === undefined)
      return [h("span", { class: "note" }, linkTerms("Select a phrase or a tag to see what the decoder attended to when it wrote it ([[cross-attention]]). Arrow keys move through the tree."))];
    const step = stepLabel(trace.target[position - 1], trace.target[position]);
    const kind = trace.target[position].piece.startsWith("(") ? "opens" : "writes the tag";
    const wrote = [`Step ${position - firstGenerated(trace) + 1}, `, h("b", {}, step), `, ${kind} ${selected.node.data.label}. `];
    if (this.spec === null) return [...wrote, "This model has no cross-attention, so there are no weights to show."];
    if (this.problem !== "") return [...wrote, this.problem];
    if (this.row === null) return [...wrote, "Loading its attention …"];
    const { layer, head } = this.choice(this.spec);
    const name = headName(layer, /** @type {HeadChoice} */ (head));
    const special = trace.source
      .map((token, key) => ({ token, weight: /** @type {Row} */ (this.row).weights[key] }))
      .filter(({ token }) => token.special)
      .map(({ token, weight }) => `${formatPercent(weight)} on ${tokenLabel(token)}`);
    const rest = special.length === 0 ? "" : ` Not on a word: ${special.join(", ")}.`;
    if (words === null) return [...wrote, `The tokens of the source by their weight (${name}).${rest}`];
    const best = words.indexOf(Math.max(...words));
    const most = `In it the decoder attends most to “${this.drawn?.words[best].label}”, ${formatPercent(words[best])} (${name}).`;
    return [...wrote, most, rest];
  }

  openDecoding() {
    const { position } = this.store.get();
    if (this.trace === null) return;
    this.store.set({ view: "decoding", step: position - firstGenerated(this.trace) + 1, node: -1 });
  }

  openHeads() {
    if (this.spec === null) return;
    const { layer, head } = this.choice(this.spec);
    this.store.set({
      view: "heads",
      attention_type: "cross",
      layer,
      ...(head === "mean" ? { average_heads: true } : { average_heads: false, head: Number(head) }),
      heads: [],
      token: this.store.get().position - 1,
      token_role: "query",
    });
  }

  /** Whether the attention of the selected phrase is still to come. */
  isLoading() {
    return this.requested !== "" && this.row === null;
  }

  read() {
    if (this.row === null || this.spec === null) return null;
    const words = this.weightsOfWords(this.row.weights);
    return {
      ...this.choice(this.spec),
      position: this.store.get().position,
      weights: this.row.weights,
      words: words === null ? null : this.drawn?.words.map(({ label }, index) => ({ text: label, weight: words[index] })),
      text: this.text.textContent,
    };
  }
}

/** A line below the words of a phrase. @param {Word[]} words */
function underline(words) {
  if (words.length === 0) return "";
  const [first, last] = [words[0], words[words.length - 1]];
  return `M${first.x - first.width / 2 - 6} ${first.y + 11}H${last.x + last.width / 2 + 6}`;
}

/** @param {number} count */
function numbered(count) {
  return Array.from({ length: count }, (_, index) => ({ value: String(index), label: String(index + 1) }));
}

/** @param {Token} token @param {number} weight @param {number} limit */
function sourceChip(token, weight, limit) {
  return tokenChip({ text: tokenLabel(token), special: token.special, number: formatPercent(weight), weight: { value: weight, limit } });
}
