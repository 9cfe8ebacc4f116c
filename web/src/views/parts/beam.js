/**
 * The nodes of a search as a tree, and the questions that the view of decoding asks about it.
 */

/** @import { BeamNode, Token, Trace } from "../../contract.d.ts" */

/** What became of a node, in one word; a node of the answer is "won" whatever else it is. @param {BeamNode} node */
export function fate(node) {
  return node.won ? "won" : node.state;
}

/** What became of it, in words for a person. @param {BeamNode} node */
export function fateInWords(node) {
  if (node.won) return node.state === "ended" ? "ended, and won" : "part of the answer";
  return { kept: "kept", ended: "ended", pruned: "pruned" }[node.state];
}

/** A sign for each, so that nothing depends on colour alone. */
export const SIGNS = { won: "★", kept: "●", ended: "■", pruned: "✕" };

/** The nodes of a trace, found by their ids, children and steps. */
export class Beam {
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
      list(this.byParent, node.parent).push(node);
      list(this.byStep, node.step).push(node);
    }
    this.steps = Math.max(0, ...this.byStep.keys());
    this.answer = trace.nodes.filter((node) => node.won).sort((one, other) => one.step - other.step);
    /** What was there before the first step: the start, or a prompt. @type {Token[]} */
    this.given = trace.target.slice(0, Math.max(0, trace.target.length - trace.written.length));
    this.beginning = spelled(this.given) || "start";
  }

  /** @param {number} id */
  children(id) {
    return this.byParent.get(id) ?? [];
  }

  /** The nodes of a step, best first. @param {number} step */
  candidates(step) {
    return [...(this.byStep.get(step) ?? [])].sort((one, other) => other.total - one.total);
  }

  /** A node and all before it, first to last. @param {number} id @returns {BeamNode[]} */
  path(id) {
    const found = [];
    for (let node = this.byId.get(id); node; node = this.byId.get(node.parent)) {
      found.push(node);
      if (found.length > this.nodes.length) break; // a damaged trace may go round
    }
    return found.reverse();
  }

  /** What a node had written, as a person reads it. @param {number} id */
  text(id) {
    return spelled(this.path(id).map((node) => node.token));
  }

  /**
   * The node of a step on the way to one that is opened, or of the answer; behind its end, the best of the step.
   * @param {number} step
   * @param {number} opened
   * @returns {BeamNode | undefined}
   */
  at(step, opened) {
    const here = (/** @type {BeamNode} */ node) => node.step === step;
    return this.path(opened).find(here) ?? this.answer.find(here) ?? this.candidates(step)[0];
  }

  /** Whether nodes hang together: every parent is there and stands one step before. */
  get whole() {
    return this.nodes.every((node) => {
      const parent = this.byId.get(node.parent);
      return node.parent === -1 ? node.step === 1 : parent !== undefined && parent.step === node.step - 1;
    });
  }
}

/**
 * Tokens as a line of text: a space between words, and where a token is one.
 * @param {Token[]} tokens
 */
function spelled(tokens) {
  let [text, word] = ["", -1];
  for (const token of tokens) {
    const part = token.text.replace(/[␣⏎⇥␍]/g, " ");
    text += token.word === word || text.endsWith(" ") || part.startsWith(" ") ? part : ` ${part}`;
    word = token.word;
  }
  return text.trim();
}

/**
 * Where the cache of each row came from, step by step.
 * @typedef {{ step: number, row: number, from: number, copied: boolean, node: BeamNode }} CacheCell
 */

/** @param {Beam} beam @returns {CacheCell[]} */
export function cacheCells(beam) {
  return beam.nodes
    .filter((node) => node.row >= 0)
    .map((node) => {
      const parent = beam.byId.get(node.parent);
      return { step: node.step, row: node.row, from: parent ? parent.row : 0, copied: node.copied, node };
    });
}

/** What happened to the cache in a step, as sentences. @param {CacheCell[]} cells @param {number} step */
export function cacheInWords(cells, step) {
  const here = cells.filter((cell) => cell.step === step);
  if (here.length === 0) return `After step ${step} nothing went on, so no row was needed.`;
  const reused = here.filter((cell) => !cell.copied).map((cell) => cell.row + 1);
  const copied = here
    .filter((cell) => cell.copied)
    .map((cell) => `row ${cell.row + 1} was copied from row ${cell.from + 1}`);
  const parts = [];
  if (reused.length) parts.push(`${rows(reused)} went on with what ${reused.length > 1 ? "they" : "it"} had`);
  if (copied.length) parts.push(copied.join(", "));
  return `Step ${step}: ${parts.join("; ")}.`;
}

/** @param {number[]} numbers */
function rows(numbers) {
  if (numbers.length === 1) return `row ${numbers[0]}`;
  return `rows ${numbers.slice(0, -1).join(", ")} and ${numbers[numbers.length - 1]}`;
}

/** @template Key, Value @param {Map<Key, Value[]>} map @param {Key} key @returns {Value[]} */
function list(map, key) {
  const found = map.get(key);
  if (found) return found;
  /** @type {Value[]} */
  const made = [];
  map.set(key, made);
  return made;
}
