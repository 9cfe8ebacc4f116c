/**
 * The visible part of a frame that scrolls, for drawings that are too large to be elements of the page all at once.
 */

/** Pixels around the visible part that are drawn, too. */
const MARGIN = 120;
/** The size of a frame that is not laid out yet. */
const DEFAULT_SIZE = { width: 900, height: 480 };

/** @typedef {{ left: number, top: number, right: number, bottom: number }} Box in pixels of the frame's content */

/** All of a drawing. @type {Box} */
export const EVERYTHING = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity };

/**
 * @param {HTMLElement} frame
 * @returns {Box}
 */
export function visibleBox(frame) {
  const { scrollLeft, scrollTop, clientWidth, clientHeight } = frame;
  return {
    left: scrollLeft - MARGIN,
    top: scrollTop - MARGIN,
    right: scrollLeft + (clientWidth || DEFAULT_SIZE.width) + MARGIN,
    bottom: scrollTop + (clientHeight || DEFAULT_SIZE.height) + MARGIN,
  };
}

/**
 * Call a function when another part of a frame may have become visible; returns a function that ends this.
 * @param {HTMLElement} frame
 * @param {() => void} redraw
 */
export function onVisibleChange(frame, redraw) {
  let request = 0;
  const schedule = () => {
    cancelAnimationFrame(request);
    request = requestAnimationFrame(redraw);
  };
  const observer = new ResizeObserver(schedule);
  observer.observe(frame);
  frame.addEventListener("scroll", schedule);
  return () => {
    cancelAnimationFrame(request);
    observer.disconnect();
    frame.removeEventListener("scroll", schedule);
  };
}

/**
 * Make the children of an element those of a list, in its order. Children that stay are not touched, and keep the focus.
 * @template Item
 * @param {Element} element
 * @param {Map<string, Element>} drawn the children by key
 * @param {Item[]} items
 * @param {(item: Item) => string} keyOf
 * @param {(item: Item) => Element} create
 */
export function updateChildren(element, drawn, items, keyOf, create) {
  const keys = new Set(items.map(keyOf));
  for (const [key, child] of drawn) {
    if (keys.has(key)) continue;
    child.remove();
    drawn.delete(key);
  }
  let next = element.firstElementChild;
  for (const item of items) {
    const known = drawn.get(keyOf(item));
    if (known !== undefined && known === next) next = next.nextElementSibling;
    else if (known !== undefined) element.insertBefore(known, next);
    else {
      const child = create(item);
      drawn.set(keyOf(item), child);
      element.insertBefore(child, next);
    }
  }
}
