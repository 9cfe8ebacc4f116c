/**
 * Training runs: the curves of their metrics, also while they train. Several runs share the same charts.
 */

import { h, s, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { formatDuration, formatNumber } from "../page/format.js";
import { paletteColor } from "../page/colors/palette.js";
import { curve, curveFields, fieldTitle, groupIntoCharts, isNoisy, smooth, smoothingWindow } from "./runs/curves.js";
import { MetricsFeed, NO_RUNS } from "./runs/metrics_feed.js";
import { runList, runName } from "./runs/run_list.js";
import { radioRow } from "./shared/choices.js";
import { LineChart, nearestPoint } from "./shared/line_chart.js";
import { scrollable, section } from "./shared/section.js";

/** @import { Mounted, RunSummary, State, View, ViewContext } from "../contract.d.ts" */
/** @import { Axis, MetricRecord } from "./runs/curves.js" */
/** @import { Point, Series } from "./shared/line_chart.js" */

/** @typedef {{ run: RunSummary, number: number, records: MetricRecord[] }} SelectedRun */

/** The number of positions of the cursor's slider. */
const CURSOR_STEPS = 1000;

/** @type {View} */
export const view = {
  name: "runs",
  title: "Training runs",
  fits: () => true,
  single: () => "Training runs have charts of their own for several runs, so there is one pane.",
  mount: (element, context) => new RunsView(element, context),
};

/** @implements {Mounted} */
class RunsView {
  /** @param {HTMLElement} element @param {ViewContext} context */
  constructor(element, context) {
    this.context = context;
    const { store } = context;
    this.feed = new MetricsFeed(context.source, () => this.draw());
    /** The position of the cursor as a fraction of the x axis; null: at its end. @type {number | null} */
    this.cursor = null;
    /** @type {LineChart[]} */
    this.drawnCharts = [];
    this.drawnSettings = "";
    this.axisRow = radioRow("X axis", (value) => store.set({ axis: /** @type {Axis} */ (value) }));
    this.scaleRow = radioRow("Y scale", (value) => store.set({ scale: value === "log" ? "log" : "linear" }));
    const range = { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "Smoothing" };
    this.smoothing = h("input", { ...range, oninput: () => store.set({ smoothing: Number(this.smoothing.value) }) });
    this.smoothingText = h("output");
    this.list = h("div");
    this.charts = h("div", { class: "charts" });
    const cursorRange = { type: "range", min: 0, max: CURSOR_STEPS, value: CURSOR_STEPS, "aria-label": "Cursor" };
    this.cursorSlider = h("input", {
      ...cursorRange,
      oninput: () => this.setCursor(Number(this.cursorSlider.value) / CURSOR_STEPS),
    });
    this.cursorText = h("output");
    this.values = h("div");
    setChildren(element, this.build());
    this.exports = {
      svg: () => domToSvg(this.charts),
      csv: () => ({ name: "runs", rows: this.rows() }),
      caption: () => "", // no run of a model is shown
    };
  }

  build() {
    return h(
      "div",
      { class: "runs" },
      explanation(
        "runs",
        "How training went",
        "The [[loss]] measures the model's error: lower is better. The validation loss is measured on data that the model " +
          "is not trained on (the [[validation set]]); if it rises while the training loss falls, the model overfits " +
          "([[overfitting]]).",
        "Select several runs to compare them. The curves of a run in training are updated live.",
      ),
      section("Runs", "The number of a run is at the end of its curves.", this.list),
      h(
        "div",
        { class: "controls" },
        this.axisRow.element,
        this.scaleRow.element,
        h("label", { class: "choice" }, h("span", {}, "Smoothing"), this.smoothing, this.smoothingText),
      ),
      this.charts,
      section(
        "Values",
        "Point at a chart, or move this slider with the arrow keys. The values are those that were logged, without " +
          "smoothing.",
        h("div", { class: "controls" }, this.cursorSlider, this.cursorText),
        this.values,
      ),
    );
  }

  /** @returns {{ axis: Axis, log: boolean, smoothing: number }} */
  get settings() {
    const { axis, scale } = this.context.store.get();
    return { axis, log: scale === "log", smoothing: Number(this.smoothing.value) };
  }

  /** @param {State} state */
  update(state) {
    const theme = document.documentElement.dataset.theme ?? "none";
    this.smoothing.value = String(state.smoothing);
    this.feed.request(state.runs);
    const key = JSON.stringify([theme, this.settings]);
    if (key === this.drawnSettings) return;
    this.drawnSettings = key;
    this.draw();
  }

  /** @param {string} id @param {boolean} selected */
  select(id, selected) {
    const others = [...this.feed.selected].filter((other) => other !== id);
    const runs = selected ? [...others, id] : others;
    this.context.store.set({ runs: runs.length > 0 ? runs : [NO_RUNS] });
  }

  destroy() {
    this.feed.close();
  }

  read() {
    if (!this.feed.runs || !this.selectedRuns().every(({ run }) => this.feed.data.has(run.id))) return null;
    const runs = this.selectedRuns().map(({ run, records }) => {
      const curves = curveFields(records).map((field) => [
        field,
        this.shownPoints(records, field).map(({ x, y }) => [x, y]),
      ]);
      return { id: run.id, folder: run.folder, curves: Object.fromEntries(curves) };
    });
    return { ...this.settings, live: this.feed.isLive, runs };
  }

  /** @returns {SelectedRun[]} */
  selectedRuns() {
    return (this.feed.runs ?? []).flatMap((run, index) =>
      this.feed.selected.has(run.id)
        ? [{ run, number: index + 1, records: this.feed.data.get(run.id)?.records ?? [] }]
        : [],
    );
  }

  /** A curve as it is drawn. @param {MetricRecord[]} records @param {string} field @returns {Point[]} */
  shownPoints(records, field) {
    const points = curve(records, field, this.settings.axis);
    return isNoisy(field) ? smooth(points, this.settings.smoothing) : points;
  }

  draw() {
    const { axis, log, smoothing } = this.settings;
    this.axisRow.update(
      [
        { value: "step", label: "steps" },
        { value: "time", label: "time" },
      ],
      axis,
    );
    this.scaleRow.update(
      [
        { value: "linear", label: "linear" },
        { value: "log", label: "logarithmic" },
      ],
      log ? "log" : "linear",
    );
    const average = `moving average over about ${smoothingWindow(smoothing)} values; the pale line is unsmoothed`;
    setChildren(this.smoothingText, smoothing > 0 ? average : "none");
    this.drawList();
    this.drawCharts();
    this.drawValues();
  }

  drawList() {
    const focused = document.activeElement?.getAttribute("data-run");
    setChildren(
      this.list,
      runList(
        this.feed,
        paletteColor,
        (id, selected) => this.select(id, selected),
      ),
    );
    if (!focused) return;
    const box = this.list.querySelector(`[data-run="${CSS.escape(focused)}"]`);
    if (box instanceof HTMLElement) box.focus();
  }

  drawCharts() {
    const runs = this.selectedRuns();
    const range = this.xRange();
    this.drawnCharts = [];
    if (!range) {
      const text = runs.length > 0 ? "Nothing has been logged yet." : "Select a run above.";
      setChildren(this.charts, this.feed.runs?.length ? h("p", { class: "note", role: "status" }, text) : null);
      return;
    }
    const available = this.charts.clientWidth || 620;
    const width = Math.max(280, Math.min(640, available > 900 ? (available - 24) / 2 : available));
    const figures = groupIntoCharts(curveFields(runs.flatMap(({ records }) => records))).map(({ title, fields }) => {
      const series = runs
        .flatMap((run) => fields.map((field) => this.series(run, field)))
        .filter(({ points }) => points.length > 0);
      const onPoint = (/** @type {number} */ x) => this.setCursor((x - range[0]) / (range[1] - range[0] || 1));
      const chart = new LineChart(series, { ...this.settings, title, range, width, onPoint });
      this.drawnCharts.push(chart);
      const scaleNote = this.settings.log && !chart.isLog ? h("small", {}, "linear, because it includes zero") : null;
      return h(
        "figure",
        { "data-chart": title },
        h("figcaption", {}, h("b", {}, title), legend(fields), scaleNote),
        chart.element,
      );
    });
    setChildren(this.charts, figures);
    this.drawCursor();
  }

  /** @param {SelectedRun} selected @param {string} field @returns {Series} */
  series({ run, number, records }, field) {
    return {
      name: `${runName(run)}, ${fieldTitle(field)}`,
      shortName: String(number),
      color: paletteColor(number - 1),
      isDashed: field.startsWith("valid/"),
      points: curve(records, field, this.settings.axis),
      shown: this.shownPoints(records, field),
      isSmoothed: this.settings.smoothing > 0 && isNoisy(field),
    };
  }

  /** @param {number} fraction of the x axis */
  setCursor(fraction) {
    this.cursor = Math.min(1, Math.max(0, fraction));
    this.cursorSlider.value = String(Math.round(this.cursor * CURSOR_STEPS));
    this.drawCursor();
    this.drawValues();
  }

  drawCursor() {
    const range = this.xRange();
    const x = range && this.cursor !== null ? range[0] + this.cursor * (range[1] - range[0]) : null;
    for (const chart of this.drawnCharts) chart.setCursor(x);
  }

  /** The range of the x axis. @returns {[number, number] | null} */
  xRange() {
    const { axis } = this.settings;
    const xs = this.selectedRuns().flatMap(({ records }) => curve(records, "step", axis).map(({ x }) => x));
    if (xs.length === 0) return null;
    return [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))];
  }

  drawValues() {
    const range = this.xRange();
    if (!range) {
      setChildren(this.values);
      setChildren(this.cursorText);
      return;
    }
    const x = range[0] + (this.cursor ?? 1) * (range[1] - range[0]);
    const { axis } = this.settings;
    const text = axis === "time" ? `after ${formatDuration(x)}` : `near step ${formatNumber(Math.round(x), 7)}`;
    setChildren(this.cursorText, text);
    this.cursorSlider.setAttribute("aria-valuetext", text);
    const runs = this.selectedRuns();
    const fields = curveFields(runs.flatMap(({ records }) => records));
    const header = h(
      "tr",
      {},
      h("th", { scope: "col" }, "run"),
      fields.map((field) => h("th", { scope: "col", class: "number" }, fieldTitle(field))),
    );
    const rows = runs.map(({ run, number, records }) => {
      const cells = fields.map((field) => valueCell(field, nearestPoint(curve(records, field, axis), x)));
      return h("tr", {}, h("th", { scope: "row" }, `${number} · ${runName(run)}`), cells);
    });
    setChildren(
      this.values,
      scrollable("Values", h("table", { class: "numbers" }, h("thead", {}, header), h("tbody", {}, rows))),
    );
  }

  /** All records of the selected runs, as a table. @returns {(string | number)[][]} */
  rows() {
    const runs = this.selectedRuns();
    const names = [...new Set(runs.flatMap(({ records }) => records.flatMap((record) => Object.keys(record))))];
    const rows = runs.flatMap(({ run, records }) =>
      records.map((record) => [run.id, ...names.map((name) => record[name] ?? "")]),
    );
    return [["run", ...names], ...rows];
  }
}

/** @param {string} field @param {Point | null} point */
function valueCell(field, point) {
  const attributes = { class: "number", "data-field": field, "data-value": point?.y, "data-step": point?.step };
  return h(
    "td",
    attributes,
    formatNumber(point?.y, 4),
    point ? h("small", { class: "soft" }, ` at ${formatNumber(point.step, 7)}`) : null,
  );
}

/** Which line is which, for a chart with several curves per run. @param {string[]} fields */
function legend(fields) {
  if (fields.length < 2) return null;
  return fields.map((field) => {
    const sample = s(
      "svg",
      { width: 24, height: 8, "aria-hidden": "true" },
      s("line", { x1: 0, x2: 24, y1: 4, y2: 4 }),
    );
    return h("span", { class: field.startsWith("valid/") ? "key dashed" : "key" }, sample, fieldTitle(field));
  });
}
