/**
 * A parse as a tree: the sentence in one row at the bottom, constituents above what they span.
 */

import { hierarchy } from "d3-hierarchy";
import { css, s } from "../../page/dom.js";

/** @typedef {{ name: string, word?: boolean, children?: Bracket[] }} Bracket */

const LEVEL = 46;
const LETTER = 8.2;
const GAP = 18;

/**
 * @param {string} text such as "(S (NP (DT the) (NN cat)) (VP (VBD slept)))"
 * @returns {Bracket | null} null where the brackets do not match
 */
export function readBrackets(text) {
  /** @type {Bracket} */
  const top = { name: "", children: [] };
  const open = [top];
  for (const [part] of text.matchAll(/\(\s*[^\s()]*|\)|[^\s()]+/g)) {
    const inside = open.at(-1);
    if (inside === undefined) return null;
    if (part === ")") {
      open.pop();
      continue;
    }
    const made = part.startsWith("(")
      ? { name: part.slice(1).trim(), children: [] }
      : { name: shown(part), word: true };
    inside.children?.push(made);
    if (part.startsWith("(")) open.push(made);
  }
  if (open.length !== 1 || top.children?.length !== 1) return null;
  return top.children[0];
}

/** @param {Bracket} bracket */
export function drawTree(bracket) {
  const root = hierarchy(bracket);
  const deepest = root.height;
  let right = GAP;
  /** @type {Map<object, number>} */
  const places = new Map();
  root.eachAfter((node) => {
    if (node.children === undefined) {
      const wide = Math.max(
        22,
        node.data.name.length * LETTER,
        (node.parent?.children?.length === 1 ? node.parent.data.name.length : 0) * LETTER,
      );
      places.set(node, right + wide / 2);
      right += wide + GAP;
    } else {
      const ends = [node.children[0], node.children[node.children.length - 1]].map((child) => places.get(child) ?? 0);
      places.set(node, (ends[0] + ends[1]) / 2);
    }
  });
  /** @param {typeof root} node */
  const across = (node) => places.get(node) ?? 0;
  /** @param {typeof root} node */
  const down = (node) => 22 + LEVEL * (node.data.word ? deepest : node.depth);
  const high = 22 + LEVEL * deepest + 18;
  const lines = root.links().map(({ source, target }) =>
    s("path", {
      d: `M${across(source)} ${down(source) + 6}L${across(target)} ${down(target) - 16}`,
      stroke: css("--line"),
      "stroke-width": 1.5,
      fill: "none",
    }),
  );
  const names = root.descendants().map((node) =>
    s(
      "text",
      {
        x: across(node),
        y: down(node),
        "text-anchor": "middle",
        "font-size": 14,
        "font-family": css("--font"),
        "font-weight": node.data.word ? 400 : 600,
        fill: css(node.data.word ? "--ink" : "--accent"),
      },
      node.data.name,
    ),
  );
  return s(
    "svg",
    {
      class: "tree",
      width: right,
      height: high,
      viewBox: `0 0 ${right} ${high}`,
      role: "img",
      "aria-label": "The sentence as a tree",
    },
    lines,
    names,
  );
}

/** @param {string} word as a treebank writes it */
function shown(word) {
  return { "-LRB-": "(", "-RRB-": ")" }[word] ?? word;
}
