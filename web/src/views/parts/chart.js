/**
 * Curves over a common axis, with a line that reads them at one place. Each curve ends with the number of its run, so that
 * colour is never all there is.
 */

import { scaleLinear, scaleLog } from "d3-scale";
import { line } from "d3-shape";
import { put, s } from "../../page/dom.js";
import { nearest } from "./curves.js";
import { duration, short } from "./numbers.js";

/** @import { ScaleLinear, ScaleLogarithmic } from "d3-scale" */
/** @import { Axis, Point } from "./curves.js" */

/** @typedef {ScaleLinear<number, number> | ScaleLogarithmic<number, number>} Scale */

/**
 * @typedef {object} Series
 * @property {string} name the run and the field
 * @property {string} mark the number of the run
 * @property {string} colour
 * @property {boolean} dotted whether it is of a validation: few points, dashed between them
 * @property {Point[]} points as they were written
 * @property {Point[]} shown as they are drawn
 * @property {boolean} smooth whether that is something else
 */

/**
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {Axis} axis
 * @property {boolean} log
 * @property {[number, number]} reach the first and last place of the axis
 * @property {number} width
 * @property {(x: number) => void} point called with the place under the mouse
 */

const HEIGHT = 240;
const MARGIN = { left: 52, right: 24, top: 10, bottom: 30 };

export class Chart {
  /** @param {Series[]} series @param {ChartOptions} options */
  constructor(series, { title, axis, log, reach, width, point }) {
    this.series = series;
    const sides = [MARGIN.left, width - MARGIN.right];
    this.across = scaleLinear(reach[0] < reach[1] ? reach : [reach[0] - 1, reach[0] + 1], sides);
    const values = series.flatMap(({ points, shown }) => [...points, ...shown]).map(({ y }) => y);
    const range = extremes(values.filter(Number.isFinite));
    /** Whether the scale is logarithmic; one that has to show zero cannot be. */
    this.log = log && range[0] > 0;
    this.up = scaleUp(range, this.log);
    this.reading = s("g", { class: "reading" });
    this.element = s(
      "svg",
      {
        class: "chart",
        viewBox: `0 0 ${width} ${HEIGHT}`,
        width,
        height: HEIGHT,
        role: "img",
        "aria-label": `${title}. ${series.map(inWords).join(" ")}`,
      },
      axes(this.across, this.up, width, axis),
      series.flatMap((one) => this.curve(one)),
      this.reading,
    );
    this.element.addEventListener("mousemove", (event) => {
      const box = this.element.getBoundingClientRect();
      const x = this.across.invert(((event.clientX - box.left) * width) / box.width);
      point(Math.min(reach[1], Math.max(reach[0], x)));
    });
  }

  /** Read all curves at one place. @param {number | null} x */
  read(x) {
    if (x === null) return put(this.reading);
    const dots = this.series.flatMap(({ shown, colour }) => {
      const near = nearest(shown, x);
      return near
        ? [s("circle", { cx: this.across(near.x), cy: this.up(near.y), r: 4, style: { stroke: colour } })]
        : [];
    });
    const [top, floor] = [MARGIN.top, HEIGHT - MARGIN.bottom];
    put(this.reading, s("line", { x1: this.across(x), x2: this.across(x), y1: top, y2: floor }), dots);
    return undefined;
  }

  /** @param {Series} series */
  curve({ name, mark, colour, dotted, points, shown, smooth }) {
    const path = line(
      (/** @type {Point} */ { x }) => this.across(x),
      ({ y }) => this.up(y),
    ).defined(({ y }) => Number.isFinite(y));
    const there = shown.filter(({ y }) => Number.isFinite(y));
    const dots = dotted || there.length < 3 ? there : [];
    const last = there.at(-1);
    const style = { stroke: colour };
    return [
      smooth ? s("path", { class: "curve raw", d: path(points), style }) : null,
      s("path", { class: `curve${dotted ? " dotted" : ""}`, d: path(shown), style }, s("title", {}, name)),
      dots.map(({ x, y }) => s("circle", { cx: this.across(x), cy: this.up(y), r: 2.6, style: { fill: colour } })),
      last
        ? s(
            "text",
            { class: "mark", x: this.across(last.x) + 6, y: this.up(last.y) + 4, style: { fill: colour } },
            mark,
          )
        : null,
    ].flat();
  }
}

/** @param {[number, number]} range @param {boolean} log @returns {Scale} */
function scaleUp([low, high], log) {
  const sides = [HEIGHT - MARGIN.bottom, MARGIN.top];
  if (log) return scaleLog([low * 0.95, high * 1.05], sides);
  const space = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  return scaleLinear([low - space, high + space], sides);
}

/** @param {Scale} across @param {Scale} up @param {number} width @param {Axis} axis */
function axes(across, up, width, axis) {
  const floor = HEIGHT - 12;
  const { places, write } = axis === "time" ? times(across, width) : steps(across, width);
  return s(
    "g",
    { class: "axes" },
    fewer(up.ticks(5)).flatMap((tick) => [
      s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: up(tick), y2: up(tick) }),
      s("text", { x: MARGIN.left - 6, y: up(tick) + 4, "text-anchor": "end" }, short(tick)),
    ]),
    places.map((tick) => s("text", { x: across(tick), y: floor, "text-anchor": "middle" }, write(tick))),
    s("text", { x: MARGIN.left - 6, y: floor, "text-anchor": "end" }, axis),
  );
}

/** @param {Scale} across @param {number} width */
function steps(across, width) {
  return { places: across.ticks(Math.floor(width / 110)), write: (/** @type {number} */ tick) => short(tick, 7) };
}

/** Round numbers of seconds, minutes or hours. @param {Scale} across @param {number} width */
function times(across, width) {
  const [first, last] = across.domain();
  const unit = last < 120 ? 1 : last < 7200 ? 60 : 3600;
  const places = scaleLinear([first / unit, last / unit], [0, 1]).ticks(Math.floor(width / 110));
  return { places: places.map((tick) => tick * unit), write: duration };
}

/** A logarithmic scale has many ticks; those that begin with 1, 2 or 5 are enough. @param {number[]} ticks */
function fewer(ticks) {
  if (ticks.length <= 8) return ticks;
  return ticks.filter((tick) => "125".includes(tick.toExponential()[0]));
}

/** @param {number[]} values @returns {[number, number]} */
function extremes(values) {
  return [
    values.reduce((one, other) => Math.min(one, other), Infinity),
    values.reduce((one, other) => Math.max(one, other), -Infinity),
  ];
}

/** @param {Series} series */
function inWords({ name, points }) {
  const there = points.filter(({ y }) => Number.isFinite(y));
  const [first, last] = [there[0], there.at(-1)];
  return first && last ? `${name}: from ${short(first.y)} to ${short(last.y)}.` : `${name}: nothing yet.`;
}
