/**
 * Small things that a browser remembers between visits. Where it may not (a file, a frame, a private window), nothing is
 * remembered and nothing breaks.
 */

/** @param {string} name */
export function recall(name) {
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
export function remember(name, value) {
  try {
    localStorage.setItem(`regard.${name}`, value);
  } catch {
    // Then it is asked again next time.
  }
}
