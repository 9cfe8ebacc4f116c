/**
 * The drawing of a search tree: one column per step, one node per candidate.
 *
 * A node's state is shown by shape, text and color; the width of a line is the token's probability. Pruned nodes can be
 * collapsed, all of them or those of one parent. The arrow keys ← and → go to another step, ↑ and ↓ to the other
 * candidates of a step, which Enter selects.
 */

import { linkHorizontal, symbol, symbolCircle, symbolSquare, symbolStar, symbolTimes } from "d3-shape";
import { h, s, setChildren } from "../../page/dom.js";
import { formatFixed, formatProbability } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { addTooltip } from "../../page/tooltip.js";
import { describeState, displayState } from "./search_tree.js";
import { GAP, ROW_HEIGHT, layoutTree } from "./tree_layout.js";

/** @import { BeamNode } from "../../contract.d.ts" */
/** @import { SearchTree } from "./search_tree.js" */
/** @import { PlacedItem, TreeItem, TreeLayout } from "./tree_layout.js" */

const SHAPES = { output: symbolStar, active: symbolCircle, finished: symbolSquare, pruned: symbolTimes };

/** @typedef {{ tree: SearchTree, step: number, selected: number, collapsed: boolean }} DrawingState */

export class TreeDrawing {
  /** @param {Element} container @param {(id: number) => void} select */
  constructor(container, select) {
    this.select = select;
    /** Parents whose pruned children are expanded although all others are collapsed. @type {Set<number>} */
    this.expanded = new Set();
    this.svg = s("svg", { class: "search-tree", role: "group", "aria-label": "The search tree" });
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    this.stepBand = s("rect", { class: "band" });
    container.append(this.svg);
    /** @type {TreeLayout} */
    this.layout = { items: [], columns: [], width: 0, height: 0 };
    /** @type {DrawingState | null} */
    this.shown = null;
  }

  /** @param {DrawingState} state */
  show(state) {
    const before = this.shown;
    if (before?.tree !== state.tree || before.collapsed !== state.collapsed) {
      this.expanded.clear();
      this.draw(state);
    }
    this.shown = state;
    this.markStep(state.step);
    this.markSelected(state.selected);
  }

  /** @param {DrawingState} state */
  draw({ tree, collapsed }) {
    const focused = document.activeElement?.getAttribute("data-tree-id") ?? null;
    this.layout = layoutTree(tree, (parent) => collapsed && !this.expanded.has(parent));
    const { items, columns, width, height } = this.layout;
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) {
      this.svg.setAttribute(name, String(value));
    }
    const links = items.slice(1).map((item) => drawLink(item, columns[item.depth]));
    const nodes = items.map((item) => this.drawNode(item));
    setChildren(this.svg, this.stepBand, stepNumbers(columns), s("g", {}, links), s("g", {}, nodes));
    if (focused !== null) this.setTabStop(focused, true);
  }

  /** @param {number} step */
  markStep(step) {
    const { columns, height } = this.layout;
    const [x, next] = [columns[step] ?? 0, columns[step + 1] ?? 0];
    const band = { x: x - 12, y: 2, width: Math.max(0, next - x - GAP + 20), height: height - 4, rx: 6 };
    for (const [name, value] of Object.entries(band)) this.stepBand.setAttribute(name, String(value));
    for (const number of this.svg.querySelectorAll(".step")) {
      number.classList.toggle("current", number.getAttribute("data-step") === String(step));
    }
  }

  /** @param {number} selected */
  markSelected(selected) {
    for (const node of this.svg.querySelectorAll(".node.selected")) {
      node.classList.remove("selected");
      node.setAttribute("aria-pressed", "false");
    }
    const node = this.svg.querySelector(`[data-node="${selected}"]`);
    node?.classList.add("selected");
    node?.setAttribute("aria-pressed", "true");
    if (!this.svg.contains(document.activeElement)) this.setTabStop(String(selected), false);
  }

  /** The left edge of a step's column. @param {number} step */
  left(step) {
    return this.layout.columns[step] ?? 0;
  }

  /** The vertical position of a node. @param {number} id */
  top(id) {
    return this.layout.items.find(({ item }) => item.node?.id === id)?.y ?? 0;
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
    const attributes = {
      class: `node ${kind}`,
      transform: `translate(${x} ${y})`,
      tabindex: -1,
      role: node || collapsed ? "button" : "img",
      "aria-label": description,
      "aria-pressed": node ? "false" : null,
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
    const current = this.layout.items.find(({ item }) => item.key === id);
    if (!current) return;
    const next = neighbor(this.layout.items, current, event.key);
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
    const nodes = [.../** @type {NodeListOf<SVGElement>} */ (this.svg.querySelectorAll("[data-tree-id]"))];
    const stop = nodes.find((node) => node.getAttribute("data-tree-id") === key) ?? nodes[0];
    for (const node of nodes) node.setAttribute("tabindex", node === stop ? "0" : "-1");
    if (focus) stop?.focus();
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

/** @param {PlacedItem[]} items @param {PlacedItem} current @param {string} key */
function neighbor(items, current, key) {
  if (key === "ArrowLeft") return current.parent;
  if (key === "ArrowRight") return current.children[0];
  const column = items.filter(({ depth }) => depth === current.depth).sort((a, b) => a.y - b.y);
  const index = column.indexOf(current);
  if (key === "ArrowUp") return column[index - 1];
  return key === "ArrowDown" ? column[index + 1] : undefined;
}

/** @param {number[]} columns */
function stepNumbers(columns) {
  const numbers = columns
    .slice(1, -1)
    .map((x, index) =>
      s("text", { class: "step", x, y: 20, "data-step": index + 1 }, index === 0 ? "step 1" : index + 1),
    );
  return s("g", {}, numbers);
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
