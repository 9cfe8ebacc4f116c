/**
 * The layout of a search tree: one column per step, and rows chosen so that the output is a straight line at the top.
 *
 * A node's first child continues in its row. The other children start in the first row below that is free for the full
 * length of their line. Those of later nodes are placed first, so that no line crosses the row of another.
 */

import { hierarchy } from "d3-hierarchy";
import { formatFixed, truncate } from "../../page/format.js";
import { tokenLabel } from "../../page/tokens.js";
import { displayState } from "./search_tree.js";

/** @import { HierarchyNode } from "d3-hierarchy" */
/** @import { BeamNode } from "../../contract.d.ts" */
/** @import { SearchTree } from "./search_tree.js" */

export const ROW_HEIGHT = 24;
export const GAP = 44;
const HEADER_HEIGHT = 34;
const LETTER_WIDTH = 7.4;
const MAX_LABEL_LENGTH = 16;

/**
 * What the tree displays: a search node, the root, or a group of collapsed nodes.
 * @typedef {object} TreeItem
 * @property {string} key
 * @property {BeamNode | null} node
 * @property {number} parent the id of the parent node
 * @property {number} collapsed the number of collapsed nodes it stands for
 * @property {string} label
 * @property {string} number
 * @property {TreeItem[]} children
 */

/**
 * @typedef {{ item: TreeItem, depth: number, parent: PlacedItem | null, children: PlacedItem[], x: number, y: number,
 * right: number }} PlacedItem
 */

/** `columns`: the left edge of each column, and the right edge of the drawing. @typedef {{ items: PlacedItem[], columns: number[], width: number, height: number }} TreeLayout */

/**
 * @param {SearchTree} tree
 * @param {(parent: number) => boolean} isCollapsed whether the pruned children of a node are collapsed
 * @returns {TreeLayout}
 */
export function layoutTree(tree, isCollapsed) {
  const root = hierarchy(makeItems(tree, isCollapsed), (item) => item.children);
  const [rows, nodes] = [assignRows(root), root.descendants()];
  const columns = columnEdges(nodes);
  /** @type {Map<HierarchyNode<TreeItem>, PlacedItem>} */
  const placed = new Map();
  for (const node of nodes) {
    const parent = node.parent ? (placed.get(node.parent) ?? null) : null;
    const [x, y] = [columns[node.depth], HEADER_HEIGHT + ROW_HEIGHT * ((rows.get(node) ?? 0) + 0.5)];
    const item = { item: node.data, depth: node.depth, parent, children: [], x, y, right: x + itemWidth(node.data) };
    parent?.children.push(item);
    placed.set(node, item);
  }
  let lastRow = 0;
  for (const row of rows.values()) lastRow = Math.max(lastRow, row);
  const height = HEADER_HEIGHT + ROW_HEIGHT * (1 + lastRow) + 8;
  return { items: [...placed.values()], columns, width: columns[columns.length - 1], height };
}

/** @param {SearchTree} tree @param {(parent: number) => boolean} isCollapsed @returns {TreeItem} */
function makeItems(tree, isCollapsed) {
  const label = truncate(tree.rootLabel, MAX_LABEL_LENGTH);
  /** @type {TreeItem} */
  const root = { key: "-1", node: null, parent: -1, collapsed: 0, label, number: "", children: [] };
  // Not by recursion: a long output is thousands of nodes deep.
  for (const items = [root]; items.length > 0; ) {
    const current = /** @type {TreeItem} */ (items.pop());
    if (current.collapsed > 0) continue;
    const id = current.node?.id ?? -1;
    const children = [...tree.children(id)].sort(
      (a, b) => Number(b.in_output) - Number(a.in_output) || b.total_log_probability - a.total_log_probability,
    );
    const isHidden = (/** @type {BeamNode} */ node) => isCollapsed(id) && displayState(node) === "pruned";
    current.children = children.filter((node) => !isHidden(node)).map(nodeItem);
    items.push(...current.children);
    const hidden = children.filter(isHidden).length;
    if (hidden > 0) current.children.push(collapsedItem(id, hidden));
  }
  return root;
}

/** @param {BeamNode} node @returns {TreeItem} */
function nodeItem(node) {
  const label = truncate(tokenLabel(node.token), MAX_LABEL_LENGTH);
  const number = formatFixed(node.log_probability);
  return { key: String(node.id), node, parent: node.parent, collapsed: 0, label, number, children: [] };
}

/** @param {number} parent @param {number} collapsed @returns {TreeItem} */
function collapsedItem(parent, collapsed) {
  const label = `+${collapsed} pruned`;
  return { key: `collapsed${parent}`, node: null, parent, collapsed, label, number: "", children: [] };
}

/** @param {HierarchyNode<TreeItem>} root @returns {Map<HierarchyNode<TreeItem>, number>} */
function assignRows(root) {
  /** @type {Map<HierarchyNode<TreeItem>, number>} */
  const rows = new Map();
  /** The columns of each row that a line takes. @type {Set<number>[]} */
  const occupied = [];
  const isFree = (/** @type {number} */ row, /** @type {number} */ first, /** @type {number} */ last) => {
    for (let column = first; column <= last; column++) if (occupied[row]?.has(column)) return false;
    return true;
  };
  /** @param {HierarchyNode<TreeItem>} start @param {number} firstRow */
  const placeLine = (start, firstRow) => {
    const line = [start];
    for (let node = start.children?.[0]; node; node = node.children?.[0]) line.push(node);
    const last = line[line.length - 1].depth;
    // The column before a longer line stays empty; otherwise the line would look like the continuation of another.
    const first = line.length > 1 ? start.depth - 1 : start.depth;
    let row = firstRow;
    while (!isFree(row, first, last)) row += 1;
    const taken = (occupied[row] ??= new Set());
    for (let column = start.depth; column <= last; column++) taken.add(column);
    for (const node of line) rows.set(node, row);
    for (const node of line.reverse()) {
      for (const child of node.children?.slice(1) ?? []) placeLine(child, row + 1);
    }
  };
  placeLine(root, 0);
  return rows;
}

/** @param {HierarchyNode<TreeItem>[]} nodes */
function columnEdges(nodes) {
  /** @type {number[]} */
  const widths = [];
  for (const { depth, data } of nodes) widths[depth] = Math.max(widths[depth] ?? 0, itemWidth(data));
  const edges = [12];
  for (const width of widths) edges.push(edges[edges.length - 1] + width + GAP);
  return edges;
}

/** @param {TreeItem} item */
function itemWidth(item) {
  return 14 + LETTER_WIDTH * item.label.length + (item.number ? 8 + 6.4 * item.number.length : 0);
}
