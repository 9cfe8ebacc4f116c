/**
 * A parse as a tree: the words of the sentence on one line at the bottom, their tags above, and phrases above the words
 * they span. Each phrase and tag knows the symbol of the output that wrote it.
 */

/** @import { Trace } from "../../contract" */
/** @import { HierarchyNode } from "d3-hierarchy" */

import { hierarchy } from "d3-hierarchy";
import { cssVariable, s } from "../../page/dom.js";

/**
 * @typedef {object} Constituent a phrase, the tag of a word, or a word
 * @property {string} label
 * @property {boolean} [isWord]
 * @property {number} [position] that of its opening symbol in the target
 * @property {Constituent[]} [children]
 */

const LEVEL_HEIGHT = 46;
const LETTER_WIDTH = 8.2;
const GAP = 18;
/** Above the root; below the words, for their weights. */
const [TOP, BOTTOM] = [22, 44];

/**
 * @param {string} text such as "(S (NP (DT the) (NN cat)) (VP (VBD slept)))"
 * @returns {Constituent | null} null if the brackets do not match
 */
export function parseBrackets(text) {
  /** @type {Constituent} */
  const root = { label: "", children: [] };
  const open = [root];
  for (const [part] of text.matchAll(/\(\s*[^\s()]*|\)|[^\s()]+/g)) {
    const parent = open.at(-1);
    if (parent === undefined) return null;
    if (part === ")") {
      open.pop();
      continue;
    }
    const node = part.startsWith("(")
      ? { label: part.slice(1).trim(), children: [] }
      : { label: unescapeBracket(part), isWord: true };
    parent.children?.push(node);
    if (part.startsWith("(")) open.push(node);
  }
  if (open.length !== 1 || root.children?.length !== 1) return null;
  return root.children[0];
}

/**
 * The parse tree of a trace, whose output is a linearized tree: "(NP" opens a phrase, ")" closes it, and a tag stands for
 * its word. So the phrases and tags, in this order, are the symbols of the target but ")".
 * @param {Trace} trace
 * @returns {Constituent | null}
 */
export function treeOfTrace(trace) {
  const tree = trace.model.task === "parsing" ? parseBrackets(trace.output) : null;
  if (tree === null) return null;
  const positions = trace.target.flatMap(({ special, piece }, position) => (special || piece === ")" ? [] : [position]));
  const nodes = inOrder(hierarchy(tree));
  const matches =
    nodes.length === positions.length &&
    nodes.every(({ data }, index) => trace.target[positions[index]].piece.replace(/^\(/, "") === data.label);
  if (matches) nodes.forEach(({ data }, index) => (data.position = positions[index]));
  return tree;
}

/** The phrases and tags of a tree, each before what is in it. @param {HierarchyNode<Constituent>} root */
function inOrder(root) {
  /** @type {HierarchyNode<Constituent>[]} */
  const nodes = [];
  root.eachBefore((node) => void (node.data.isWord || nodes.push(node)));
  return nodes;
}

/** @typedef {{ node: HierarchyNode<Constituent>, element: SVGGElement }} TreeItem a phrase or a tag, from left to right */
/** @typedef {{ label: string, background: SVGRectElement, text: SVGTextElement, x: number, y: number, width: number }} Word */
/** @typedef {{ svg: SVGSVGElement, items: TreeItem[], words: Word[], span: SVGPathElement, wordsOf(node: HierarchyNode<Constituent>): [number, number] }} DrawnTree */

/** @param {Constituent} tree @returns {DrawnTree} */
export function drawParseTree(tree) {
  const root = hierarchy(tree);
  const depth = root.height;
  let right = GAP;
  /** @type {Map<object, { x: number, width: number }>} */
  const places = new Map();
  root.eachAfter((node) => {
    if (node.children === undefined) {
      const letters = Math.max(node.data.label.length, isTag(node.parent) ? (node.parent?.data.label.length ?? 0) : 0, 4);
      const width = letters * LETTER_WIDTH;
      places.set(node, { x: right + width / 2, width });
      right += width + GAP;
    } else {
      const ends = [node.children[0], node.children[node.children.length - 1]];
      const [first, last] = ends.map((child) => places.get(child)?.x ?? 0);
      places.set(node, { x: (first + last) / 2, width: node.data.label.length * LETTER_WIDTH + 10 });
    }
  });
  /** @param {typeof root} node */
  const place = (node) => places.get(node) ?? { x: 0, width: 0 };
  /** @param {typeof root} node */
  const y = (node) => TOP + LEVEL_HEIGHT * (node.data.isWord ? depth : isTag(node) ? depth - 1 : node.depth);
  const height = TOP + LEVEL_HEIGHT * depth + BOTTOM;
  const lines = root.links().map(({ source, target }) =>
    s("path", {
      d: `M${place(source).x} ${y(source) + 6}L${place(target).x} ${y(target) - 16}`,
      stroke: cssVariable("--line"),
      "stroke-width": 1.5,
      fill: "none",
    }),
  );
  const words = root.leaves().map((node) => {
    const { x, width } = place(node);
    const background = box(x, y(node), width + 12);
    const text = label(node.data.label, x, y(node), 400, "--ink");
    return { label: node.data.label, background, text, x, y: y(node), width };
  });
  const items = inOrder(root).map((node) => {
    const { x, width } = place(node);
    const parts = [box(x, y(node), width), label(node.data.label, x, y(node), 600, "--accent")];
    return { node, element: s("g", { class: "tree-node" }, parts) };
  });
  const leaves = root.leaves();
  const span = s("path", { d: "", stroke: cssVariable("--accent"), "stroke-width": 3 });
  const svg = s(
    "svg",
    { class: "tree", width: right, height, viewBox: `0 0 ${right} ${height}`, role: "img" },
    s("g", { "aria-hidden": "true" }, lines, words.flatMap(({ background, text }) => [background, text]), span),
    items.map(({ element }) => element),
  );
  return {
    svg,
    items,
    words,
    span,
    wordsOf: (node) => {
      const own = node.leaves();
      return [leaves.indexOf(own[0]), leaves.indexOf(own[own.length - 1])];
    },
  };
}

/** Whether a node is the tag of a word. @param {HierarchyNode<Constituent> | null} node */
function isTag(node) {
  return node?.children?.length === 1 && node.children[0].data.isWord === true;
}

/** @param {number} x @param {number} y the baseline of the text in it @param {number} width */
function box(x, y, width) {
  return s("rect", { x: x - width / 2, y: y - 16, width, height: 23, rx: 4, fill: "transparent" });
}

/** @param {string} text @param {number} x @param {number} y @param {number} weight @param {string} color */
function label(text, x, y, weight, color) {
  const font = { "font-size": 14, "font-family": cssVariable("--font"), "font-weight": weight };
  return s("text", { x, y, "text-anchor": "middle", ...font, fill: cssVariable(color) }, text);
}

/** @param {string} word as treebanks write it */
function unescapeBracket(word) {
  return { "-LRB-": "(", "-RRB-": ")" }[word] ?? word;
}
