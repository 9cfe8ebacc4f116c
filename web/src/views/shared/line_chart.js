/**
 * A line chart with a cursor that reads all curves at one x. Each curve ends with a short name, such as the number of its
 * run, so that color is not the only difference.
 */

import { scaleLinear, scaleLog } from "d3-scale";
import { line } from "d3-shape";
import { s, setChildren } from "../../page/dom.js";
import { formatDuration, formatNumber } from "../../page/format.js";

/** @import { ScaleLinear, ScaleLogarithmic } from "d3-scale" */

/** @typedef {{ x: number, y: number, step: number }} Point */
/** @typedef {ScaleLinear<number, number> | ScaleLogarithmic<number, number>} Scale */

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {string} shortName what the curve ends with
 * @property {string} color
 * @property {boolean} isDashed drawn dashed, with a dot for each point
 * @property {Point[]} points as logged
 * @property {Point[]} shown as drawn
 * @property {boolean} isSmoothed whether the two differ
 */

/**
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {string} axis the name of the x axis; "time" is in seconds
 * @property {boolean} log
 * @property {[number, number]} range of the x axis
 * @property {number} width
 * @property {number} [endWidth] room for the names at the ends of the curves
 * @property {(x: number) => void} onPoint called with the x under the mouse
 */

const HEIGHT = 240;
const MARGIN = { left: 52, right: 24, top: 10, bottom: 30 };

export class LineChart {
  /** @param {Series[]} series @param {ChartOptions} options */
  constructor(series, { title, axis, log, range, width, endWidth = MARGIN.right, onPoint }) {
    this.series = series;
    const pixels = [MARGIN.left, width - endWidth];
    this.x = scaleLinear(range[0] < range[1] ? range : [range[0] - 1, range[0] + 1], pixels);
    const values = series.flatMap(({ points, shown }) => [...points, ...shown]).map(({ y }) => y);
    const valueRange = minAndMax(values.filter(Number.isFinite));
    /** Whether the y scale is logarithmic, which it cannot be if it includes zero. */
    this.isLog = log && valueRange[0] > 0;
    this.y = yScale(valueRange, this.isLog);
    this.cursor = s("g", { class: "chart-cursor" });
    this.element = s(
      "svg",
      {
        class: "chart",
        viewBox: `0 0 ${width} ${HEIGHT}`,
        width,
        height: HEIGHT,
        role: "img",
        "aria-label": `${title}. ${series.map(describe).join(" ")}`,
      },
      drawAxes(this.x, this.y, width, axis),
      series.flatMap((each) => this.drawCurve(each)),
      this.cursor,
    );
    this.element.addEventListener("mousemove", (event) => {
      const box = this.element.getBoundingClientRect();
      const x = this.x.invert(((event.clientX - box.left) * width) / box.width);
      onPoint(Math.min(range[1], Math.max(range[0], x)));
    });
  }

  /** Move the cursor; null hides it. @param {number | null} x */
  setCursor(x) {
    if (x === null) return setChildren(this.cursor);
    const dots = this.series.flatMap(({ shown, color }) => {
      const nearest = nearestPoint(shown, x);
      return nearest
        ? [s("circle", { cx: this.x(nearest.x), cy: this.y(nearest.y), r: 4, style: { stroke: color } })]
        : [];
    });
    const [top, bottom] = [MARGIN.top, HEIGHT - MARGIN.bottom];
    setChildren(this.cursor, s("line", { x1: this.x(x), x2: this.x(x), y1: top, y2: bottom }), dots);
    return undefined;
  }

  /** @param {Series} series */
  drawCurve({ name, shortName, color, isDashed, points, shown, isSmoothed }) {
    const path = line(
      (/** @type {Point} */ { x }) => this.x(x),
      ({ y }) => this.y(y),
    ).defined(({ y }) => Number.isFinite(y));
    const finite = shown.filter(({ y }) => Number.isFinite(y));
    const dots = isDashed || finite.length < 3 ? finite : [];
    const last = finite.at(-1);
    const style = { stroke: color };
    return [
      isSmoothed ? s("path", { class: "curve raw", d: path(points), style }) : null,
      s("path", { class: `curve${isDashed ? " dashed" : ""}`, d: path(shown), style }, s("title", {}, name)),
      dots.map(({ x, y }) => s("circle", { cx: this.x(x), cy: this.y(y), r: 2.6, style: { fill: color } })),
      last
        ? s(
            "text",
            { class: "curve-name", x: this.x(last.x) + 6, y: this.y(last.y) + 4, style: { fill: color } },
            shortName,
          )
        : null,
    ].flat();
  }
}

/** @param {[number, number]} range @param {boolean} log @returns {Scale} */
function yScale([lowest, highest], log) {
  const pixels = [HEIGHT - MARGIN.bottom, MARGIN.top];
  if (log) return scaleLog([lowest * 0.95, highest * 1.05], pixels);
  const padding = (highest - lowest) * 0.05 || Math.abs(highest) * 0.1 || 1;
  return scaleLinear([lowest - padding, highest + padding], pixels);
}

/** @param {Scale} x @param {Scale} y @param {number} width @param {string} axis */
function drawAxes(x, y, width, axis) {
  const labelY = HEIGHT - 12;
  const { ticks, format } = axis === "time" ? timeTicks(x, width) : stepTicks(x, width);
  return s(
    "g",
    { class: "axes" },
    thinOut(y.ticks(5)).flatMap((tick) => [
      s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
      s("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, formatNumber(tick)),
    ]),
    ticks.map((tick) => s("text", { x: x(tick), y: labelY, "text-anchor": "middle" }, format(tick))),
    s("text", { x: MARGIN.left - 6, y: labelY, "text-anchor": "end" }, axis),
  );
}

/** @param {Scale} x @param {number} width */
function stepTicks(x, width) {
  return {
    ticks: x.ticks(Math.floor(width / 110)),
    format: (/** @type {number} */ tick) => formatNumber(tick, 7),
  };
}

/** Round numbers of seconds, minutes or hours. @param {Scale} x @param {number} width */
function timeTicks(x, width) {
  const [first, last] = x.domain();
  const unit = last < 120 ? 1 : last < 7200 ? 60 : 3600;
  const ticks = scaleLinear([first / unit, last / unit], [0, 1]).ticks(Math.floor(width / 110));
  return { ticks: ticks.map((tick) => tick * unit), format: formatDuration };
}

/** A logarithmic scale has many ticks; those that start with 1, 2 or 5 are enough. @param {number[]} ticks */
function thinOut(ticks) {
  if (ticks.length <= 8) return ticks;
  return ticks.filter((tick) => "125".includes(tick.toExponential()[0]));
}

/** The point nearest to x. @param {Point[]} points @param {number} x @returns {Point | null} */
export function nearestPoint(points, x) {
  let best = null;
  for (const point of points) {
    if (Number.isNaN(point.y)) continue;
    if (best === null || Math.abs(point.x - x) < Math.abs(best.x - x)) best = point;
  }
  return best;
}

/** @param {number[]} values @returns {[number, number]} */
function minAndMax(values) {
  return [
    values.reduce((a, b) => Math.min(a, b), Infinity),
    values.reduce((a, b) => Math.max(a, b), -Infinity),
  ];
}

/** @param {Series} series */
function describe({ name, points }) {
  const finite = points.filter(({ y }) => Number.isFinite(y));
  const [first, last] = [finite[0], finite.at(-1)];
  return first && last ? `${name}: from ${formatNumber(first.y)} to ${formatNumber(last.y)}.` : `${name}: no values yet.`;
}
