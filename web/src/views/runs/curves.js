/**
 * The metrics of a run as curves: which there are, along which axis, and smoothed.
 */

/** @typedef {Record<string, number | null>} MetricRecord */
/** @import { Point } from "../shared/line_chart.js" */

/** @typedef {"step" | "time"} Axis */

/** Fields that locate a record and are no curves themselves. */
const LOCATION_FIELDS = new Set(["step", "seconds", "tokens", "epoch"]);

/** The order of the most important curves; all others follow. */
const FIRST_FIELDS = ["loss", "valid/loss", "lr"];

const TITLES = /** @type {Record<string, string>} */ ({
  loss: "Training loss",
  "valid/loss": "Validation loss",
  "valid/bleu": "Validation BLEU",
  "valid/chrf": "Validation chrF",
  "valid/accuracy": "Validation accuracy, %",
  "valid/f1": "Validation F1 (labeled brackets)",
  nll: "Training NLL (without label smoothing)",
  lr: "Learning rate",
  grad_norm: "Gradient norm",
  tokens_per_second: "Tokens per second",
  "moe/max_load": "Largest expert load",
  "moe/min_load": "Smallest expert load",
});

/** The names of the curves in some records, the most important first. @param {MetricRecord[]} records */
export function curveFields(records) {
  const names = new Set(records.flatMap((record) => Object.keys(record)));
  const fields = [...names].filter(
    (name) => !LOCATION_FIELDS.has(name) && records.some((record) => typeof record[name] === "number"),
  );
  return fields.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

/**
 * The charts for some curves: the losses share one, all others have their own.
 * @param {string[]} fields
 * @returns {{ title: string, fields: string[] }[]}
 */
export function groupIntoCharts(fields) {
  const losses = fields.filter((name) => ["loss", "valid/loss"].includes(name));
  const scores = fields.filter((name) => name.startsWith("valid/") && name !== "valid/loss");
  const rest = fields.filter((name) => !losses.includes(name) && !scores.includes(name) && name !== "lr");
  const charts = losses.length > 0 ? [{ title: "Loss", fields: losses }] : [];
  const others = [...scores, ...fields.filter((name) => name === "lr"), ...rest];
  return [...charts, ...others.map((name) => ({ title: fieldTitle(name), fields: [name] }))];
}

/** @param {string} name */
export function fieldTitle(name) {
  return TITLES[name] ?? name.replace("valid/", "validation: ").replaceAll("_", " ");
}

/**
 * One curve. Validation records have no time; it is interpolated between the records around them.
 * @param {MetricRecord[]} records @param {string} field @param {Axis} axis @returns {Point[]}
 */
export function curve(records, field, axis) {
  const timeOf = axis === "time" ? stepToTime(records) : null;
  /** @type {Point[]} */
  const points = [];
  for (const record of records) {
    const [step, y] = [record.step, record[field]];
    if (typeof step !== "number" || y === undefined) continue;
    const x = timeOf ? timeOf(step) : step;
    if (x !== null) points.push({ x, y: y ?? NaN, step });
  }
  return points;
}

/** Whether a curve is noisy, so that smoothing helps. @param {string} field */
export function isNoisy(field) {
  return field !== "lr" && !field.startsWith("valid/");
}

/**
 * An exponential moving average with bias correction, as in Adam.
 * @param {Point[]} points
 * @param {number} decay 0: no smoothing
 */
export function smooth(points, decay) {
  if (decay <= 0) return points;
  let [sum, weight] = [0, 0];
  return points.map((point) => {
    if (Number.isNaN(point.y)) return point;
    sum = decay * sum + (1 - decay) * point.y;
    weight = decay * weight + (1 - decay);
    return { ...point, y: sum / weight };
  });
}

/** The approximate number of records that a moving average covers. @param {number} decay */
export function smoothingWindow(decay) {
  return Math.round(1 / (1 - decay));
}

/**
 * Converts steps to seconds of training; must be called with ascending steps.
 * @param {MetricRecord[]} records
 * @returns {(step: number) => number | null}
 */
function stepToTime(records) {
  const times = records.flatMap(({ step, seconds }) =>
    typeof step === "number" && typeof seconds === "number" ? [{ step, seconds }] : [],
  );
  let index = 0;
  return (step) => {
    if (times.length === 0) return null;
    while (index < times.length && times[index].step < step) index += 1;
    const [before, after] = [times[index - 1] ?? { step: 0, seconds: 0 }, times[index]];
    if (after === undefined) return before.seconds;
    const fraction = (step - before.step) / (after.step - before.step || 1);
    return before.seconds + fraction * (after.seconds - before.seconds);
  };
}

/** @param {string} name */
function rank(name) {
  const index = FIRST_FIELDS.indexOf(name);
  return index >= 0 ? index : name.startsWith("valid/") ? 2.5 : 9;
}
