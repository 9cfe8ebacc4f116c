/**
 * What the patches of an image say: the class that the classifier reads from the last hidden state of each patch, as a
 * color on the image and in a table.
 */

/** @import { PatchClasses, Source, State, Store, Trace } from "../../contract" */

import { h, setChildren } from "../../page/dom.js";
import { formatProbability } from "../../page/format.js";
import { paletteColor } from "../../page/colors/palette.js";
import { LatestRequest } from "../shared/latest_request.js";
import { numberTable } from "../shared/number_table.js";
import { PatchCanvas, firstPatch } from "./patch_canvas.js";
import { imageQuery } from "./patches.js";

/** Classes with a color of their own: those that the most patches have. */
const MAX_CLASSES = 12;
const OTHER_CLASS = "#808080";
/** Of a certain class, so that the image can be seen below. */
const MAX_OPACITY = 0.8;

/** What the classifier was trained on. */
const TRAINED_ON = {
  cls: "The classifier was trained on the class token only. No patch was ever trained to name a class, so this shows what its vector happens to contain; it is no prediction of the model.",
  mean: "The classifier was trained on the mean over the vectors of all patches, never on a single one. So this shows what a patch adds to that mean; it is no prediction of the model.",
};

export class PatchClassesPanel {
  /** @param {Source} source @param {Store} store */
  constructor(source, store) {
    this.source = source;
    this.store = store;
    this.canvas = new PatchCanvas("Classes of the patches; arrow keys select a patch", (patch) => {
      if (this.trace !== null) store.set({ token: firstPatch(this.trace) + patch, token_role: "query" });
    });
    this.trainedOn = h("p", { class: "note" });
    this.problem = h("p", { class: "note", role: "status", hidden: true });
    this.selected = h("p", { "aria-live": "polite" });
    this.legend = h("ul", { class: "class-legend", "aria-label": "Classes of the patches" });
    this.table = h("div");
    this.content = h(
      "div",
      { class: "patch-classes-content" },
      this.trainedOn,
      h("div", { class: "head-images" }, h("figure", {}, this.canvas.canvas)),
      this.selected,
      this.legend,
      h("details", {}, h("summary", {}, "All patches as a table"), this.table),
    );
    this.element = h(
      "section",
      { class: "panel patch-classes", "aria-label": "What the patches say", hidden: true },
      h("h2", {}, "What the patches say"),
      h(
        "p",
        { class: "note" },
        "The last hidden state of each patch, after the final norm, goes through the classifier. Each patch has the color of its likeliest class, the stronger the likelier.",
      ),
      this.problem,
      this.content,
    );
    this.request = new LatestRequest();
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {PatchClasses | null} */
    this.classes = null;
    this.drawnFor = "";
    this.loading = false;
  }

  /** @param {Trace} trace @param {State} state */
  update(trace, state) {
    this.element.hidden = trace.grid === undefined;
    if (trace.grid === undefined) return;
    if (trace !== this.trace) this.load(trace);
    if (this.classes !== null) this.draw(trace, this.classes, state);
  }

  /** @param {Trace} trace */
  load(trace) {
    [this.trace, this.classes, this.drawnFor] = [trace, null, ""];
    this.content.hidden = true;
    this.problem.hidden = false;
    this.loading = true;
    setChildren(this.problem, "Reading the patches …");
    this.request.start(
      this.source.patchClasses(trace.id),
      (classes) => {
        this.loading = false;
        this.classes = classes;
        this.content.hidden = false;
        this.problem.hidden = true;
        this.draw(trace, classes, this.store.get());
      },
      (message) => {
        this.loading = false;
        setChildren(this.problem, message);
      },
    );
  }

  /** @param {Trace} trace @param {PatchClasses} classes @param {State} state */
  draw(trace, classes, state) {
    const first = firstPatch(trace);
    const patches = classes.tokens.slice(first);
    const ranked = rankLabels(patches.map(({ label }) => label));
    const color = (/** @type {string} */ label) => {
      const place = ranked.findIndex((each) => each.label === label);
      return place < MAX_CLASSES ? paletteColor(place) : OTHER_CLASS;
    };
    const mark = (/** @type {string} */ label) => {
      const place = ranked.findIndex((each) => each.label === label);
      return place < MAX_CLASSES ? String(place + 1) : "";
    };
    const query = imageQuery(state, trace);
    this.canvas.show(
      /** @type {NonNullable<Trace["grid"]>} */ (trace.grid),
      patches.map(({ label, probability }) => ({
        color: color(label),
        opacity: MAX_OPACITY * state.overlay * probability,
        text: mark(label),
      })),
      query - first,
    );
    setChildren(this.selected, this.describe(trace, classes, query));
    const key = `${trace.id} ${document.documentElement.dataset.theme}`;
    if (key === this.drawnFor) return;
    this.drawnFor = key;
    setChildren(this.trainedOn, TRAINED_ON[classes.pooling]);
    setChildren(
      this.legend,
      ranked.slice(0, MAX_CLASSES).map(({ label, count }) => legendEntry(color(label), mark(label), label, count)),
      ranked.length > MAX_CLASSES &&
        legendEntry(OTHER_CLASS, "", "other classes", ranked.slice(MAX_CLASSES).reduce((sum, { count }) => sum + count, 0)),
    );
    setChildren(this.table, patchTable(trace, classes));
  }

  /** @param {Trace} trace @param {PatchClasses} classes @param {number} query */
  describe(trace, classes, query) {
    if (query < firstPatch(trace)) return `The model says ${classes.label}. Select a patch to see its class.`;
    const { label, probability, image_class_probability: ofImage } = classes.tokens[query];
    const same = label === classes.label ? "" : ` It gives ${classes.label}, the class of the image, ${formatProbability(ofImage)}.`;
    return `Patch ${trace.source[query].piece} says ${label}: ${formatProbability(probability)}.${same}`;
  }

  read() {
    if (this.classes === null) return null;
    const cells = [...this.table.querySelectorAll("tbody tr")].map((row) =>
      [...row.children].map((cell) => cell.textContent ?? ""),
    );
    return { ...this.classes, table: cells, legend: [...this.legend.children].map((entry) => entry.textContent ?? "") };
  }
}

/** Labels by how many patches have them. @param {string[]} labels */
function rankLabels(labels) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].map(([label, count]) => ({ label, count })).sort((a, b) => b.count - a.count);
}

/** @param {string} color @param {string} number @param {string} label @param {number} count */
function legendEntry(color, number, label, count) {
  const swatch = h("span", { class: "swatch" });
  swatch.style.backgroundColor = color;
  const patches = `${count} ${count === 1 ? "patch" : "patches"}`;
  return h("li", {}, swatch, number !== "" && h("b", {}, number), ` ${label} `, h("span", { class: "note" }, patches));
}

/** @param {Trace} trace @param {PatchClasses} classes */
function patchTable(trace, { label: imageLabel, tokens }) {
  const first = firstPatch(trace);
  const rows = tokens.slice(first).map(({ label, probability, image_class_probability: ofImage }, patch) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, trace.source[first + patch].piece),
      h("td", {}, label),
      h("td", { class: "number" }, formatProbability(probability)),
      h("td", { class: "number" }, formatProbability(ofImage)),
    ),
  );
  return numberTable("Classes of the patches", ["token", "class", "probability", `of ${imageLabel}`], rows);
}
