/**
 * Colors: a ramp for attention weights (by the square root, so that small weights can be told from zero), and a hue for
 * each head, the same everywhere.
 */

/** Stops of the ramp from weight 0 to the maximum, for each theme. */
const STOPS = {
  light: ["#ffffff", "#d5e3f7", "#86b3ea", "#2f74cf", "#173f92", "#0a1c4a"],
  dark: ["#161b24", "#1c3357", "#235a9f", "#4a91e2", "#a3cbfb", "#f4f9ff"],
};

/** @returns {"light" | "dark"} */
export function currentTheme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

/** @type {Map<string, Uint32Array>} */
const ramps = new Map();

/**
 * 256 colors as canvas pixels (ABGR), from weight 0 to the maximum.
 * @param {"light" | "dark"} theme
 */
export function colorRamp(theme) {
  const cached = ramps.get(theme);
  if (cached !== undefined) return cached;
  const pixels = Uint32Array.from({ length: 256 }, (_, index) => {
    const [red, green, blue] = interpolate(STOPS[theme], index / 255);
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
  ramps.set(theme, pixels);
  return pixels;
}

/**
 * The index of a weight in the ramp, 0 to 255.
 * @param {number} weight
 * @param {number} maxWeight the weight that has the last color
 */
export function rampIndex(weight, maxWeight) {
  return Math.max(0, Math.min(255, Math.round(255 * Math.sqrt(Math.max(0, weight) / maxWeight))));
}

/**
 * @param {number} layer
 * @param {number} head
 * @returns {string} such as "#b3541e"
 */
export function headColor(layer, head) {
  // The golden angle separates the heads of a layer, however many there are; layers shift the hue and the lightness.
  const hue = (28 + head * 137.508 + layer * 124.5) % 360;
  const lightness = (currentTheme() === "dark" ? [0.76, 0.86, 0.66] : [0.56, 0.44, 0.66])[layer % 3];
  return oklchToHex(lightness, 0.145, hue);
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

/** @param {string} hex */
export function hexToRgb(hex) {
  return [1, 3, 5].map((start) => Number.parseInt(hex.slice(start, start + 2), 16));
}

/**
 * A color in OKLCH (Ottosson 2020) as a hex number, which every program reads.
 * @param {number} lightness
 * @param {number} chroma
 * @param {number} hue degrees
 */
function oklchToHex(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const hex = linear.map((value) => {
    const clamped = Math.max(0, Math.min(1, value));
    const srgb = clamped <= 0.0031308 ? 12.92 * clamped : 1.055 * clamped ** (1 / 2.4) - 0.055;
    return Math.round(255 * srgb)
      .toString(16)
      .padStart(2, "0");
  });
  return `#${hex.join("")}`;
}
