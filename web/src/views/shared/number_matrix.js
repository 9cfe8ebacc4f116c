/**
 * Numbers as lists of rows, in the form that a matrix panel shows.
 */

/** @import { Label } from "../../page/matrix_painter.js" */

import { matrixPanel } from "../../page/matrix_panel.js";

/**
 * @typedef {object} NumberMatrixOptions
 * @property {string} label what the matrix shows
 * @property {(row: number) => string} rowName
 * @property {(column: number) => string} columnName
 * @property {(row: number, column: number) => string} describe a cell, without the names of its row and column
 * @property {number} limit the absolute value of the strongest color
 * @property {number} maxHeight of all cells
 */

/** The matrices of a view, which are destroyed together. */
export class NumberMatrices {
  constructor() {
    /** @type {ReturnType<typeof matrixPanel>[]} */
    this.panels = [];
  }

  /** Signed numbers that the mouse and the arrow keys read. @param {(number | null)[][]} numbers @param {NumberMatrixOptions} options */
  add(numbers, { label, rowName, columnName, describe, limit, maxHeight }) {
    const panel = matrixPanel({
      label: `${label} Arrow keys move from cell to cell.`,
      describe: (row, column) => `${rowName(row)} · ${columnName(column)}: ${describe(row, column)}`,
      maxHeight,
    });
    const matrix = toMatrix(numbers);
    const [rows, columns] = [toLabels(matrix.rows, rowName), toLabels(matrix.columns, columnName)];
    panel.show({ matrix, rows, columns, scale: "signed", limit, pinnedRow: -1, pinnedColumn: -1 });
    this.panels.push(panel);
    return panel.element;
  }

  destroy() {
    for (const panel of this.panels) panel.destroy();
    this.panels = [];
  }
}

/** @param {(number | null)[][]} rows null: masked */
export function toMatrix(rows) {
  return { rows: rows.length, columns: rows[0]?.length ?? 0, values: rows.flat() };
}

/** @param {number} count @param {(index: number) => string} name @returns {Label[]} */
export function toLabels(count, name) {
  return Array.from({ length: count }, (_, index) => ({ label: name(index) }));
}

/**
 * The smallest and the largest number, and the absolute value that has the strongest color: the largest, or 1 if all are 0.
 * @param {(number | null)[]} values
 */
export function signedRange(values) {
  let [lowest, highest] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    lowest = Math.min(lowest, value);
    highest = Math.max(highest, value);
  }
  return { lowest, highest, limit: Math.max(Math.abs(lowest), Math.abs(highest)) || 1 };
}
