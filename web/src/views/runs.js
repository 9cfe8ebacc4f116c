/**
 * Runs: how training went, and how it goes while it goes. Curves of several runs lie over each other.
 */

import { h, put, s } from "../page/dom.js";
import { explanation } from "../page/explain.js";
import { Chart } from "./parts/chart.js";
import { radioRow } from "./parts/choose.js";
import { curve, fields, isNoisy, nearest, pictures, smoothed, stretch, titleOf } from "./parts/curves.js";
import { duration, short } from "./parts/numbers.js";
import { pictureOf } from "./parts/picture.js";
import { NONE, RunFeed } from "./parts/run_feed.js";
import { runList, runName } from "./parts/run_list.js";
import { scroller, section } from "./parts/section.js";

/** @import { Mounted, RunSummary, State, View, ViewContext } from "../contract.d.ts" */
/** @import { Axis, Line, Point } from "./parts/curves.js" */
/** @import { Series } from "./parts/chart.js" */

/** @typedef {{ run: RunSummary, number: number, lines: Line[] }} Chosen */

/** How many places the cursor has on its way. */
const PLACES = 1000;

/** @type {View} */
export const view = {
  name: "runs",
  title: "Runs",
  fits: () => true,
  mount: (element, context) => new Runs(element, context),
};

/** @implements {Mounted} */
class Runs {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store } = context;
    this.feed = new RunFeed(context.source, () => this.draw());
    /** Where values are read, as a share of the axis; null: at its end. @type {number | null} */
    this.cursor = null;
    /** @type {Chart[]} */
    this.drawn = [];
    this.drawnAs = "";
    this.axes = radioRow("Along", (value) => store.set({ axis: /** @type {Axis} */ (value) }));
    this.scales = radioRow("Scale", (value) => store.set({ scale: value === "log" ? "log" : "linear" }));
    const more = { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "Smoothing" };
    this.smoothing = h("input", { ...more, oninput: () => store.set({ smoothing: Number(this.smoothing.value) }) });
    this.smoothingWords = h("output");
    this.list = h("div");
    this.charts = h("div", { class: "charts" });
    const places = { type: "range", min: 0, max: PLACES, value: PLACES, "aria-label": "Read values at" };
    this.reader = h("input", { ...places, oninput: () => this.readAt(Number(this.reader.value) / PLACES) });
    this.readerWords = h("output");
    this.values = h("div");
    put(element, this.build());
    this.exports = {
      svg: () => pictureOf(this.charts),
      csv: () => ({ name: "runs", rows: this.rows() }),
    };
  }

  build() {
    return h(
      "div",
      { class: "runs" },
      explanation(
        "runs",
        "How training went",
        "A model learns step by step. The loss says how wrong it still is: lower is better. The validation loss is " +
          "measured on sentences it does not learn from; where it rises while the other falls, the model learns by heart.",
        "Choose several runs to lay them over each other. A run that is still training goes on growing here.",
      ),
      section("Runs on disk", "Each has a number, which stands at the end of its curves.", this.list),
      h(
        "div",
        { class: "controls" },
        this.axes.element,
        this.scales.element,
        h("label", { class: "choice" }, h("span", {}, "Smoothing"), this.smoothing, this.smoothingWords),
      ),
      this.charts,
      section(
        "Read the numbers",
        "Point at a curve, or move this slider with the arrow keys. The values are those that were written " +
          "down, not smoothed.",
        h("div", { class: "controls" }, this.reader, this.readerWords),
        this.values,
      ),
    );
  }

  /** How curves are drawn. @returns {{ axis: Axis, log: boolean, smoothing: number }} */
  get chosen() {
    const { axis, scale } = this.context.store.get();
    return { axis, log: scale === "log", smoothing: Number(this.smoothing.value) };
  }

  /** @param {State} state */
  update(state) {
    const theme = document.documentElement.dataset.theme ?? "none";
    this.smoothing.value = String(state.smoothing);
    this.feed.want(state.runs);
    const wanted = JSON.stringify([theme, this.chosen]);
    if (wanted === this.drawnAs) return;
    this.drawnAs = wanted;
    this.draw();
  }

  /** @param {string} id @param {boolean} shown */
  choose(id, shown) {
    const others = [...this.feed.chosen].filter((other) => other !== id);
    const runs = shown ? [...others, id] : others;
    this.context.store.set({ runs: runs.length > 0 ? runs : [NONE] });
  }

  destroy() {
    this.feed.close();
  }

  read() {
    if (!this.feed.runs || !this.runs().every(({ run }) => this.feed.known.has(run.id))) return null;
    const runs = this.runs().map(({ run, lines }) => {
      const curves = fields(lines).map((field) => [field, this.shown(lines, field).map(({ x, y }) => [x, y])]);
      return { id: run.id, folder: run.folder, curves: Object.fromEntries(curves) };
    });
    return { ...this.chosen, live: this.feed.live, runs };
  }

  /** The runs that are shown, each with its number and its lines. @returns {Chosen[]} */
  runs() {
    return (this.feed.runs ?? []).flatMap((run, index) =>
      this.feed.chosen.has(run.id) ? [{ run, number: index + 1, lines: this.feed.known.get(run.id)?.lines ?? [] }] : [],
    );
  }

  /** A curve as it is drawn. @param {Line[]} lines @param {string} field @returns {Point[]} */
  shown(lines, field) {
    const points = curve(lines, field, this.chosen.axis);
    return isNoisy(field) ? smoothed(points, this.chosen.smoothing) : points;
  }

  draw() {
    const { axis, log, smoothing } = this.chosen;
    this.axes.show(
      [
        { value: "step", label: "steps" },
        { value: "time", label: "time" },
      ],
      axis,
    );
    this.scales.show(
      [
        { value: "linear", label: "linear" },
        { value: "log", label: "logarithmic" },
      ],
      log ? "log" : "linear",
    );
    const over = `each point is a mean of about ${stretch(smoothing)} lines; the pale line is what was written`;
    put(this.smoothingWords, smoothing > 0 ? over : "none: every line as it was written");
    this.drawList();
    this.drawCharts();
    this.drawValues();
  }

  drawList() {
    const focused = document.activeElement?.getAttribute("data-run");
    put(
      this.list,
      runList(this.feed, (number) => this.context.colour(0, number), (id, shown) => this.choose(id, shown)),
    );
    if (!focused) return;
    const box = this.list.querySelector(`[data-run="${CSS.escape(focused)}"]`);
    if (box instanceof HTMLElement) box.focus();
  }

  drawCharts() {
    const runs = this.runs();
    const reach = this.reach();
    this.drawn = [];
    if (!reach) {
      const sentence = runs.length > 0 ? "Nothing has been written yet." : "Choose a run above.";
      put(this.charts, this.feed.runs?.length ? h("p", { class: "note", role: "status" }, sentence) : null);
      return;
    }
    const room = this.charts.clientWidth || 620;
    const width = Math.max(280, Math.min(640, room > 900 ? (room - 24) / 2 : room));
    const figures = pictures(fields(runs.flatMap(({ lines }) => lines))).map(({ title, fields: names }) => {
      const series = runs.flatMap((one) => names.map((field) => this.series(one, field)));
      const point = (/** @type {number} */ x) => this.readAt((x - reach[0]) / (reach[1] - reach[0] || 1));
      const there = series.filter(({ points }) => points.length > 0);
      const chart = new Chart(there, { ...this.chosen, title, reach, width, point });
      this.drawn.push(chart);
      const linear = this.chosen.log && !chart.log ? h("small", {}, "linear: it reaches zero") : null;
      return h(
        "figure",
        { "data-chart": title },
        h("figcaption", {}, h("b", {}, title), legend(names), linear),
        chart.element,
      );
    });
    put(this.charts, figures);
    this.mark();
  }

  /** @param {Chosen} one @param {string} field @returns {Series} */
  series({ run, number, lines }, field) {
    return {
      name: `${runName(run)}, ${titleOf(field)}`,
      mark: String(number),
      colour: this.context.colour(0, number - 1),
      dotted: field.startsWith("valid/"),
      points: curve(lines, field, this.chosen.axis),
      shown: this.shown(lines, field),
      smooth: this.chosen.smoothing > 0 && isNoisy(field),
    };
  }

  /** @param {number} share of the axis */
  readAt(share) {
    this.cursor = Math.min(1, Math.max(0, share));
    this.reader.value = String(Math.round(this.cursor * PLACES));
    this.mark();
    this.drawValues();
  }

  mark() {
    const reach = this.reach();
    const at = reach && this.cursor !== null ? reach[0] + this.cursor * (reach[1] - reach[0]) : null;
    for (const chart of this.drawn) chart.read(at);
  }

  /** Where the axis begins and ends. @returns {[number, number] | null} */
  reach() {
    const places = this.runs().flatMap(({ lines }) => curve(lines, "step", this.chosen.axis).map(({ x }) => x));
    if (places.length === 0) return null;
    return [places.reduce((one, other) => Math.min(one, other)), places.reduce((one, other) => Math.max(one, other))];
  }

  drawValues() {
    const reach = this.reach();
    if (!reach) {
      put(this.values);
      put(this.readerWords);
      return;
    }
    const at = reach[0] + (this.cursor ?? 1) * (reach[1] - reach[0]);
    const where = this.chosen.axis === "time" ? `after ${duration(at)}` : `near step ${short(Math.round(at), 7)}`;
    put(this.readerWords, where);
    this.reader.setAttribute("aria-valuetext", where);
    const runs = this.runs();
    const names = fields(runs.flatMap(({ lines }) => lines));
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, "run"),
      names.map((name) => h("th", { scope: "col", class: "number" }, titleOf(name))),
    );
    const rows = runs.map(({ run, number, lines }) => {
      const cells = names.map((name) => valueCell(name, nearest(curve(lines, name, this.chosen.axis), at)));
      return h("tr", {}, h("th", { scope: "row" }, `${number} · ${runName(run)}`), cells);
    });
    put(this.values, scroller("Values", h("table", { class: "numbers" }, h("thead", {}, head), h("tbody", {}, rows))));
  }

  /** Every line of the chosen runs, for a table. @returns {(string | number)[][]} */
  rows() {
    const runs = this.runs();
    const names = [...new Set(runs.flatMap(({ lines }) => lines.flatMap((line) => Object.keys(line))))];
    const lines = runs.flatMap(({ run, lines: all }) =>
      all.map((line) => [run.id, ...names.map((name) => line[name] ?? "")]),
    );
    return [["run", ...names], ...lines];
  }
}

/** @param {string} name @param {Point | null} found */
function valueCell(name, found) {
  const facts = { class: "number", "data-field": name, "data-value": found?.y, "data-step": found?.step };
  return h(
    "td",
    facts,
    short(found?.y, 4),
    found ? h("small", { class: "soft" }, ` at ${short(found.step, 7)}`) : null,
  );
}

/** Which line is which, where a picture has several. @param {string[]} names */
function legend(names) {
  if (names.length < 2) return null;
  return names.map((name) => {
    const sample = s(
      "svg",
      { width: 24, height: 8, "aria-hidden": "true" },
      s("line", { x1: 0, x2: 24, y1: 4, y2: 4 }),
    );
    return h("span", { class: name.startsWith("valid/") ? "key dotted" : "key" }, sample, titleOf(name));
  });
}
