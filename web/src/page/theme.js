/**
 * Light or dark: as the system has it, or as a person chose. The theme that is shown stands at <html data-theme>.
 */

/** @import { State } from "../contract" */

import { recall, remember } from "./memory.js";

const night = matchMedia("(prefers-color-scheme: dark)");

/** @param {State["theme"]} chosen */
export function dress(chosen) {
  const shown = chosen === "auto" ? (night.matches ? "dark" : "light") : chosen;
  document.documentElement.dataset.theme = shown;
  remember("theme", chosen);
}

/** @returns {State["theme"]} what was chosen at the last visit */
export function usualTheme() {
  const chosen = recall("theme");
  return chosen === "light" || chosen === "dark" ? chosen : "auto";
}

/** @param {() => void} hear */
export function onNightfall(hear) {
  night.addEventListener("change", hear);
}
