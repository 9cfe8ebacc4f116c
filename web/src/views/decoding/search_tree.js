/**
 * The search tree of a trace, and the queries that the decoding view makes on it.
 */

import { stepLabel } from "../../page/tokens.js";

/** @import { BeamNode, Token, Trace } from "../../contract.d.ts" */

/** The displayed state of a node; nodes of the output have their own. @param {BeamNode} node */
export function displayState(node) {
  return node.in_output ? "output" : node.state;
}

/** @param {BeamNode} node */
export function describeState(node) {
  if (node.in_output) return node.state === "finished" ? "finished, the output" : "part of the output";
  return node.state;
}

/** A symbol for each state, so that nothing depends on color alone. */
export const STATE_SYMBOLS = { output: "★", active: "●", finished: "■", pruned: "✕" };

/** The nodes of a trace by id, parent and step. */
export class SearchTree {
  /** @param {Trace} trace */
  constructor(trace) {
    this.nodes = trace.nodes;
    /** @type {Map<number, BeamNode>} */
    this.byId = new Map(trace.nodes.map((node) => [node.id, node]));
    /** @type {Map<number, BeamNode[]>} */
    this.byParent = new Map();
    /** @type {Map<number, BeamNode[]>} */
    this.byStep = new Map();
    for (const node of trace.nodes) {
      append(this.byParent, node.parent, node);
      append(this.byStep, node.step, node);
    }
    this.steps = Math.max(0, ...this.byStep.keys());
    this.output = trace.nodes.filter((node) => node.in_output).sort((a, b) => a.step - b.step);
    /** What precedes the first step: bos, or the prompt. @type {Token[]} */
    this.prefix = trace.target.slice(0, Math.max(0, trace.target.length - trace.generated.length));
    this.rootLabel = joinTokens(this.prefix) || "start";
    /** The steps whose token was given, so that there was no other candidate. */
    this.givenSteps = trace.request.prefix_tokens?.length ?? 0;
  }

  /** @param {BeamNode} node */
  describe(node) {
    return node.step <= this.givenSteps ? `given, ${describeState(node)}` : describeState(node);
  }

  /** @param {number} id */
  children(id) {
    return this.byParent.get(id) ?? [];
  }

  /** The candidates of a step, best first. @param {number} step */
  candidates(step) {
    return [...(this.byStep.get(step) ?? [])].sort((a, b) => b.total_log_probability - a.total_log_probability);
  }

  /** The nodes from the root to a node. @param {number} id @returns {BeamNode[]} */
  path(id) {
    const nodes = [];
    for (let node = this.byId.get(id); node; node = this.byId.get(node.parent)) {
      nodes.push(node);
      if (nodes.length > this.nodes.length) break; // a damaged trace may contain a cycle
    }
    return nodes.reverse();
  }

  /** The generated text up to a node. @param {number} id */
  text(id) {
    return joinTokens(this.path(id).map((node) => node.token));
  }

  /**
   * The node of a step on the path to the selected node, or else of the output; after the output's end, the best of the
   * step.
   * @param {number} step
   * @param {number} selected
   * @returns {BeamNode | undefined}
   */
  nodeAt(step, selected) {
    const isAtStep = (/** @type {BeamNode} */ node) => node.step === step;
    return this.path(selected).find(isAtStep) ?? this.output.find(isAtStep) ?? this.candidates(step)[0];
  }

  /** The step that reads a node's token. It has written nothing, unless the output goes on from there. @param {BeamNode} node */
  stepAfter(node) {
    const next = node.in_output ? this.children(node.id).find((child) => child.in_output) : undefined;
    return stepLabel(node.token, next?.token ?? null);
  }

  /** The step that writes a node's token. @param {BeamNode} node */
  stepOf(node) {
    const read = this.byId.get(node.parent)?.token ?? this.prefix[this.prefix.length - 1];
    return read === undefined ? "" : stepLabel(read, node.token);
  }

  /** Whether every parent exists and is one step earlier. */
  get isConsistent() {
    return this.nodes.every((node) => {
      const parent = this.byId.get(node.parent);
      return node.parent === -1 ? node.step === 1 : parent !== undefined && parent.step === node.step - 1;
    });
  }
}

/**
 * Tokens as text, with spaces between words.
 * @param {Token[]} tokens
 */
function joinTokens(tokens) {
  let [text, word] = ["", -1];
  for (const token of tokens) {
    const part = token.text.replace(/[␣⏎⇥␍]/g, " ");
    text += token.word === word || text.endsWith(" ") || part.startsWith(" ") ? part : ` ${part}`;
    word = token.word;
  }
  return text.trim();
}

/**
 * A row of the KV cache after a step, and the row it came from.
 * @typedef {{ step: number, row: number, from: number, copied: boolean, node: BeamNode }} CacheCell
 */

/** @param {SearchTree} tree @returns {CacheCell[]} */
export function cacheCells(tree) {
  return tree.nodes
    .filter((node) => node.cache_row >= 0)
    .map((node) => {
      const from = tree.byId.get(node.parent)?.cache_row ?? 0;
      return { step: node.step, row: node.cache_row, from, copied: node.cache_copied, node };
    });
}

/** What happened to the KV cache in a step. @param {CacheCell[]} cells @param {number} step */
export function describeCacheStep(cells, step) {
  const current = cells.filter((cell) => cell.step === step);
  if (current.length === 0) return `After step ${step} no beam was left, so no row was needed.`;
  const reused = current.filter((cell) => !cell.copied).map((cell) => cell.row + 1);
  const copied = current
    .filter((cell) => cell.copied)
    .map((cell) => `row ${cell.row + 1} was copied from row ${cell.from + 1}`);
  const parts = [];
  if (reused.length) parts.push(`${listRows(reused)} ${reused.length > 1 ? "were" : "was"} kept`);
  if (copied.length) parts.push(copied.join(", "));
  return `Step ${step}: ${parts.join("; ")}.`;
}

/** @param {number[]} rows */
function listRows(rows) {
  if (rows.length === 1) return `row ${rows[0]}`;
  return `rows ${rows.slice(0, -1).join(", ")} and ${rows[rows.length - 1]}`;
}

/** @template Key, Value @param {Map<Key, Value[]>} map @param {Key} key @param {Value} value */
function append(map, key, value) {
  const values = map.get(key);
  if (values) values.push(value);
  else map.set(key, [value]);
}
