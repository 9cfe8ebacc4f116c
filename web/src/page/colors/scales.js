/**
 * Color scales. Attention weights have one ramp in every view, by the square root, so that small weights can be told from
 * zero. Signed numbers have one diverging scale: blue for positive, orange for negative. Values that are masked or missing
 * are gray. Heads have the colors of `palette.js`.
 */

import { cssVariable } from "../dom.js";

/** @typedef {"weight" | "signed"} Scale */
/** @typedef {"light" | "dark"} Theme */

/** Stops from zero to the last color, for each theme; some are CSS variables, because bars have these colors, too. @type {Record<Theme, Record<"weight" | "positive" | "negative", string[]>>} */
const STOPS = {
  light: {
    weight: ["#ffffff", "#d5e3f7", "#86b3ea", "#2f74cf", "#173f92", "#0a1c4a"],
    positive: ["#ffffff", "#adccf2", "--positive", "#0a2868"],
    negative: ["#ffffff", "#f7cda3", "--negative", "#682a06"],
  },
  dark: {
    weight: ["#161b24", "#1c3357", "#235a9f", "#4a91e2", "#a3cbfb", "#f4f9ff"],
    positive: ["#161b24", "#204c8a", "--positive", "#d6e9ff"],
    negative: ["#161b24", "#7a3e10", "--negative", "#ffe4c9"],
  },
};
/** The index of the gray for masked and missing values, after the other colors of a scale. */
const MISSING = 256;
/** If no weight reaches this one, the largest weight has the last color instead of 1. */
const SMALL_WEIGHTS = 0.25;

/** @returns {Theme} */
export function currentTheme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

/** @type {Map<string, Uint32Array>} */
const scales = new Map();

/**
 * The colors of a scale as canvas pixels (ABGR): 256 from the smallest value to the largest, and the gray for none.
 * @param {Scale} scale
 */
export function scaleColors(scale) {
  const theme = currentTheme();
  const key = `${scale} ${theme}`;
  const cached = scales.get(key);
  if (cached !== undefined) return cached;
  const { weight, positive, negative } = STOPS[theme];
  const named = scale === "weight" ? weight : [...negative.slice(1).reverse(), ...positive];
  const stops = named.map((stop) => (stop.startsWith("--") ? cssVariable(stop) : stop));
  const colors = Array.from({ length: MISSING }, (_, index) => interpolate(stops, index / (MISSING - 1)));
  const pixels = Uint32Array.from([...colors, hexToRgb(cssVariable("--masked"))], ([red, green, blue]) => {
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
  scales.set(key, pixels);
  return pixels;
}

/**
 * The index of a value in the colors of its scale.
 * @param {Scale} scale
 * @param {number | null} value
 * @param {number} limit the weight, or the absolute value, that has the last color
 */
export function colorIndex(scale, value, limit) {
  if (value === null || Number.isNaN(value)) return MISSING;
  const fraction = Math.min(1, Math.abs(value) / (limit || 1));
  if (scale === "weight") return Math.round(255 * Math.sqrt(fraction));
  return Math.round(127.5 + 127.5 * Math.sign(value) * fraction);
}

/**
 * The weight that has the last color: 1, so that views and heads can be compared, or the largest weight if all are small,
 * as in a long text.
 * @param {Iterable<number>} weights
 */
export function weightLimit(weights) {
  let largest = 0;
  for (const weight of weights) if (weight > largest) largest = weight;
  return largest >= SMALL_WEIGHTS || largest === 0 ? 1 : Number(largest.toPrecision(2));
}

/**
 * Color the background of an element by a value, and its text black or white, whichever can be read better.
 * @param {HTMLElement} element
 * @param {Scale} scale
 * @param {number | null} value null: no color
 * @param {number} limit
 */
export function colorCell(element, scale, value, limit) {
  const [red, green, blue] = scaleColor(scale, value, limit);
  element.style.backgroundColor = value === null ? "" : `rgb(${red}, ${green}, ${blue})`;
  element.style.color = value === null ? "" : textColor([red, green, blue]);
}

/**
 * The color of a value: red, green, blue.
 * @param {Scale} scale
 * @param {number | null} value
 * @param {number} limit
 * @returns {[number, number, number]}
 */
export function scaleColor(scale, value, limit) {
  const pixel = scaleColors(scale)[colorIndex(scale, value, limit)];
  return [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
}

/** Black or white, whichever has the larger contrast with a color: at least 4.58 (WCAG 2.1). @param {number[]} rgb */
export function textColor(rgb) {
  const [red, green, blue] = rgb.map((value) => {
    const srgb = value / 255;
    return srgb <= 0.04045 ? srgb / 12.92 : ((srgb + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return luminance > 0.179 ? "#000" : "#fff";
}

/** @param {string} hex */
export function hexToRgb(hex) {
  return [1, 3, 5].map((start) => Number.parseInt(hex.slice(start, start + 2), 16));
}

/**
 * @param {string[]} stops
 * @param {number} fraction
 * @returns {number[]} red, green, blue
 */
function interpolate(stops, fraction) {
  const position = fraction * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(position));
  const [from, to] = [stops[first], stops[first + 1]].map(hexToRgb);
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * (position - first)));
}
