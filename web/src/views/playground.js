/**
 * The playground: run a model on an input, follow it as it generates, and see the probability of each token.
 */

/** @import { ModelSummary, Trace, View } from "../contract" */

import { probabilityLegend } from "../page/colors/legend.js";
import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { formatCount, formatFixed, formatPercent } from "../page/format.js";
import { linkTerms } from "../page/glossary/links.js";
import { tokenLabel } from "../page/tokens.js";
import { decodingControls } from "./playground/decoding_controls.js";
import { outputRow, outputTokens, partialOutput, predictionBars } from "./playground/output.js";
import { treeOfTrace } from "./playground/parse_tree.js";
import { TreePanel } from "./playground/tree_panel.js";
import { describeConditions } from "./shared/conditions.js";

/** What the models of each task do; a task that is not listed has a generic text. @type {Record<string, string>} */
const TASK_DESCRIPTIONS = {
  translation: "The model reads your sentence and generates a translation, one [[token]] at a time.",
  "language-modeling": "The model reads a [[prompt]] and continues it, one [[token]] at a time.",
  parsing: "The model reads a sentence and generates its parse tree, one [[token]] at a time.",
  "image-classification": "The model splits an image into [[patches|patch]], attends to all of them ([[attention]]), and predicts the image’s class.",
  "masked-lm": "The model reads a text and predicts the [[masked tokens|masked token]].",
  "text-classification": "The model reads a text and predicts its label.",
  "token-classification": "The model reads a sentence and predicts a tag for each word.",
};

/** @type {View} */
export const view = {
  name: "playground",
  title: "Try it",
  fits: () => true,
  mount(element, context) {
    const introduction = h("div", {});
    const controls = decodingControls(context.store);
    const fileNote = h("p", { class: "note", hidden: context.source.live });
    const output = h("section", { class: "panel output-panel", "aria-label": "Output" });
    const settings = h("div", {});
    const treePanel = new TreePanel(context.source, context.store);
    element.append(introduction, settings, fileNote, output);
    /** @type {Trace | null} */
    let shown = null;
    let drawnTheme = "";
    let task = "";

    /** @param {Trace | null} trace */
    function draw(trace) {
      const running = context.running();
      if (running !== null) {
        shown = null;
        setChildren(output, h("h2", {}, "Running …"), partialOutput(running));
      } else if (trace === null) {
        shown = null;
        setChildren(output, h("p", { class: "note" }, "The output will appear here."));
      } else if (trace !== shown || drawnTheme !== document.documentElement.dataset.theme) {
        shown = trace;
        const hasAttention = trace.model.attention.length > 0;
        setChildren(output, ...describeOutput(trace, treePanel), hasAttention ? links(trace.generated.length > 0) : noAttention());
      }
      drawnTheme = document.documentElement.dataset.theme ?? "";
    }
    const noAttention = () => h("p", { class: "note" }, "This model has no attention, so there are no heads to show.");
    const links = (/** @type {boolean} */ isGenerated) =>
      h(
        "p",
        { "data-no-export": true },
        h("button", { type: "button", onclick: () => context.store.set({ view: "heads" }) }, "See the attention →"),
        " ",
        isGenerated && h("button", { type: "button", onclick: () => context.store.set({ view: "why" }) }, "Ask why →"),
      );
    const unsubscribe = context.onRunning(() => draw(context.trace()));

    return {
      update(state, trace) {
        const model = context.model() ?? trace?.model ?? null;
        if (model !== null && model.task !== task) {
          task = model.task;
          setChildren(introduction, explain(model));
        }
        const decodes = model !== null && model.generates && context.source.live;
        if (decodes) controls.update(state, model);
        if (controls.element.isConnected !== decodes) setChildren(settings, decodes && controls.element);
        settings.hidden = !decodes;
        if (model !== null) {
          fileNote.textContent = `This page is a standalone file with a single run. To run other inputs: regard look ${model.name}`;
        }
        draw(trace);
        if (treePanel.element.isConnected) treePanel.update(state);
      },
      destroy: unsubscribe,
      exports: {
        svg: () => domToSvg(output),
        csv: () => ({ name: "regard-output", rows: table(context.trace()) }),
      },
      read: () => {
        const hasTree = treePanel.element.isConnected;
        if (hasTree && treePanel.isLoading()) return null;
        return {
          output: output.querySelector(".output")?.textContent ?? "",
          tokens: [...output.querySelectorAll(".token[data-position]")].map((chip) => ({
            position: Number(/** @type {HTMLElement} */ (chip).dataset.position),
            text: chip.querySelector(".token-text")?.textContent ?? "",
            probability: Number(/** @type {HTMLElement} */ (chip).dataset.probability),
          })),
          labels: [...output.querySelectorAll("tr[data-label]")].map((row) => ({
            label: /** @type {HTMLElement} */ (row).dataset.label,
            probability: Number(/** @type {HTMLElement} */ (row).dataset.probability),
          })),
          tree: hasTree ? treePanel.read() : null,
        };
      },
    };
  },
};

/** @param {ModelSummary} model */
function explain(model) {
  const description = TASK_DESCRIPTIONS[model.task] ?? "The model reads your input and computes an output.";
  const probabilities = model.generates
    ? "Each token is shown with its probability; point at a token to see the alternatives."
    : "Each prediction is shown with its probability.";
  return explanation(
    "playground",
    "Run the model",
    `${description} ${probabilities}`,
    "All numbers come from the running model. The other views show how it computed this output; start with “Attention heads”. Underlined terms are in the glossary.",
  );
}

/** @param {Trace} trace @param {TreePanel} treePanel */
function describeOutput(trace, treePanel) {
  const tree = treeOfTrace(trace);
  /** @type {HTMLElement[]} */
  const parts = [h("h2", {}, "Output")];
  if (trace.grid !== undefined)
    parts.push(h("img", { class: "input-image", src: trace.grid.image, alt: "The input image" }));
  if (trace.output !== "") parts.push(h("p", { class: "output" }, trace.output));
  if (tree !== null) {
    treePanel.show(trace, tree);
    parts.push(treePanel.element);
  }
  if (trace.predictions.length > 0) parts.push(h("div", { class: "predictions" }, predictionBars(trace.predictions)));
  if (trace.generated.length > 0) {
    const probability = formatPercent(Math.exp(trace.log_probability));
    const conditions = describeConditions(trace);
    if (conditions !== "") parts.push(h("p", { class: "note conditions" }, conditions));
    parts.push(
      h("h3", {}, "Token by token"),
      outputRow(trace),
      probabilityLegend(),
      h(
        "p",
        { class: "note", "data-role": "run-summary" },
        `${formatCount(trace.generated.length)} tokens in ${trace.seconds.toFixed(2)} s. `,
        `The output has probability ${probability} (`,
        linkTerms("[[log-probability]]"),
        ` ${formatFixed(trace.log_probability)}).`,
      ),
    );
  }
  return parts;
}

/**
 * @param {Trace | null} trace
 * @returns {(string | number)[][]}
 */
function table(trace) {
  if (trace === null) return [];
  const tokens = outputTokens(trace).flatMap(({ token, generated, position }) =>
    generated === null
      ? []
      : [
          [position, "generated", tokenLabel(token), token.id, generated.probability],
          ...generated.alternatives.map((alternative) => [
            position,
            "alternative",
            tokenLabel(alternative.token),
            alternative.token.id,
            alternative.probability,
          ]),
        ],
  );
  const predictions = trace.predictions.flatMap(({ item, choices }) =>
    choices.map((choice) => ["", `label of ${item}`, choice.label, "", choice.probability]),
  );
  return [["position", "kind", "text", "token id", "probability"], ...tokens, ...predictions];
}
