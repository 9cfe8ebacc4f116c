/**
 * A parse as a tree: the sentence in one row at the bottom, constituents above the words they span.
 */

import { hierarchy } from "d3-hierarchy";
import { cssVariable, s } from "../../page/dom.js";

/** @typedef {{ label: string, isWord?: boolean, children?: Constituent[] }} Constituent */

const LEVEL_HEIGHT = 46;
const LETTER_WIDTH = 8.2;
const GAP = 18;

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

/** @param {Constituent} tree */
export function drawParseTree(tree) {
  const root = hierarchy(tree);
  const depth = root.height;
  let right = GAP;
  /** @type {Map<object, number>} */
  const positions = new Map();
  root.eachAfter((node) => {
    if (node.children === undefined) {
      const width = Math.max(
        22,
        node.data.label.length * LETTER_WIDTH,
        (node.parent?.children?.length === 1 ? node.parent.data.label.length : 0) * LETTER_WIDTH,
      );
      positions.set(node, right + width / 2);
      right += width + GAP;
    } else {
      const ends = [node.children[0], node.children[node.children.length - 1]];
      const [first, last] = ends.map((child) => positions.get(child) ?? 0);
      positions.set(node, (first + last) / 2);
    }
  });
  /** @param {typeof root} node */
  const x = (node) => positions.get(node) ?? 0;
  /** @param {typeof root} node */
  const y = (node) => 22 + LEVEL_HEIGHT * (node.data.isWord ? depth : node.depth);
  const height = 22 + LEVEL_HEIGHT * depth + 18;
  const lines = root.links().map(({ source, target }) =>
    s("path", {
      d: `M${x(source)} ${y(source) + 6}L${x(target)} ${y(target) - 16}`,
      stroke: cssVariable("--line"),
      "stroke-width": 1.5,
      fill: "none",
    }),
  );
  const labels = root.descendants().map((node) =>
    s(
      "text",
      {
        x: x(node),
        y: y(node),
        "text-anchor": "middle",
        "font-size": 14,
        "font-family": cssVariable("--font"),
        "font-weight": node.data.isWord ? 400 : 600,
        fill: cssVariable(node.data.isWord ? "--ink" : "--accent"),
      },
      node.data.label,
    ),
  );
  return s(
    "svg",
    {
      class: "tree",
      width: right,
      height,
      viewBox: `0 0 ${right} ${height}`,
      role: "img",
      "aria-label": "The sentence as a parse tree",
    },
    lines,
    labels,
  );
}

/** @param {string} word as treebanks write it */
function unescapeBracket(word) {
  return { "-LRB-": "(", "-RRB-": ")" }[word] ?? word;
}
