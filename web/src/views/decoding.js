/**
 * Decoding step by step: the input of each step, its candidates, how a hidden state becomes a token, and the search tree.
 *
 * The step and the selected node are in the store. A step shows the path to the selected node, or that of the output.
 */

import { h, setChildren } from "../page/dom.js";
import { explanation } from "../page/explanation.js";
import { linkTerms } from "../page/glossary/links.js";
import { STEP_NAMES } from "../page/tokens.js";
import { candidateTable, nodeStateLegend } from "./decoding/candidate_table.js";
import { Hypotheses, hasBeam } from "./decoding/hypotheses.js";
import { KvCacheRows } from "./decoding/kv_cache_rows.js";
import { NodePanel } from "./decoding/node_panel.js";
import { SearchTree, cacheCells, describeCacheStep } from "./decoding/search_tree.js";
import { StepControl } from "./decoding/step_control.js";
import { StepPanel } from "./decoding/step_panel.js";
import { TreeDrawing } from "./decoding/tree_drawing.js";
import { hasHeads } from "./shared/heads.js";
import { scrollable, section } from "./shared/section.js";

/** @import { CacheCell } from "./decoding/search_tree.js" */
/** @import { BeamNode, Mounted, NodeAttention, State, Trace, View, ViewContext } from "../contract.d.ts" */

/** The pruned nodes of a larger tree are collapsed at first. */
const MAX_EXPANDED_NODES = 40;

/** @type {View} */
export const view = {
  name: "decoding",
  title: "Decoding",
  fits: (model) => model === null || model.generates,
  mount: (element, context) => new DecodingView(element, context),
};

/** @implements {Mounted} */
class DecodingView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    /** @type {Trace | null | undefined} */
    this.trace = undefined; // nothing was shown yet
    /** @type {SearchTree | null} */
    this.tree = null;
    /** Node attention by node id. @type {Map<number, Promise<NodeAttention>>} */
    this.cache = new Map();
    this.drawn = { step: "", node: "" };
    this.collapsed = false;
    const load = (/** @type {number} */ id) => this.loadNode(id);
    const retry = () => this.redraw();
    this.message = h("div");
    this.stepControl = new StepControl(
      () => context.store.get().step,
      (step) => context.store.set({ step, node: -1 }),
    );
    this.afterEos = h("div");
    this.stepPanel = new StepPanel(load, retry);
    this.candidatesNote = h("span");
    this.candidates = h("div");
    this.hypotheses = new Hypotheses((id) => this.selectNode(id));
    this.collapseBox = h("input", { type: "checkbox", onchange: () => this.setCollapsed(this.collapseBox.checked) });
    this.treeFrame = scrollable("The search tree");
    this.treeFrame.classList.add("tall");
    this.treeFrame.dataset.followsStep = "";
    this.treeDrawing = new TreeDrawing(this.treeFrame, (id) => this.selectNode(id));
    this.nodePanel = new NodePanel(context, load, retry);
    this.inputNote = h("span");
    this.cacheTitle = h("span");
    this.cacheNote = h("span");
    this.cacheSummary = h("p");
    this.cacheFrame = scrollable("Rows of beams, step by step");
    this.cacheFrame.dataset.followsStep = "";
    /** @type {CacheCell[]} */
    this.cells = [];
    /** @type {KvCacheRows | null} */
    this.cacheRows = null;
    this.body = this.build();
    setChildren(element, this.message, this.body);
    this.onKey = (/** @type {KeyboardEvent} */ event) => this.stepControl.onKey(event);
    document.addEventListener("keydown", this.onKey);
    this.exports = {
      svg: () => this.exportTree(),
      csv: () => ({ name: "decoding", rows: this.rows() }),
    };
  }

  build() {
    return h(
      "div",
      { class: "decoding" },
      explanation(
        "decoding",
        "Autoregressive decoding: one token at a time",
        "At each step the [[decoder]] computes a probability for every possible next [[token]], given the input and all tokens " +
          "generated so far. Go through the steps with the slider, the numbers, or the arrow keys ← →.",
      ),
      this.stepControl.element,
      this.afterEos,
      h("div", { class: "panes" }, this.buildStep(), this.buildSearch()),
    );
  }

  /** The pane on the left: this step. */
  buildStep() {
    return h(
      "section",
      { class: "pane", "aria-label": "This step" },
      section("Input of this step", this.inputNote, this.stepPanel.input),
      section(
        "From hidden state to token",
        "The decoder's output at this step is a vector, the [[hidden state]]. Its dot product with each token's output " +
          "[[embedding]] is that token's [[logit]]; [[softmax]] turns the logits into probabilities.",
        this.stepPanel.output,
      ),
      section(
        "Attention of the selected node",
        "What the model attends to in the step that reads this token and predicts the next one. Each row is a [[head]] of " +
          "the selected layer, each bar a token; the bars of a row add up to 1. Heads that are selected in “Attention " +
          `heads” have their color. Weights of many tokens are colors instead of bars. ${STEP_NAMES}`,
        this.nodePanel.element,
      ),
    );
  }

  /** The pane on the right: the search with all of its hypotheses. It stays in view while the left one scrolls. */
  buildSearch() {
    return h(
      "section",
      { class: "pane search-pane", "aria-label": "The search" },
      section(
        "Search tree",
        "All candidates, from the start on the left. The wider a line, the more probable the token; the number is its " +
          "[[log-probability]]. Click a node to see its attention; this works for [[pruned]] nodes, too. By keyboard: ← → " +
          "go to another step, ↑ ↓ to another candidate, and Enter selects it.",
        h("div", { class: "controls" }, nodeStateLegend(), h("label", {}, this.collapseBox, " collapse pruned nodes")),
        this.treeFrame,
      ),
      section(
        "Candidates",
        this.candidatesNote,
        this.candidates,
      ),
      section(
        "Finished hypotheses",
        "The complete outputs that the search found, ranked by their scores. The first is the output.",
        this.hypotheses.element,
      ),
      section(this.cacheTitle, this.cacheNote, this.cacheSummary, this.cacheFrame),
    );
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    if (trace !== this.trace) this.setTrace(trace);
    if (!this.tree || !this.trace) return;
    const step = Math.min(Math.max(1, state.step), this.tree.steps);
    const requested = this.tree.byId.get(state.node);
    const selected = requested?.step === step ? requested : this.tree.nodeAt(step, state.node);
    const theme = document.documentElement.dataset.theme ?? "";
    const next = { step: `${step} ${selected?.id} ${theme}`, node: `${selected?.id} ${state.layer} ${theme}` };
    const before = this.drawn;
    this.drawn = next;
    if (next.step !== before.step) this.drawStep(this.tree, step, selected);
    if (next.node !== before.node) this.nodePanel.show(this.tree, selected, this.trace.source, state.layer);
  }

  destroy() {
    this.stepControl.stop();
    this.stepPanel.clear();
    this.nodePanel.clear();
    this.treeDrawing.destroy();
    this.cacheRows?.destroy();
    document.removeEventListener("keydown", this.onKey);
  }

  read() {
    const [parent, node] = [this.stepPanel.read(), this.nodePanel.read()];
    if (!this.tree || !parent || !node) return null;
    return {
      steps: this.tree.steps,
      parent,
      node,
      tree: this.treeDrawing.read(),
      hypotheses: this.hypotheses.read(),
      cache: this.cells.map(({ step, row, from, copied, node: { id } }) => ({ step, row, from, copied, node: id })),
    };
  }

  /** @param {Trace | null} trace */
  setTrace(trace) {
    this.trace = trace;
    this.cache.clear();
    this.stepControl.stop();
    this.stepPanel.clear();
    this.nodePanel.clear();
    this.drawn = { step: "", node: "" };
    const tree = trace ? new SearchTree(trace) : null;
    const reason = reasonForNoTree(tree);
    this.tree = reason === "" ? tree : null;
    this.body.hidden = reason !== "";
    setChildren(this.message, reason === "" ? null : h("p", { class: "note", role: "status" }, reason));
    if (!this.tree || !trace) return;
    setChildren(this.inputNote, describeInput(trace.model.attention.length > 0));
    setChildren(this.candidatesNote, describeCandidates(trace));
    setChildren(this.cacheTitle, hasHeads(trace.model) ? "KV cache" : "State");
    setChildren(this.cacheNote, linkTerms(describeCache(hasHeads(trace.model))));
    this.collapsed = this.tree.nodes.length > MAX_EXPANDED_NODES;
    this.collapseBox.checked = this.collapsed;
    this.stepControl.setLastStep(this.tree.steps);
    this.cacheRows?.destroy();
    this.cells = cacheCells(this.tree);
    this.cacheRows = new KvCacheRows(this.cacheFrame, this.cells, (id) => this.selectNode(id));
  }

  /** @param {SearchTree} tree @param {number} step @param {BeamNode | undefined} selected */
  drawStep(tree, step, selected) {
    this.stepControl.show(step);
    setChildren(this.afterEos, step > tree.output.length ? afterEosNote(tree.output.length) : null);
    const trace = /** @type {Trace} */ (this.trace);
    this.stepPanel.show(selected, selected ? tree.stepOf(selected) : "", trace.source);
    this.hypotheses.show(trace, selected?.id ?? -1);
    setChildren(
      this.candidates,
      candidateTable(tree, step, selected?.id ?? -1, (id) => this.selectNode(id)),
    );
    this.treeDrawing.show({ tree, step, selected: selected?.id ?? -1, collapsed: this.collapsed });
    scrollIntoView(this.treeFrame, this.treeDrawing.left(step), this.treeDrawing.top(selected?.id ?? -1));
    setChildren(this.cacheSummary, describeCacheStep(this.cells, step));
    this.cacheRows?.markStep(step);
    if (this.cacheRows) scrollIntoView(this.cacheFrame, this.cacheRows.left(step));
  }

  /** Load a node's attention, once. @param {number} id @returns {Promise<NodeAttention>} */
  loadNode(id) {
    const cached = this.cache.get(id);
    if (cached) return cached;
    const response = this.context.source.node(/** @type {Trace} */ (this.trace).id, id);
    this.cache.set(id, response);
    response.catch(() => this.cache.delete(id));
    return response;
  }

  redraw() {
    this.drawn = { step: "", node: "" };
    this.update(this.context.store.get(), this.trace ?? null);
  }

  /** @param {number} id */
  selectNode(id) {
    const node = this.tree?.byId.get(id);
    if (node) this.context.store.set({ node: id, step: node.step });
  }

  /** @param {boolean} collapsed */
  setCollapsed(collapsed) {
    this.collapsed = collapsed;
    this.redraw();
  }

  exportTree() {
    const { svg, part } = this.treeDrawing.toSvg();
    if (part !== "") this.context.notify(`${part} The file says so. All nodes are in the CSV file.`);
    return svg;
  }

  /** All nodes of the search, as a table. */
  rows() {
    const header = [
      "node",
      "parent",
      "step",
      "token",
      "log_probability",
      "total_log_probability",
      "state",
      "in_output",
      "cache_row",
      "cache_copied",
    ];
    const rows = (this.trace?.nodes ?? []).map((node) => [
      node.id,
      node.parent,
      node.step,
      node.token.text,
      node.log_probability,
      node.total_log_probability,
      node.state,
      String(node.in_output),
      node.cache_row,
      String(node.cache_copied),
    ]);
    return [header, ...rows];
  }
}

/** @param {number} length */
function afterEosNote(length) {
  const text =
    `The output was complete after step ${length}. The search continued, because another hypothesis could still have ` +
    "had a better score. This step shows its best candidate.";
  return h("p", { class: "note" }, text);
}

/** @param {boolean} hasAttention */
function describeInput(hasAttention) {
  return hasAttention
    ? "The color of a token is the attention that it gets (mean over the heads of the last layer). The model sees nothing else."
    : "The model sees nothing else. It has no attention, so there are no weights to show.";
}

/** How candidates become hypotheses. @param {Trace} trace */
function describeCandidates(trace) {
  const choice = hasBeam(trace)
    ? "Beam search keeps several hypotheses, the beams. Each step scores the continuations of all of them and keeps the best."
    : "The likeliest tokens of this step, and the one that was chosen.";
  return `${choice} Select a token to see its attention.`;
}

/** What the rows of beams hold. @param {boolean} isTransformer */
function describeCache(isTransformer) {
  const content = isTransformer
    ? "The [[keys|key]] and [[values|value]] of earlier tokens are kept in the [[KV cache]], one row per beam."
    : "What the model remembers of earlier tokens is its state, one row per beam.";
  return `${content} A beam that continues keeps its row. If two beams continue the same one, its row is copied (dashed arrows).`;
}

/** Why there is no search to show, or "". @param {SearchTree | null} tree */
function reasonForNoTree(tree) {
  if (tree === null) return "There are no steps to show yet. Run a text at the top of the page.";
  if (tree.nodes.length === 0)
    return "This trace contains no search: it is an old one, or of a model that does not generate. Run a text to see its steps.";
  return tree.isConsistent ? "" : "The search tree of this trace is inconsistent; the trace may be damaged. Run the text again.";
}

/** @param {HTMLElement} frame @param {number} left @param {number} [top] */
function scrollIntoView(frame, left, top = 0) {
  const { scrollLeft, scrollTop, clientWidth, clientHeight } = frame;
  if (left < scrollLeft || left + 120 > scrollLeft + clientWidth)
    frame.scrollLeft = Math.max(0, left - clientWidth / 2);
  if (top < scrollTop || top + 30 > scrollTop + clientHeight) frame.scrollTop = Math.max(0, top - clientHeight / 2);
}
