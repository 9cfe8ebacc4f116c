/**
 * Lines of a run's log as curves: which there are, by which axis, and smoothed where that is asked for.
 */

/** @typedef {Record<string, number | null>} Line */
/** @typedef {{ x: number, y: number, step: number }} Point */
/** @typedef {"step" | "time"} Axis */

/** What says where a line stands, and is no curve of its own. */
const PLACES = new Set(["step", "seconds", "words", "tokens", "epoch"]);

/** What people look for first. */
const FIRST = ["loss", "valid/loss", "rate"];

/** Names of the curves in some lines, the usual ones first. @param {Line[]} lines */
export function fields(lines) {
  const names = new Set(lines.flatMap((line) => Object.keys(line)));
  const found = [...names].filter((name) => !PLACES.has(name) && lines.some((line) => typeof line[name] === "number"));
  return found.sort((one, other) => rank(one) - rank(other) || one.localeCompare(other));
}

/**
 * The pictures that the curves go into: losses together, every score of the validation by itself, the rate, and the rest.
 * @param {string[]} names
 * @returns {{ title: string, fields: string[] }[]}
 */
export function pictures(names) {
  const losses = names.filter((name) => ["loss", "valid/loss"].includes(name));
  const scores = names.filter((name) => name.startsWith("valid/") && name !== "valid/loss");
  const rest = names.filter((name) => !losses.includes(name) && !scores.includes(name) && name !== "rate");
  const found = [];
  if (losses.length) found.push({ title: "Loss", fields: losses });
  for (const name of scores) found.push({ title: titleOf(name), fields: [name] });
  if (names.includes("rate")) found.push({ title: "Learning rate", fields: ["rate"] });
  for (const name of rest) found.push({ title: titleOf(name), fields: [name] });
  return found;
}

/** A field as people read it. @param {string} name */
export function titleOf(name) {
  const known = /** @type {Record<string, string>} */ ({
    loss: "Training loss",
    "valid/loss": "Validation loss",
    "valid/bleu": "BLEU on the validation set",
    "valid/chrf": "chrF on the validation set",
    "valid/accuracy": "Accuracy on the validation set, %",
    "valid/f1": "Labelled bracket F1 on the validation set",
    plain_loss: "Training loss without smoothing of labels",
    rate: "Learning rate",
    words_per_second: "Words a second",
  });
  return known[name] ?? name.replace("valid/", "validation: ").replaceAll("_", " ");
}

/**
 * One curve. Lines of a validation have no time of their own; it is read off between the lines around them.
 * @param {Line[]} lines @param {string} field @param {Axis} axis @returns {Point[]}
 */
export function curve(lines, field, axis) {
  const clock = axis === "time" ? clockOf(lines) : null;
  /** @type {Point[]} */
  const points = [];
  for (const line of lines) {
    const [step, y] = [line.step, line[field]];
    if (typeof step !== "number" || y === undefined) continue;
    const x = clock ? clock(step) : step;
    if (x !== null) points.push({ x, y: y ?? NaN, step });
  }
  return points;
}

/** Whether a curve is noisy, so that smoothing it helps. @param {string} field */
export function isNoisy(field) {
  return field !== "rate" && !field.startsWith("valid/");
}

/**
 * An exponential mean, begun without the pull of a made-up first value (as Adam corrects its own).
 * @param {Point[]} points
 * @param {number} amount 0: none, towards 1: more
 */
export function smoothed(points, amount) {
  if (amount <= 0) return points;
  let [sum, weight] = [0, 0];
  return points.map((point) => {
    if (Number.isNaN(point.y)) return point;
    sum = amount * sum + (1 - amount) * point.y;
    weight = amount * weight + (1 - amount);
    return { ...point, y: sum / weight };
  });
}

/** How many lines such a mean stretches over, about. @param {number} amount */
export function stretch(amount) {
  return Math.round(1 / (1 - amount));
}

/** The point of a curve nearest to a place. @param {Point[]} points @param {number} x @returns {Point | null} */
export function nearest(points, x) {
  let best = null;
  for (const point of points) {
    if (Number.isNaN(point.y)) continue;
    if (best === null || Math.abs(point.x - x) < Math.abs(best.x - x)) best = point;
  }
  return best;
}

/**
 * When a step was, in seconds of training; asked for steps that rise.
 * @param {Line[]} lines
 * @returns {(step: number) => number | null}
 */
function clockOf(lines) {
  const known = lines.flatMap(({ step, seconds }) =>
    typeof step === "number" && typeof seconds === "number" ? [{ step, seconds }] : [],
  );
  let at = 0;
  return (step) => {
    if (known.length === 0) return null;
    while (at < known.length && known[at].step < step) at += 1;
    const [before, here] = [known[at - 1] ?? { step: 0, seconds: 0 }, known[at]];
    if (here === undefined) return before.seconds;
    const share = (step - before.step) / (here.step - before.step || 1);
    return before.seconds + share * (here.seconds - before.seconds);
  };
}

/** @param {string} name */
function rank(name) {
  const place = FIRST.indexOf(name);
  return place >= 0 ? place : name.startsWith("valid/") ? 2.5 : 9;
}
