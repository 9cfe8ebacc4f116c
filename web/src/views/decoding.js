/**
 * Decoding, step by step: what each step saw, what it chose from, how a vector became a word, and the beam as a tree.
 *
 * The step and the opened node are in the store. A step shows the way to the node that is opened; without one, the
 * answer's.
 */

import { h, put } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { Beam, cacheCells, cacheInWords } from "./parts/beam.js";
import { BeamTree } from "./parts/beam_tree.js";
import { CacheRows } from "./parts/cache_rows.js";
import { candidateTable, legend } from "./parts/candidate_table.js";
import { NodePanel } from "./parts/node_panel.js";
import { finished } from "./parts/picture.js";
import { scroller, section } from "./parts/section.js";
import { StepControl } from "./parts/step_control.js";
import { StepPanel } from "./parts/step_panel.js";

/** @import { BeamNode, Mounted, NodeAttention, State, Trace, View, ViewContext } from "../contract.d.ts" */

/** A tree with more nodes than this begins with what was pruned folded away. */
const OPEN_TREE = 40;

/** @type {View} */
export const view = {
  name: "decoding",
  title: "Decoding",
  fits: (model) => model === null || ["translation", "language", "parsing"].includes(model.task),
  mount: (element, context) => new Decoding(element, context),
};

/** @implements {Mounted} */
class Decoding {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.element = element;
    this.context = context;
    /** @type {Trace | null | undefined} */
    this.trace = undefined; // not even nothing was shown yet
    /** @type {Beam | null} */
    this.beam = null;
    /** What was computed for nodes, by their ids. @type {Map<number, Promise<NodeAttention>>} */
    this.known = new Map();
    this.drawn = { step: "", node: "" };
    this.folded = false;
    const ask = (/** @type {number} */ id) => this.ask(id);
    const again = () => this.again();
    this.message = h("div");
    this.control = new StepControl(
      () => context.store.get().step,
      (step) => context.store.set({ step, node: -1 }),
    );
    this.after = h("div");
    this.step = new StepPanel(ask, again);
    this.candidates = h("div");
    this.foldBox = h("input", { type: "checkbox", onchange: () => this.fold(this.foldBox.checked) });
    this.treeFrame = scroller("The beam as a tree");
    this.treeFrame.classList.add("tall");
    this.tree = new BeamTree(this.treeFrame, (id) => this.open(id));
    this.node = new NodePanel(context, ask, again);
    this.cacheWords = h("p");
    this.cache = scroller("Rows of the cache");
    /** @type {CacheRows | null} */
    this.rowsOfCache = null;
    this.body = this.build();
    put(element, this.message, this.body);
    this.keys = (/** @type {KeyboardEvent} */ event) => this.control.key(event);
    element.addEventListener("keydown", this.keys);
    this.exports = {
      svg: () => finished(this.tree.drawing),
      csv: () => ({ name: "decoding", rows: this.rows() }),
    };
  }

  build() {
    return h(
      "div",
      { class: "decoding" },
      explanation(
        "decoding",
        "A model writes one token at a time",
        "Each step reads the source and all that is written so far, and chooses what comes next. " +
          "Move through the steps with the slider, the numbers or the arrow keys ← →.",
      ),
      this.control.element,
      this.after,
      section(
        "What this step saw",
        "Darker tokens were looked at more: the mean of all heads in the last layer. The model knows nothing else.",
        this.step.saw,
      ),
      section(
        "From a vector to a word",
        "All that was seen becomes one vector. It is compared with every token the model knows; the best " +
          "match is the likeliest.",
        this.step.way,
      ),
      section(
        "What this step chose from",
        "The search keeps several beginnings at once, its beams. Each step looks at continuations of all of them " +
          "and keeps the best. Choose a token to open its attention.",
        this.candidates,
      ),
      section(
        "The beam as a tree",
        "Every token that was a candidate, from the start on the left. A wide line is a likely token, the number its " +
          "log-probability. Click a node, or walk with the arrow keys and press Enter: its attention opens below, " +
          "also for those that were given up.",
        h("div", { class: "controls" }, legend(), h("label", {}, this.foldBox, " fold what was pruned")),
        this.treeFrame,
      ),
      section(
        "The attention of one node",
        "Where the model looks once it has read this token, to choose what follows. Each row is a head of the " +
          "chosen layer, each bar a token; the bars of a row add up to 1.",
        this.node.element,
      ),
      section(
        "The cache",
        "What was computed for earlier tokens is kept in rows, one for each beam. A beam that goes on keeps its " +
          "row. Where two go on from the same one, a row is copied: the dashed arrows.",
        this.cacheWords,
        this.cache,
      ),
    );
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    if (trace !== this.trace) this.take(trace);
    if (!this.beam || !this.trace) return;
    const step = Math.min(Math.max(1, state.step), this.beam.steps);
    const asked = this.beam.byId.get(state.node);
    const opened = asked?.step === step ? asked : this.beam.at(step, state.node);
    const theme = document.documentElement.dataset.theme ?? "";
    const wanted = { step: `${step} ${opened?.id}`, node: `${opened?.id} ${state.layer} ${theme}` };
    const before = this.drawn;
    this.drawn = wanted;
    if (wanted.step !== before.step) this.draw(this.beam, step, opened);
    if (wanted.node !== before.node) this.node.show(this.beam, opened, this.trace.source, state.layer);
  }

  destroy() {
    this.control.stop();
    this.step.forget();
    this.node.forget();
    this.element.removeEventListener("keydown", this.keys);
  }

  read() {
    const [before, node] = [this.step.read(), this.node.read()];
    if (!this.beam || !before || !node) return null;
    const cells = cacheCells(this.beam);
    return {
      steps: this.beam.steps,
      before,
      node,
      tree: this.tree.read(),
      cache: cells.map(({ step, row, from, copied, node }) => ({ step, row, from, copied, node: node.id })),
    };
  }

  /** Another trace. @param {Trace | null} trace */
  take(trace) {
    this.trace = trace;
    this.known.clear();
    this.control.stop();
    this.step.forget();
    this.node.forget();
    this.drawn = { step: "", node: "" };
    const beam = trace ? new Beam(trace) : null;
    const reason = whyNot(beam);
    this.beam = reason === "" ? beam : null;
    this.body.hidden = reason !== "";
    put(this.message, reason === "" ? null : h("p", { class: "note", role: "status" }, reason));
    if (!this.beam) return;
    this.folded = this.beam.nodes.length > OPEN_TREE;
    this.foldBox.checked = this.folded;
    this.control.reach(this.beam.steps);
    this.rowsOfCache = new CacheRows(cacheCells(this.beam), (id) => this.open(id));
    put(this.cache, this.rowsOfCache.element);
  }

  /** @param {Beam} beam @param {number} step @param {BeamNode | undefined} opened */
  draw(beam, step, opened) {
    const cells = cacheCells(beam);
    this.control.show(step);
    put(this.after, step > beam.answer.length ? afterTheEnd(beam.answer.length) : null);
    this.step.show(opened, /** @type {Trace} */ (this.trace).source);
    put(
      this.candidates,
      candidateTable(beam, step, opened?.id ?? -1, (id) => this.open(id)),
    );
    this.tree.show({ beam, step, opened: opened?.id ?? -1, folded: this.folded });
    bringIntoSight(this.treeFrame, this.tree.left(step), this.tree.top(opened?.id ?? -1));
    put(this.cacheWords, cacheInWords(cells, step));
    this.rowsOfCache?.mark(step);
    if (this.rowsOfCache) bringIntoSight(this.cache, this.rowsOfCache.left(step));
  }

  /** Ask for a node, once. @param {number} id @returns {Promise<NodeAttention>} */
  ask(id) {
    const found = this.known.get(id);
    if (found) return found;
    const answer = this.context.source.node(/** @type {Trace} */ (this.trace).id, id);
    this.known.set(id, answer);
    answer.catch(() => this.known.delete(id));
    return answer;
  }

  again() {
    this.drawn = { step: "", node: "" };
    this.update(this.context.store.get(), this.trace ?? null);
  }

  /** @param {number} id */
  open(id) {
    const node = this.beam?.byId.get(id);
    if (node) this.context.store.set({ node: id, step: node.step });
  }

  /** @param {boolean} folded */
  fold(folded) {
    this.folded = folded;
    this.again();
  }

  /** Every node of the search, for a table. */
  rows() {
    const head = ["node", "parent", "step", "token", "log_probability", "total", "state", "won", "row", "copied"];
    const nodes = this.trace?.nodes ?? [];
    const lines = nodes.map((node) => {
      const token = [node.token.text, node.log_probability, node.total];
      return [node.id, node.parent, node.step, ...token, node.state, String(node.won), node.row, String(node.copied)];
    });
    return [head, ...lines];
  }
}

/** @param {number} length */
function afterTheEnd(length) {
  const words =
    `The answer was complete after step ${length}. The search went on, to see whether another output could do better. ` +
    "Shown is the best candidate of this step.";
  return h("p", { class: "note" }, words);
}

/** Why there is nothing to show, or "". @param {Beam | null} beam */
function whyNot(beam) {
  if (beam === null) return "There is nothing to step through yet. Write a text in the box and run it.";
  if (beam.nodes.length === 0) {
    return (
      "This trace has no steps of a search in it: it is an old one, or of a model that does not write. " +
      "Run a text to see its steps."
    );
  }
  return beam.whole ? "" : "The steps of this trace do not hang together; it may be damaged. Run the text again.";
}

/** @param {HTMLElement} frame @param {number} left @param {number} [top] */
function bringIntoSight(frame, left, top = 0) {
  const { scrollLeft, scrollTop, clientWidth, clientHeight } = frame;
  if (left < scrollLeft || left + 120 > scrollLeft + clientWidth)
    frame.scrollLeft = Math.max(0, left - clientWidth / 2);
  if (top < scrollTop || top + 30 > scrollTop + clientHeight) frame.scrollTop = Math.max(0, top - clientHeight / 2);
}
