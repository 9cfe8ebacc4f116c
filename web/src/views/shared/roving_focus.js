/**
 * Moving among many buttons with the arrow keys: only one of them is a stop of the Tab key.
 */

/**
 * The left and right arrow keys move along the buttons of a row.
 * @param {HTMLElement} row
 */
export function rowFocus(row) {
  row.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const buttons = /** @type {HTMLElement[]} */ ([...row.querySelectorAll("button")]);
    const next = buttons[buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + step];
    if (next === undefined) return;
    event.preventDefault();
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    next.focus();
  });
  row.querySelectorAll("button").forEach((button, index) => (button.tabIndex = index === 0 ? 0 : -1));
}

/** All four arrow keys move among the buttons in the cells of a table. @param {KeyboardEvent} event */
export function moveInTable(event) {
  const cell = /** @type {Element} */ (event.target).closest("td");
  const row = cell?.closest("tr");
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!cell || !row || !move) return;
  const rows = [...(row.parentElement?.children ?? [])];
  const nextRow = rows[rows.indexOf(row) + move[0]];
  const next = nextRow?.children[[...row.children].indexOf(cell) + move[1]]?.querySelector("button");
  if (!next) return;
  event.preventDefault();
  cell.querySelector("button")?.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}
