/**
 * The light or dark theme: the system's, or the user's choice. The current theme is in <html data-theme>.
 */

/** @import { State } from "../contract" */

import { readSetting, saveSetting } from "./local_storage.js";

const systemDark = matchMedia("(prefers-color-scheme: dark)");

/** @param {State["theme"]} choice */
export function applyTheme(choice) {
  const theme = choice === "auto" ? (systemDark.matches ? "dark" : "light") : choice;
  document.documentElement.dataset.theme = theme;
  saveSetting("theme", choice);
}

/** @returns {State["theme"]} the choice of the last visit */
export function savedTheme() {
  const choice = readSetting("theme");
  return choice === "light" || choice === "dark" ? choice : "auto";
}

/** @param {() => void} listener */
export function onSystemThemeChange(listener) {
  systemDark.addEventListener("change", listener);
}
