/**
 * How similar the occurrences of one word are: the mean cosine within groups of sentences and between them by layer, as
 * curves and a table, and the cosine of every two occurrences in the chosen layer.
 */

/** @import { ContextualVectors } from "../../contract" */

import { signedLegend } from "../../page/colors/legend.js";
import { paletteColor } from "../../page/colors/palette.js";
import { h, s, setChildren } from "../../page/dom.js";
import { formatFixed } from "../../page/format.js";
import { LineChart } from "../shared/line_chart.js";
import { NumberMatrices, signedRange } from "../shared/number_matrix.js";
import { scrollable } from "../shared/section.js";
import { pairName } from "./sentences.js";

const MAX_CHART_WIDTH = 520;

export class Similarities {
  constructor() {
    this.matrices = new NumberMatrices();
    this.element = h("div", { class: "similarities" });
  }

  /** @param {ContextualVectors} vectors @param {string[]} groups @param {number} stage @param {string} word */
  show(vectors, groups, stage, word) {
    this.matrices.destroy();
    const pairs = vectors.layers[0].groups;
    if (pairs.length === 0) {
      const text = "Give sentences that have a word in common: then its occurrences are compared here.";
      return void setChildren(this.element, h("p", { class: "note" }, text));
    }
    return void setChildren(
      this.element,
      h("h3", {}, `How similar are the occurrences of “${word}”?`),
      h(
        "p",
        { class: "note" },
        "The mean cosine similarity of every two occurrences, within a group of sentences and between groups. Where the " +
          "curves part, the layers tell the groups apart.",
      ),
      h(
        "div",
        { class: "charts" },
        this.chart(vectors, groups, stage),
        this.matrix(vectors, stage, word),
      ),
      table(vectors, groups, stage),
    );
  }

  /** @param {ContextualVectors} vectors @param {string[]} groups @param {number} stage */
  chart({ layers }, groups, stage) {
    const series = layers[0].groups.map(({ first, second }, pair) => {
      const points = layers.map(({ groups: found }, index) => ({ x: index - 1, y: found[pair].mean, step: index - 1 }));
      const name = pairName(groups, first, second);
      return {
        name,
        shortName: `${pair + 1}`,
        color: paletteColor(pair),
        isDashed: first !== second,
        points,
        shown: points,
        isSmoothed: false,
      };
    });
    const chart = new LineChart(series, {
      title: "Mean cosine similarity by layer",
      axis: "layer",
      log: false,
      range: [-1, layers.length - 2],
      width: Math.max(280, Math.min(MAX_CHART_WIDTH, this.element.clientWidth || MAX_CHART_WIDTH)),
      onPoint: () => undefined,
    });
    chart.setCursor(stage - 1);
    const keys = series.map(({ name, isDashed, color, shortName }) =>
      h(
        "span",
        { class: isDashed ? "key dashed" : "key" },
        s(
          "svg",
          { width: 24, height: 8, "aria-hidden": "true", style: { stroke: color } },
          s("line", { x1: 0, x2: 24, y1: 4, y2: 4 }),
        ),
        `${shortName} ${name}`,
      ),
    );
    return h(
      "figure",
      {},
      h("figcaption", {}, h("b", {}, "Mean cosine similarity"), keys),
      chart.element,
      h("p", { class: "note" }, "−1: static embeddings, 0: the input of layer 1."),
    );
  }

  /** @param {ContextualVectors} vectors @param {number} stage @param {string} word */
  matrix({ layers, words, occurrences }, stage, word) {
    const { cosines, name } = layers[stage];
    if (cosines.length < 2) return null;
    const label = (/** @type {number} */ index) => `${word} ${words[occurrences[index]].sentence + 1}`;
    const { lowest, highest } = signedRange(cosines.flat());
    return h(
      "figure",
      { class: "cosine-matrix" },
      h("figcaption", {}, h("b", {}, `Every two occurrences, ${name}`)),
      this.matrices.add(cosines, {
        label: `The cosine similarity of every two occurrences of ${word}, ${name}.`,
        rowName: label,
        columnName: label,
        describe: (row, column) => formatFixed(cosines[row][column], 4),
        limit: 1,
        maxHeight: 330,
      }),
      signedLegend(Math.min(0, lowest), Math.max(highest, 1), 1),
    );
  }
}

/** @param {ContextualVectors} vectors @param {string[]} groups @param {number} stage */
function table({ layers }, groups, stage) {
  const header = h(
    "tr",
    {},
    h("th", { scope: "col" }, "after"),
    layers[0].groups.map(({ first, second, pairs }) =>
      h(
        "th",
        { scope: "col", class: "number" },
        pairName(groups, first, second),
        h("br"),
        h("small", {}, pairs === 1 ? "1 pair" : `${pairs} pairs`),
      ),
    ),
  );
  const rows = layers.map(({ name, groups: found }, index) =>
    h(
      "tr",
      { class: index === stage ? "current" : "" },
      h("th", { scope: "row" }, name),
      found.map(({ first, second, mean }) =>
        h(
          "td",
          { class: "number", "data-stage": index, "data-pair": `${first}.${second}`, "data-mean": mean },
          formatFixed(mean, 3),
        ),
      ),
    ),
  );
  return scrollable(
    "Mean cosine similarity by layer",
    h("table", { class: "numbers" }, h("thead", {}, header), h("tbody", {}, rows)),
  );
}
