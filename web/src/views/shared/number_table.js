/**
 * A table of numbers in a container that scrolls by itself.
 */

import { h } from "../../page/dom.js";
import { scrollable } from "./section.js";

/** Columns whose header stands on the left, above text. */
const TEXT_COLUMNS = ["class", "output", "prefix", "token", "state"];

/** @param {string} label @param {string[]} columns @param {HTMLTableRowElement[]} rows */
export function numberTable(label, columns, rows) {
  const head = columns.map((text) =>
    h("th", { scope: "col", class: TEXT_COLUMNS.includes(text) ? null : "number" }, text),
  );
  return scrollable(
    label,
    h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
  );
}
