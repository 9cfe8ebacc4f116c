/**
 * Where the nodes of a beam stand: a column a step, and rows such that the answer is a straight line at the top.
 *
 * A node goes on in its own row with its first child. Other children begin in the first row below that is free for the
 * whole of their own line. Those of later nodes are placed first: then no line has to cross another's row.
 */

import { hierarchy } from "d3-hierarchy";
import { label } from "../../page/tokens.js";
import { fate } from "./beam.js";
import { fixed } from "./numbers.js";

/** @import { HierarchyNode } from "d3-hierarchy" */
/** @import { BeamNode } from "../../contract.d.ts" */
/** @import { Beam } from "./beam.js" */

export const ROW = 24;
export const HEAD = 34;
export const GAP = 44;
const LETTER = 7.4;
const LONGEST = 16;

/**
 * What stands in the tree: a node of the search, the start, or a stub for some that are folded.
 * @typedef {object} Item
 * @property {string} key
 * @property {BeamNode | null} node
 * @property {number} parent the node that it goes on from
 * @property {number} folded how many it stands for
 * @property {string} label
 * @property {string} number
 * @property {Item[]} children
 */

/**
 * @typedef {{ item: Item, depth: number, parent: Place | null, children: Place[], x: number, y: number, end: number
 * }} Place
 */

/** @typedef {{ places: Place[], lefts: number[], width: number, height: number }} Layout */

/**
 * @param {Beam} beam
 * @param {(parent: number) => boolean} folds whether what was pruned behind a node is folded
 * @returns {Layout}
 */
export function treeLayout(beam, folds) {
  const root = hierarchy(items(beam, folds), (item) => item.children);
  const [rows, nodes] = [rowsOf(root), root.descendants()];
  const lefts = columns(nodes);
  /** @type {Map<HierarchyNode<Item>, Place>} */
  const found = new Map();
  for (const node of nodes) {
    const parent = node.parent ? (found.get(node.parent) ?? null) : null;
    const [x, y] = [lefts[node.depth], HEAD + ROW * ((rows.get(node) ?? 0) + 0.5)];
    const place = { item: node.data, depth: node.depth, parent, children: [], x, y, end: x + widthOf(node.data) };
    parent?.children.push(place);
    found.set(node, place);
  }
  const height = HEAD + ROW * (1 + Math.max(...rows.values())) + 8;
  return { places: [...found.values()], lefts, width: lefts[lefts.length - 1], height };
}

/** @param {Beam} beam @param {(parent: number) => boolean} folds @returns {Item} */
function items(beam, folds) {
  /** @param {number} id @returns {Item[]} */
  const below = (id) => {
    const all = [...beam.children(id)].sort(
      (one, other) => Number(other.won) - Number(one.won) || other.total - one.total,
    );
    const hidden = folds(id) ? all.filter((node) => fate(node) === "pruned") : [];
    const found = all.filter((node) => !hidden.includes(node)).map((node) => itemOf(node, below(node.id)));
    return hidden.length > 0 ? [...found, stub(id, hidden.length)] : found;
  };
  const start = { key: "-1", node: null, parent: -1, folded: 0, label: cut(beam.beginning), number: "" };
  return { ...start, children: below(-1) };
}

/** @param {BeamNode} node @param {Item[]} children @returns {Item} */
function itemOf(node, children) {
  const [text, number] = [cut(label(node.token)), fixed(node.log_probability)];
  return { key: String(node.id), node, parent: node.parent, folded: 0, label: text, number, children };
}

/** @param {number} parent @param {number} folded @returns {Item} */
function stub(parent, folded) {
  return { key: `fold${parent}`, node: null, parent, folded, label: `+${folded} pruned`, number: "", children: [] };
}

/** @param {HierarchyNode<Item>} root @returns {Map<HierarchyNode<Item>, number>} */
function rowsOf(root) {
  /** @type {Map<HierarchyNode<Item>, number>} */
  const rows = new Map();
  /** The first and last column of every line in each row. @type {[number, number][][]} */
  const taken = [];
  /** @param {HierarchyNode<Item>} top @param {number} least */
  const lay = (top, least) => {
    const line = [top];
    for (let node = top.children?.[0]; node; node = node.children?.[0]) line.push(node);
    const last = line[line.length - 1].depth;
    // Before a line that goes on a column stays empty: it would look like the end of another one.
    const first = line.length > 1 ? top.depth - 1 : top.depth;
    let row = least;
    while (taken[row]?.some(([from, to]) => from <= last && first <= to)) row += 1;
    (taken[row] ??= []).push([top.depth, last]);
    for (const node of line) rows.set(node, row);
    for (const node of line.reverse()) {
      for (const child of node.children?.slice(1) ?? []) lay(child, row + 1);
    }
  };
  lay(root, 0);
  return rows;
}

/** Where columns begin, and at last where the drawing ends. @param {HierarchyNode<Item>[]} nodes */
function columns(nodes) {
  /** @type {number[]} */
  const widest = [];
  for (const { depth, data } of nodes) widest[depth] = Math.max(widest[depth] ?? 0, widthOf(data));
  const lefts = [12];
  for (const wide of widest) lefts.push(lefts[lefts.length - 1] + wide + GAP);
  return lefts;
}

/** @param {Item} item */
function widthOf(item) {
  return 14 + LETTER * item.label.length + (item.number ? 8 + 6.4 * item.number.length : 0);
}

/** @param {string} text */
function cut(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}
