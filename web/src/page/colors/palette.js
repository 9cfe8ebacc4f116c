/**
 * Colors for things that are selected one after the other: heads, training runs. The first has the first color, and so on.
 *
 * The colors of each theme were found by an optimizer: of the twelve colors that it searched for (contrast to the
 * background at least 3 : 1), the two most alike are as different as possible to readers with normal vision and with
 * deuteranopia, protanopia or tritanopia. Hue alone cannot do that, so they differ in lightness, too. Lines have a second
 * mark, their dash pattern; the thirteenth has the first color again, with another pattern.
 */

import { currentTheme } from "./scales.js";

/** @type {Record<"light" | "dark", string[]>} */
const PALETTE = {
  light: [
    ...["#0213ff", "#440044", "#ff3c6c", "#575300", "#587dff", "#2700b8"],
    ...["#ab306a", "#628401", "#7a0374", "#133600", "#9a4db5", "#c474b6"],
  ],
  dark: [
    ...["#006dff", "#f4ff27", "#d20e02", "#0ad0a3", "#a87caa", "#dc7b38"],
    ...["#efb11f", "#516e61", "#a99bff", "#9e3bb1", "#bdd0ff", "#0fffb1"],
  ],
};

/** SVG's stroke-dasharray; lines have butt caps where it is not "none". */
const DASHES = ["none", "9 4", "3 3", "14 3 3 3"];

/** @param {number} place from 0 @returns {string} such as "#b3541e" */
export function paletteColor(place) {
  const colors = PALETTE[currentTheme()];
  return colors[place % colors.length];
}

/** The dash pattern: none of the first 48 places has the color and the pattern of another. @param {number} place */
export function dashPattern(place) {
  return DASHES[(place + Math.floor(place / PALETTE.light.length)) % DASHES.length];
}
