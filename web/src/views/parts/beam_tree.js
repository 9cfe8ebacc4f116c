/**
 * A beam search as a tree: a column a step, a node for every token that was a candidate.
 *
 * What became of a node is said by its shape, its words and its colour; a line is as wide as its token was likely. What
 * was pruned can be folded away, all of it or behind one node. Arrow keys go through the tree, Enter opens a node.
 */

import { linkHorizontal, symbol, symbolCircle, symbolSquare, symbolStar, symbolTimes } from "d3-shape";
import { put, s } from "../../page/dom.js";
import { percent } from "../../page/words.js";
import { fate, fateInWords } from "./beam.js";
import { fixed } from "./numbers.js";
import { GAP, ROW, treeLayout } from "./tree_layout.js";

/** @import { BeamNode } from "../../contract.d.ts" */
/** @import { Beam } from "./beam.js" */
/** @import { Item, Layout, Place } from "./tree_layout.js" */

const SHAPES = { won: symbolStar, kept: symbolCircle, ended: symbolSquare, pruned: symbolTimes };

/** @typedef {{ beam: Beam, step: number, opened: number, folded: boolean }} Shown */

export class BeamTree {
  /** @param {Element} element @param {(id: number) => void} open */
  constructor(element, open) {
    this.open = open;
    /** Parents whose pruned children are shown although all are folded. @type {Set<number>} */
    this.unfolded = new Set();
    this.drawing = s("svg", { class: "beam-tree", role: "group", "aria-label": "The beam as a tree" });
    this.drawing.addEventListener("keydown", (event) => this.key(event));
    this.band = s("rect", { class: "band" });
    element.append(this.drawing);
    /** @type {Layout} */
    this.layout = { places: [], lefts: [], width: 0, height: 0 };
    /** @type {Shown | null} */
    this.shown = null;
  }

  /** @param {Shown} shown */
  show(shown) {
    const before = this.shown;
    if (before?.beam !== shown.beam || before.folded !== shown.folded) {
      this.unfolded.clear();
      this.draw(shown);
    }
    this.shown = shown;
    this.markStep(shown.step);
    this.markOpened(shown.opened);
  }

  /** All anew; what is marked is not. @param {Shown} shown */
  draw({ beam, folded }) {
    const focused = document.activeElement?.getAttribute("data-tree-id") ?? null;
    this.layout = treeLayout(beam, (parent) => folded && !this.unfolded.has(parent));
    const { places, lefts, width, height } = this.layout;
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) {
      this.drawing.setAttribute(name, String(value));
    }
    const links = places.slice(1).map((place) => link(place, lefts[place.depth]));
    const marks = places.map((place) => this.mark(place));
    put(this.drawing, this.band, stepNumbers(lefts), s("g", {}, links), s("g", {}, marks));
    if (focused !== null) this.stopAt(focused, true);
  }

  /** @param {number} step */
  markStep(step) {
    const { lefts, height } = this.layout;
    const [x, next] = [lefts[step] ?? 0, lefts[step + 1] ?? 0];
    const place = { x: x - 12, y: 2, width: Math.max(0, next - x - GAP + 20), height: height - 4, rx: 6 };
    for (const [name, value] of Object.entries(place)) this.band.setAttribute(name, String(value));
    for (const number of this.drawing.querySelectorAll(".step")) {
      number.classList.toggle("here", number.getAttribute("data-step") === String(step));
    }
  }

  /** @param {number} opened */
  markOpened(opened) {
    for (const node of this.drawing.querySelectorAll(".node.opened")) {
      node.classList.remove("opened");
      node.setAttribute("aria-pressed", "false");
    }
    const node = this.drawing.querySelector(`[data-node="${opened}"]`);
    node?.classList.add("opened");
    node?.setAttribute("aria-pressed", "true");
    if (!this.drawing.contains(document.activeElement)) this.stopAt(String(opened), false);
  }

  /** Where the column of a step begins, for who wants to scroll there. @param {number} step */
  left(step) {
    return this.layout.lefts[step] ?? 0;
  }

  /** How far down a node stands. @param {number} id */
  top(id) {
    return this.layout.places.find(({ item }) => item.node?.id === id)?.y ?? 0;
  }

  /** What is drawn, as plain data. */
  read() {
    return this.layout.places.flatMap(({ item: { node }, x, y }) =>
      node
        ? [{ id: node.id, parent: node.parent, step: node.step, x, y, fate: fate(node), width: thickness(node) }]
        : [],
    );
  }

  /** @param {Place} place */
  mark({ item, x, y, end }) {
    const { node, label, number, folded } = item;
    const [kind, words] = [node ? fate(node) : folded ? "stub" : "start", inWords(item)];
    const facts = {
      class: `node ${kind}`,
      transform: `translate(${x} ${y})`,
      tabindex: -1,
      role: node || folded ? "button" : "img",
      "aria-label": words,
      "aria-pressed": node ? "false" : null,
      "data-tree-id": item.key,
      "data-node": node?.id,
      onclick: () => this.act(item),
    };
    return s(
      "g",
      facts,
      s("title", {}, words),
      s("rect", { class: "hit", x: -10, y: 1 - ROW / 2, width: end - x + 12, height: ROW - 2, rx: 5 }),
      node?.won && node.state === "ended"
        ? s("rect", { class: "end", x: -8, y: -8, width: 16, height: 16, rx: 2 })
        : null,
      node ? s("path", { class: "sign", d: symbol(SHAPES[fate(node)], kind === "won" ? 70 : 46)() }) : null,
      s("text", { class: "word", x: node ? 11 : -4, y: 4 }, label),
      s("text", { class: "log", x: end - x - 2, y: 4, "text-anchor": "end" }, number),
    );
  }

  /** What a click does. @param {Item} item */
  act({ node, folded, parent }) {
    if (node) this.open(node.id);
    else if (folded && this.shown) {
      this.unfolded.add(parent);
      this.draw(this.shown);
      this.markStep(this.shown.step);
      this.markOpened(this.shown.opened);
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const at = document.activeElement?.getAttribute("data-tree-id");
    const here = this.layout.places.find(({ item }) => item.key === at);
    if (!here) return;
    const next = neighbour(this.layout.places, here, event.key);
    const acts = event.key === "Enter" || event.key === " ";
    if (!next && !acts) return;
    event.preventDefault();
    event.stopPropagation();
    if (acts) this.act(here.item);
    else if (next) this.stopAt(next.item.key, true);
  }

  /** Let the Tab key stop at one node, and no other. @param {string} key @param {boolean} focus */
  stopAt(key, focus) {
    const nodes = [.../** @type {NodeListOf<SVGElement>} */ (this.drawing.querySelectorAll("[data-tree-id]"))];
    const stop = nodes.find((node) => node.getAttribute("data-tree-id") === key) ?? nodes[0];
    for (const node of nodes) node.setAttribute("tabindex", node === stop ? "0" : "-1");
    if (focus) stop?.focus();
  }
}

/** @param {Item} item */
function inWords({ node, label, number, folded }) {
  if (folded) return `${label}, folded: show them`;
  if (!node) return `${label}, the start`;
  const chance = percent(Math.exp(node.log_probability));
  const total = `total log-probability ${fixed(node.total)}`;
  return `${label} ${number}, step ${node.step}, ${fateInWords(node)}, probability ${chance}, ${total}`;
}

/** @param {Place[]} places @param {Place} here @param {string} key */
function neighbour(places, here, key) {
  if (key === "ArrowLeft") return here.parent;
  if (key === "ArrowRight") return here.children[0];
  const column = places.filter(({ depth }) => depth === here.depth).sort((one, other) => one.y - other.y);
  const at = column.indexOf(here);
  if (key === "ArrowUp") return column[at - 1];
  return key === "ArrowDown" ? column[at + 1] : undefined;
}

/** @param {number[]} lefts */
function stepNumbers(lefts) {
  const numbers = lefts
    .slice(1, -1)
    .map((x, index) =>
      s("text", { class: "step", x, y: 20, "data-step": index + 1 }, index === 0 ? "step 1" : index + 1),
    );
  return s("g", {}, numbers);
}

/**
 * A line from a node's parent: straight to the end of its column, then over.
 * @param {Place} place
 * @param {number} left where its own column begins
 */
function link({ item: { node }, parent, x, y }, left) {
  const above = /** @type {Place} */ (parent);
  const turn = left - GAP + 4;
  const over = linkHorizontal()({ source: [turn, above.y], target: [x - 10, y] }) ?? "";
  const d = `M${above.end + 2},${above.y}H${turn}${over.slice(over.indexOf("C"))}`;
  const kind = node ? fate(node) : "stub";
  return s("path", { class: `link ${kind}`, d, "stroke-width": node ? thickness(node).toFixed(2) : 1 });
}

/** As wide as the token was likely. @param {BeamNode} node */
function thickness(node) {
  return 1 + 7 * Math.exp(node.log_probability);
}
