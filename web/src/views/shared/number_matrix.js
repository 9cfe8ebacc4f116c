/**
 * Numbers as lists of rows, in the form that a matrix panel shows.
 */

/** @import { Label } from "../../page/matrix_painter.js" */

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
