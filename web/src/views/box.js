/**
 * The box: ask a model something, watch it write, and see how sure it was of each token.
 */

/** @import { ModelSummary, TaskKind, Trace, View } from "../contract" */

import { h, put } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { sketch } from "../page/sketch.js";
import { label } from "../page/tokens.js";
import { percent, whole } from "../page/words.js";
import { answered, labelBars, soFar, tokenRow } from "./box/answer.js";
import { asking } from "./box/asking.js";
import { drawTree, readBrackets } from "./box/tree.js";

/** @type {Record<TaskKind, string>} */
const DOES = {
  translation: "It reads your sentence and writes it again in another language, one piece of a word at a time.",
  language: "It reads the beginning of a text and goes on with it, one piece of a word at a time.",
  parsing: "It reads a sentence and writes down its grammar as a tree, one bracket at a time.",
  pictures: "It cuts a picture into patches, lets them look at each other, and says what the picture shows.",
  filling: "It reads a text with a gap and says which words could stand there.",
  labelling: "It reads a text and says which of its labels fits.",
  tagging: "It reads a sentence and gives every word its part of speech.",
};

/** @type {View} */
export const view = {
  name: "box",
  title: "Try it",
  fits: () => true,
  mount(element, context) {
    const told = h("div", {});
    const ask = asking(context);
    const answer = h("section", { class: "panel answer", "aria-label": "The answer" });
    element.append(told, ask.element, answer);
    /** @type {Trace | null} */
    let shown = null;
    let drawnIn = "";
    let task = "";

    /** @param {Trace | null} trace */
    function draw(trace) {
      const running = context.running();
      if (running !== null) {
        shown = null;
        put(answer, h("h2", {}, "The model writes"), soFar(running));
      } else if (trace === null) {
        shown = null;
        put(answer, h("p", { class: "note" }, "The answer will stand here."));
      } else if (trace !== shown || drawnIn !== document.documentElement.dataset.theme) {
        shown = trace;
        put(answer, ...answerOf(trace), trace.model.attention.length > 0 && onward());
      }
      drawnIn = document.documentElement.dataset.theme ?? "";
    }
    const onward = () =>
      h(
        "p",
        { "data-sketch": "no" },
        h("button", { type: "button", onclick: () => context.store.set({ view: "heads" }) }, "See what it looked at →"),
      );
    const deaf = context.listen(() => draw(context.trace()));

    return {
      update(state, trace) {
        const model = context.model() ?? trace?.model ?? null;
        if (model !== null && model.task !== task) {
          task = model.task;
          put(told, explain(model));
        }
        ask.show(state, model);
        draw(trace);
      },
      destroy() {
        deaf();
        ask.destroy();
      },
      exports: {
        svg: () => sketch(answer),
        csv: () => ({ name: "regard-answer", rows: table(context.trace()) }),
      },
      read: () => ({
        output: answer.querySelector(".output")?.textContent ?? "",
        tokens: [...answer.querySelectorAll(".token[data-position]")].map((chip) => ({
          position: Number(/** @type {HTMLElement} */ (chip).dataset.position),
          text: chip.querySelector(".letters")?.textContent ?? "",
          probability: Number(/** @type {HTMLElement} */ (chip).dataset.probability),
        })),
        labels: [...answer.querySelectorAll("tr[data-label]")].map((row) => ({
          label: /** @type {HTMLElement} */ (row).dataset.label,
          probability: Number(/** @type {HTMLElement} */ (row).dataset.probability),
        })),
      }),
    };
  },
};

/** @param {ModelSummary} model */
function explain(model) {
  const writes = ["translation", "language", "parsing"].includes(model.task);
  const sure = writes
    ? "Under each piece stands how sure the model was of it; point at a piece to see what else it had in mind."
    : "Beside each answer stands how sure the model is of it.";
  return explanation(
    "box",
    "A model at work",
    `${DOES[model.task]} ${sure}`,
    "Nothing here is made up: every number comes from the model, while it worked. The other views show how it got there. Begin with “Heads”: what it looked at.",
  );
}

/** @param {Trace} trace */
function answerOf(trace) {
  const tree = trace.model.task === "parsing" ? readBrackets(trace.output) : null;
  /** @type {HTMLElement[]} */
  const parts = [h("h2", {}, "The answer")];
  if (trace.grid !== undefined)
    parts.push(h("img", { class: "given-picture", src: trace.grid.picture, alt: "The picture that was read" }));
  if (trace.output !== "") parts.push(h("p", { class: "output" }, trace.output));
  if (tree !== null)
    parts.push(h("div", { class: "tree-place", tabindex: 0, role: "group", "aria-label": "The tree" }, drawTree(tree)));
  if (trace.labels.length > 0) parts.push(h("div", { class: "labels" }, labelBars(trace.labels)));
  if (trace.written.length > 0) {
    parts.push(
      h("h3", {}, "Token by token"),
      tokenRow(trace),
      shadeLegend(),
      h(
        "p",
        { class: "note", "data-role": "facts" },
        `${whole(trace.written.length)} tokens in ${trace.seconds.toFixed(2)} s. `,
        `All of them together have a probability of ${percent(Math.exp(trace.total))} (log-probability ${trace.total.toFixed(2)}).`,
      ),
    );
  }
  return parts;
}

function shadeLegend() {
  const steps = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const box = h("span", { class: "shade" }, percent(share));
    box.style.setProperty("--share", String(share));
    return box;
  });
  return h("div", { class: "shades" }, h("span", { class: "note" }, "How sure the model was:"), steps);
}

/**
 * @param {Trace | null} trace
 * @returns {(string | number)[][]}
 */
function table(trace) {
  if (trace === null) return [];
  const rows = answered(trace).flatMap(({ token, written, position }) =>
    written === null
      ? []
      : [
          [position, "written", label(token), token.id, written.probability],
          ...written.alternatives.map((other) => [
            position,
            "alternative",
            label(other.token),
            other.token.id,
            other.probability,
          ]),
        ],
  );
  const labels = trace.labels.flatMap(({ of, choices }) =>
    choices.map((choice) => ["", `label of ${of}`, choice.label, "", choice.probability]),
  );
  return [["position", "kind", "text", "token id", "probability"], ...rows, ...labels];
}
