/**
 * How numbers are written on the page: short, with a real minus sign, and never more exact than they are.
 */

/**
 * A number in at most `digits` significant places; what is no number is a dash.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? exponent(value, digits) : plain(value, digits);
  return minus(text);
}

/**
 * A number with a fixed number of decimals, so that columns of them stand in line.
 * @param {number | null | undefined} value
 * @param {number} [decimals]
 */
export function fixed(value, decimals = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const text = value.toFixed(decimals);
  return minus(Number(text) === 0 ? text.replace("-", "") : text);
}

/** A change, with its sign. @param {number} value @param {number} [decimals] */
export function signed(value, decimals = 2) {
  const text = fixed(value, decimals);
  return value > 0 && Number(value.toFixed(decimals)) !== 0 ? `+${text}` : text;
}

/** A time as people say it. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 120) return `${short(seconds, 3)} s`;
  if (seconds < 7200) return `${short(seconds / 60, 3)} min`;
  return `${short(seconds / 3600, 3)} h`;
}

/** @param {number} value @param {number} digits */
function plain(value, digits) {
  const text = Number(value.toPrecision(digits)).toString();
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : text;
}

/** @param {number} value @param {number} digits */
function exponent(value, digits) {
  return value
    .toExponential(digits - 1)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e");
}

/** @param {string} text */
function minus(text) {
  return text.replace("-", "−");
}
