/**
 * A diverging color scale for signed numbers: blue for positive, orange for negative, the background color for zero, and
 * gray for missing values.
 */

import { currentTheme } from "../../page/color.js";

/** @typedef {[number, number, number]} Color */

/**
 * Stops from zero outwards, for each theme.
 * @type {Record<"light" | "dark", { positive: Color[], negative: Color[], missing: Color }>}
 */
const STOPS = {
  light: {
    positive: [
      [255, 255, 255],
      [173, 204, 242],
      [47, 116, 207],
      [10, 40, 104],
    ],
    negative: [
      [255, 255, 255],
      [247, 205, 163],
      [209, 105, 28],
      [104, 42, 6],
    ],
    missing: [222, 222, 218],
  },
  dark: {
    positive: [
      [22, 27, 36],
      [32, 76, 138],
      [74, 145, 226],
      [214, 233, 255],
    ],
    negative: [
      [22, 27, 36],
      [122, 62, 16],
      [226, 134, 58],
      [255, 228, 201],
    ],
    missing: [58, 60, 66],
  },
};

/** @param {number | null} value @param {number} limit the absolute value of the strongest color @returns {Color} */
export function divergingColor(value, limit) {
  const stops = STOPS[currentTheme()];
  if (value === null || Number.isNaN(value)) return stops.missing;
  return interpolate(value >= 0 ? stops.positive : stops.negative, Math.min(1, Math.abs(value) / (limit || 1)));
}

/** @param {Color} color */
export function toCss(color) {
  return `rgb(${color.join(", ")})`;
}

/** Black or white, whichever has the larger contrast with a color: at least 4.58 (WCAG 2.1). @param {Color} color */
export function textColor(color) {
  const [red, green, blue] = color.map((value) => {
    const srgb = value / 255;
    return srgb <= 0.04045 ? srgb / 12.92 : ((srgb + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return luminance > 0.179 ? "#000" : "#fff";
}

/** @param {Color[]} stops @param {number} fraction @returns {Color} */
function interpolate(stops, fraction) {
  const position = fraction * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(position));
  const mix = (/** @type {0 | 1 | 2} */ channel) =>
    Math.round(stops[first][channel] + (stops[first + 1][channel] - stops[first][channel]) * (position - first));
  return [mix(0), mix(1), mix(2)];
}
