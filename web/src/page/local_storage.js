/**
 * Small settings that the browser keeps between visits. Without access to local storage (a file, a frame, a private
 * window), nothing is kept and nothing breaks.
 */

/** @param {string} name */
export function readSetting(name) {
  try {
    return localStorage.getItem(`regard.${name}`);
  } catch {
    return null;
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
export function saveSetting(name, value) {
  try {
    localStorage.setItem(`regard.${name}`, value);
  } catch {
    // The setting is lost when the page is closed.
  }
}
