/**
 * A table with one row per layer and groups of columns, such as the heads of an attention type. The arrow keys move among
 * the buttons in its cells (`moveInTable`).
 */

import { h } from "../../page/dom.js";

/**
 * @typedef {object} ColumnGroup
 * @property {string} [title]
 * @property {string[]} columns
 * @property {(layer: number, column: number) => HTMLElement} cell
 */

/** @param {string} title @param {number} layers @param {ColumnGroup[]} groups */
export function headTable(title, layers, groups) {
  const startsGroup = (/** @type {number} */ column) => (column === 0 && groups.length > 1 ? "group-start" : null);
  const titles = groups.map((group) => h("th", { scope: "colgroup", colspan: group.columns.length }, group.title));
  const names = groups.flatMap(({ columns }) =>
    columns.map((name, column) => h(name === "" ? "td" : "th", { scope: name === "" ? null : "col", class: startsGroup(column) }, name)),
  );
  const rows = Array.from({ length: layers }, (_, layer) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, `layer ${layer + 1}`),
      groups.flatMap(({ columns, cell }) =>
        columns.map((_name, column) => h("td", { class: startsGroup(column) }, cell(layer, column))),
      ),
    ),
  );
  const header = [groups.length > 1 && h("tr", {}, h("td"), titles), h("tr", {}, h("td"), names)];
  return h(
    "div",
    { class: "head-table" },
    h("h3", {}, title),
    h("div", { class: "scrollable" }, h("table", {}, h("thead", {}, header), h("tbody", {}, rows))),
  );
}
