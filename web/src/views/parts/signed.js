/**
 * Colours for numbers with a sign: blue above zero, orange below, paper at zero. What is not there at all is grey.
 */

import { theme } from "../../page/colour.js";

/** @typedef {[number, number, number]} Colour */

/**
 * From zero outwards, for each theme.
 * @type {Record<"light" | "dark", { above: Colour[], below: Colour[], none: Colour }>}
 */
const STOPS = {
  light: {
    above: [
      [255, 255, 255],
      [173, 204, 242],
      [47, 116, 207],
      [10, 40, 104],
    ],
    below: [
      [255, 255, 255],
      [247, 205, 163],
      [209, 105, 28],
      [104, 42, 6],
    ],
    none: [222, 222, 218],
  },
  dark: {
    above: [
      [22, 27, 36],
      [32, 76, 138],
      [74, 145, 226],
      [214, 233, 255],
    ],
    below: [
      [22, 27, 36],
      [122, 62, 16],
      [226, 134, 58],
      [255, 228, 201],
    ],
    none: [58, 60, 66],
  },
};

/** @param {number | null} value @param {number} most the size that has the strongest colour @returns {Colour} */
export function signedColour(value, most) {
  const stops = STOPS[theme()];
  if (value === null || Number.isNaN(value)) return stops.none;
  return between(value >= 0 ? stops.above : stops.below, Math.min(1, Math.abs(value) / (most || 1)));
}

/** @param {Colour} colour */
export function asText(colour) {
  return `rgb(${colour.join(", ")})`;
}

/** Whether a text on such a colour is better dark. @param {Colour} colour */
export function isLight([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140;
}

/** @param {Colour[]} stops @param {number} share @returns {Colour} */
function between(stops, share) {
  const at = share * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(at));
  const mix = (/** @type {0 | 1 | 2} */ channel) =>
    Math.round(stops[first][channel] + (stops[first + 1][channel] - stops[first][channel]) * (at - first));
  return [mix(0), mix(1), mix(2)];
}
