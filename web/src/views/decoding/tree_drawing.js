/**
 * The drawing of a search tree: one column per step, one node per candidate.
 *
 * A node's state is shown by shape, text and color; the width of a line is the token's probability. Pruned nodes can be
 * collapsed, all of them or those of one parent. The arrow keys ← and → go to another step, ↑ and ↓ to the other
 * candidates of a step, which Enter selects. Of a large tree only the visible part is drawn.
 */

import { linkHorizontal, symbol, symbolCircle, symbolSquare, symbolStar, symbolTimes } from "d3-shape";
import { cssVariable, h, s } from "../../page/dom.js";
import { domToSvg } from "../../page/dom_to_svg.js";
import { formatCount, formatFixed, formatProbability } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { addTooltip } from "../../page/tooltip.js";
import { EVERYTHING, onVisibleChange, updateChildren, visibleBox } from "../shared/visible_part.js";
import { describeState, displayState } from "./search_tree.js";
import { GAP, ROW_HEIGHT, layoutTree } from "./tree_layout.js";

/** @import { BeamNode } from "../../contract.d.ts" */
/** @import { Box } from "../shared/visible_part.js" */
/** @import { SearchTree } from "./search_tree.js" */
/** @import { PlacedItem, TreeItem, TreeLayout } from "./tree_layout.js" */

const SHAPES = { output: symbolStar, active: symbolCircle, finished: symbolSquare, pruned: symbolTimes };

/** A larger tree is drawn only where it is visible. */
const MAX_DRAWN = 120;
/** A larger tree is not exported as a whole. */
const MAX_EXPORTED = 1500;

/** @typedef {{ tree: SearchTree, step: number, selected: number, collapsed: boolean }} DrawingState */

export class TreeDrawing {
  /** @param {HTMLElement} frame which scrolls @param {(id: number) => void} select */
  constructor(frame, select) {
    this.frame = frame;
    this.select = select;
    /** Parents whose pruned children are expanded although all others are collapsed. @type {Set<number>} */
    this.expanded = new Set();
    this.svg = s("svg", { class: "search-tree", role: "group", "aria-label": "The search tree" });
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    this.stepBand = s("rect", { class: "band" });
    this.numbers = s("g");
    this.links = s("g");
    this.nodes = s("g");
    /** What is drawn, by the key of the item or the step. @type {Record<"numbers" | "links" | "nodes", Map<string, Element>>} */
    this.drawn = { numbers: new Map(), links: new Map(), nodes: new Map() };
    this.svg.append(this.stepBand, this.numbers, this.links, this.nodes);
    frame.append(this.svg);
    /** @type {TreeLayout} */
    this.layout = { items: [], columns: [], width: 0, height: 0 };
    /** @type {Map<string, PlacedItem>} */
    this.byKey = new Map();
    /** The index of each item. @type {Map<PlacedItem, number>} */
    this.order = new Map();
    /** @type {PlacedItem[][]} */
    this.byDepth = [];
    /** The item that the Tab key goes to. */
    this.tabStop = "";
    /** @type {DrawingState | null} */
    this.shown = null;
    this.stopWatching = onVisibleChange(frame, () => this.drawVisible());
  }

  destroy() {
    this.stopWatching();
  }

  /** @param {DrawingState} state */
  show(state) {
    const before = this.shown;
    this.shown = state;
    if (before?.tree !== state.tree || before.collapsed !== state.collapsed) {
      this.expanded.clear();
      this.draw(state);
    }
    this.markStep(state.step);
    this.markSelected(state.selected);
  }

  /** @param {DrawingState} state */
  draw({ tree, collapsed }) {
    const focused = document.activeElement?.getAttribute("data-tree-id") ?? null;
    this.layout = layoutTree(tree, (parent) => collapsed && !this.expanded.has(parent));
    const { items, width, height } = this.layout;
    this.byKey = new Map(items.map((placed) => [placed.item.key, placed]));
    this.order = new Map(items.map((placed, index) => [placed, index]));
    this.byDepth = [];
    for (const placed of items) (this.byDepth[placed.depth] ??= []).push(placed);
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) {
      this.svg.setAttribute(name, String(value));
    }
    for (const name of /** @type {const} */ (["numbers", "links", "nodes"])) {
      this[name].replaceChildren();
      this.drawn[name].clear();
    }
    if (!this.byKey.has(this.tabStop)) this.tabStop = items[0]?.item.key ?? "";
    this.drawVisible();
    if (focused !== null) this.setTabStop(focused, true);
  }

  /** Draw what is visible, and the item that the Tab key goes to. @param {Box} [box] */
  drawVisible(box = this.layout.items.length > MAX_DRAWN ? visibleBox(this.frame) : EVERYTHING) {
    const { columns } = this.layout;
    if (columns.length === 0) return;
    const depths = this.byDepth.map((_, depth) => depth).filter((depth) => columns[depth] <= box.right && columns[depth + 1] >= box.left);
    const next = depths.length > 0 ? this.byDepth[depths[depths.length - 1] + 1] : undefined;
    const visible = depths.flatMap((depth) => this.byDepth[depth]);
    /** @type {(placed: PlacedItem) => boolean} */
    const isNodeVisible = ({ item, y }) => (y >= box.top && y <= box.bottom) || item.key === this.tabStop;
    /** @type {(placed: PlacedItem) => boolean} */
    const isLinkVisible = ({ parent, y }) =>
      parent !== null && Math.max(parent.y, y) >= box.top && Math.min(parent.y, y) <= box.bottom;
    const nodes = visible.filter(isNodeVisible);
    const stop = this.byKey.get(this.tabStop);
    if (stop !== undefined && !nodes.includes(stop)) nodes.push(stop);
    nodes.sort((one, other) => (this.order.get(one) ?? 0) - (this.order.get(other) ?? 0));
    const keyOf = (/** @type {PlacedItem} */ { item }) => item.key;
    updateChildren(this.links, this.drawn.links, [...visible, ...(next ?? [])].filter(isLinkVisible), keyOf, (placed) =>
      drawLink(placed, columns[placed.depth]),
    );
    updateChildren(this.nodes, this.drawn.nodes, nodes, keyOf, (placed) => this.drawNode(placed));
    const steps = depths.filter((depth) => depth >= 1 && depth < columns.length - 1);
    updateChildren(this.numbers, this.drawn.numbers, steps, String, (step) => this.stepNumber(step));
  }

  /** @param {number} step */
  stepNumber(step) {
    const isCurrent = step === this.shown?.step;
    const attributes = { class: `step${isCurrent ? " current" : ""}`, x: this.layout.columns[step], y: 20, "data-step": step };
    return s("text", attributes, step === 1 ? "step 1" : step);
  }

  /** The drawing for a file, and which part of the tree it has: "" for all of it. */
  toSvg() {
    const { items, columns } = this.layout;
    if (items.length <= MAX_EXPORTED) {
      this.drawVisible(EVERYTHING);
      const whole = domToSvg(this.svg);
      this.drawVisible();
      return { svg: whole, part: "" };
    }
    const { scrollLeft, clientWidth } = this.frame;
    const shown = columns.map((_, depth) => depth).filter(
      (depth) => depth >= 1 && depth < columns.length - 1 && columns[depth + 1] > scrollLeft && columns[depth] < scrollLeft + clientWidth,
    );
    const range = shown.length === 0 ? "" : `, steps ${formatCount(shown[0])} to ${formatCount(shown[shown.length - 1])}`;
    const part = `This is the visible part of a search tree with ${formatCount(items.length)} nodes${range}.`;
    const svg = domToSvg(this.frame);
    const [x, y] = [16, svg.height.baseVal.value - 4];
    svg.append(s("text", { x, y, "font-size": 11, fill: cssVariable("--ink-soft") }, part));
    return { svg, part };
  }

  /** @param {number} step */
  markStep(step) {
    const { columns, height } = this.layout;
    const [x, next] = [columns[step] ?? 0, columns[step + 1] ?? 0];
    const band = { x: x - 12, y: 2, width: Math.max(0, next - x - GAP + 20), height: height - 4, rx: 6 };
    for (const [name, value] of Object.entries(band)) this.stepBand.setAttribute(name, String(value));
    for (const [key, number] of this.drawn.numbers) number.classList.toggle("current", key === String(step));
  }

  /** @param {number} selected */
  markSelected(selected) {
    for (const [key, node] of this.drawn.nodes) {
      const isSelected = selected >= 0 && key === String(selected);
      if (!isSelected && !node.classList.contains("selected")) continue;
      node.classList.toggle("selected", isSelected);
      node.setAttribute("aria-pressed", String(isSelected));
    }
    if (!this.svg.contains(document.activeElement)) this.setTabStop(String(selected), false);
  }

  /** The left edge of a step's column. @param {number} step */
  left(step) {
    return this.layout.columns[step] ?? 0;
  }

  /** The vertical position of a node. @param {number} id */
  top(id) {
    return this.byKey.get(String(id))?.y ?? 0;
  }

  /** What is drawn, as plain data. */
  read() {
    return this.layout.items.flatMap(({ item: { node }, x, y }) =>
      node
        ? [
            {
              id: node.id,
              parent: node.parent,
              step: node.step,
              x,
              y,
              state: displayState(node),
              width: lineWidth(node),
            },
          ]
        : [],
    );
  }

  /** @param {PlacedItem} placed */
  drawNode({ item, x, y, right }) {
    const { node, label, number, collapsed } = item;
    const kind = node ? displayState(node) : collapsed ? "collapsed" : "root";
    const description = describe(item);
    const isSelected = node !== null && node.id === this.shown?.selected;
    const attributes = {
      class: `node ${kind}${isSelected ? " selected" : ""}`,
      transform: `translate(${x} ${y})`,
      tabindex: item.key === this.tabStop ? 0 : -1,
      role: node || collapsed ? "button" : "img",
      "aria-label": description,
      "aria-pressed": node ? String(isSelected) : null,
      "data-tree-id": item.key,
      "data-node": node?.id,
      onclick: () => this.activate(item),
    };
    const drawn = s(
      "g",
      attributes,
      node ? null : s("title", {}, description),
      s("rect", { class: "hit", x: -10, y: 1 - ROW_HEIGHT / 2, width: right - x + 12, height: ROW_HEIGHT - 2, rx: 5 }),
      node?.in_output && node.state === "finished"
        ? s("rect", { class: "end", x: -8, y: -8, width: 16, height: 16, rx: 2 })
        : null,
      node ? s("path", { class: "symbol", d: symbol(SHAPES[displayState(node)], kind === "output" ? 70 : 46)() }) : null,
      s("text", { class: "label", x: node ? 11 : -4, y: 4 }, label),
      s("text", { class: "log-probability", x: right - x - 2, y: 4, "text-anchor": "end" }, number),
    );
    if (node) addTooltip(drawn, () => nodeTooltip(node));
    return drawn;
  }

  /** Select a node, or expand a collapsed group. @param {TreeItem} item */
  activate({ node, collapsed, parent }) {
    if (node) this.select(node.id);
    else if (collapsed && this.shown) {
      this.expanded.add(parent);
      this.draw(this.shown);
      this.markStep(this.shown.step);
      this.markSelected(this.shown.selected);
    }
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const id = document.activeElement?.getAttribute("data-tree-id");
    const current = this.byKey.get(id ?? "");
    if (!current) return;
    const next = neighbor(this.byDepth[current.depth], current, event.key);
    const activates = event.key === "Enter" || event.key === " ";
    if (!next && !activates) return;
    event.preventDefault();
    event.stopPropagation();
    if (activates) return this.activate(current.item);
    if (!next) return;
    this.setTabStop(next.item.key, true);
    // To the left and right is another step: show it, as these keys do elsewhere.
    if (next.item.node && (event.key === "ArrowLeft" || event.key === "ArrowRight")) this.select(next.item.node.id);
  }

  /** Make one node the only tab stop. @param {string} key @param {boolean} focus */
  setTabStop(key, focus) {
    this.tabStop = this.byKey.has(key) ? key : (this.layout.items[0]?.item.key ?? "");
    this.drawVisible();
    for (const [each, node] of this.drawn.nodes) node.setAttribute("tabindex", each === this.tabStop ? "0" : "-1");
    const stop = this.drawn.nodes.get(this.tabStop);
    if (focus && stop instanceof SVGElement) stop.focus();
  }
}

/** @param {TreeItem} item */
function describe({ node, label, number, collapsed }) {
  if (collapsed) return `${label}, collapsed; activate to show them`;
  if (!node) return `${label}, the root`;
  const [probability, total] = [node.log_probability, node.total_log_probability].map((each) =>
    formatProbability(Math.exp(each)),
  );
  const hypothesis = `${total} (log-probability ${formatFixed(node.total_log_probability)})`;
  return `${label} ${number}, step ${node.step}, ${describeState(node)}, probability ${probability}, hypothesis so far ${hypothesis}`;
}

/** @param {BeamNode} node */
function nodeTooltip(node) {
  /** @param {string} name @param {number} logProbability */
  const row = (name, logProbability) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      h("td", {}, formatProbability(Math.exp(logProbability))),
      h("td", {}, formatFixed(logProbability)),
    );
  const heads = ["", "probability", "log-probability"].map((text) => (text ? h("th", { scope: "col" }, text) : h("td")));
  return [
    h("p", {}, h("strong", {}, tokenLabel(node.token)), ` · step ${node.step}, ${describeState(node)}`),
    h(
      "table",
      { class: "numbers" },
      h("thead", {}, h("tr", {}, heads)),
      h(
        "tbody",
        {},
        row("this token", node.log_probability),
        row("hypothesis so far", node.total_log_probability),
      ),
    ),
  ];
}

/** @param {PlacedItem[]} column those of the same step @param {PlacedItem} current @param {string} key */
function neighbor(column, current, key) {
  if (key === "ArrowLeft") return current.parent;
  if (key === "ArrowRight") return current.children[0];
  const sorted = [...column].sort((a, b) => a.y - b.y);
  const index = sorted.indexOf(current);
  if (key === "ArrowUp") return sorted[index - 1];
  return key === "ArrowDown" ? sorted[index + 1] : undefined;
}

/**
 * A line from a node's parent: straight to the end of the parent's column, then curved.
 * @param {PlacedItem} placed
 * @param {number} left the left edge of the node's column
 */
function drawLink({ item: { node }, parent, x, y }, left) {
  const from = /** @type {PlacedItem} */ (parent);
  const turn = left - GAP + 4;
  const curve = linkHorizontal()({ source: [turn, from.y], target: [x - 10, y] }) ?? "";
  const d = `M${from.right + 2},${from.y}H${turn}${curve.slice(curve.indexOf("C"))}`;
  const kind = node ? displayState(node) : "collapsed";
  return s("path", { class: `link ${kind}`, d, "stroke-width": node ? lineWidth(node).toFixed(2) : 1 });
}

/** Proportional to the token's probability. @param {BeamNode} node */
function lineWidth(node) {
  return 1 + 7 * Math.exp(node.log_probability);
}
