/**
 * Colours that mean something: how much weight (a ramp from paper to ink, by the square root, so that small weights can
 * be told from none), and which head (a hue of its own, the same everywhere).
 */

/** Stops of the ramp from no weight to all of it, for each theme. */
const STOPS = {
  light: ["#ffffff", "#d5e3f7", "#86b3ea", "#2f74cf", "#173f92", "#0a1c4a"],
  dark: ["#161b24", "#1c3357", "#235a9f", "#4a91e2", "#a3cbfb", "#f4f9ff"],
};

/** @returns {"light" | "dark"} the theme that is shown */
export function theme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

/** @type {Map<string, Uint32Array>} */
const ramps = new Map();

/**
 * 256 colours as canvas pixels (ABGR), from no weight to the largest.
 * @param {"light" | "dark"} shown
 */
export function ramp(shown) {
  const known = ramps.get(shown);
  if (known !== undefined) return known;
  const pixels = Uint32Array.from({ length: 256 }, (_, index) => {
    const [red, green, blue] = between(STOPS[shown], index / 255);
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
  ramps.set(shown, pixels);
  return pixels;
}

/**
 * Where a weight stands on the ramp, 0 to 255.
 * @param {number} weight
 * @param {number} top the weight that has the last colour
 */
export function place(weight, top) {
  return Math.max(0, Math.min(255, Math.round(255 * Math.sqrt(Math.max(0, weight) / top))));
}

/**
 * The colour of a weight, for what is not a canvas.
 * @param {number} weight
 * @param {number} [top]
 */
export function weightColour(weight, top = 1) {
  const [red, green, blue] = between(STOPS[theme()], place(weight, top) / 255);
  return `rgb(${red}, ${green}, ${blue})`;
}

/**
 * @param {number} layer
 * @param {number} head
 * @returns {string} such as "#b3541e"
 */
export function headColour(layer, head) {
  // The golden angle keeps heads of a layer apart however many there are; layers turn the circle and change the lightness.
  const hue = (28 + head * 137.508 + layer * 124.5) % 360;
  const light = (theme() === "dark" ? [0.76, 0.86, 0.66] : [0.56, 0.44, 0.66])[layer % 3];
  return oklch(light, 0.145, hue);
}

/**
 * @param {string[]} stops
 * @param {number} share
 * @returns {number[]} red, green, blue
 */
function between(stops, share) {
  const at = share * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(at));
  const [from, to] = [stops[first], stops[first + 1]].map(channels);
  return from.map((value, index) => Math.round(value + (to[index] - value) * (at - first)));
}

/** @param {string} hex */
function channels(hex) {
  return [1, 3, 5].map((start) => Number.parseInt(hex.slice(start, start + 2), 16));
}

/**
 * A colour by lightness, colourfulness and hue as the eye sees them (Ottosson 2020), as a hex number that every
 * program reads.
 * @param {number} lightness
 * @param {number} chroma
 * @param {number} hue degrees
 */
function oklch(lightness, chroma, hue) {
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
    const light = Math.max(0, Math.min(1, value));
    const shown = light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055;
    return Math.round(255 * shown)
      .toString(16)
      .padStart(2, "0");
  });
  return `#${hex.join("")}`;
}
