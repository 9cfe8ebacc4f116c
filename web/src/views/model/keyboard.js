/**
 * Moving through the diagram by keyboard.
 */

/**
 * Arrow keys move up and down a column, and left and right to the nearest module of the next column.
 * @param {HTMLElement} container
 * @param {KeyboardEvent} event
 */
export function moveFocus(container, event) {
  const modules = /** @type {SVGGElement[]} */ ([...container.querySelectorAll(".module")]);
  const current = /** @type {SVGGElement} */ (document.activeElement);
  /** @param {Element} module */
  const centerY = (module) => {
    const { top, height } = module.getBoundingClientRect();
    return top + height / 2;
  };
  const y = centerY(current);
  const across = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  const down = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : 0;
  if (across === 0 && down === 0) return;
  event.preventDefault();
  const column = Number(current.dataset.column) + across;
  const [next] = modules
    .filter((module) => module !== current && Number(module.dataset.column) === column)
    .filter((module) => across !== 0 || down * (centerY(module) - y) > 0)
    .sort((a, b) => Math.abs(centerY(a) - y) - Math.abs(centerY(b) - y));
  if (next === undefined) return;
  current.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}
