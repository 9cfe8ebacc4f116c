/**
 * Fewer rows and columns for what is too large to be seen cell by cell: of each block the largest weight is kept, so that
 * a strong link never disappears. The server does the same; this is for files, which carry the whole.
 */

/** @import { Matrix } from "../contract" */

/** More rows or columns than this are pooled. */
export const LARGEST = 1024;

/**
 * How many tokens stand behind one, so that no more than `size` are left.
 * @param {number} rows
 * @param {number} columns
 * @param {number} size
 */
export function blocks(rows, columns, size) {
  return Math.max(1, Math.ceil(Math.max(rows, columns) / size));
}

/**
 * @param {Matrix} matrix
 * @param {number} by
 * @returns {Matrix}
 */
export function pooled(matrix, by) {
  if (by <= 1) return matrix;
  const rows = Math.ceil(matrix.rows / by);
  const columns = Math.ceil(matrix.columns / by);
  const values = new Float32Array(rows * columns);
  for (let row = 0; row < matrix.rows; row++) {
    const to = Math.floor(row / by) * columns;
    const from = row * matrix.columns;
    for (let column = 0; column < matrix.columns; column++) {
      const place = to + Math.floor(column / by);
      if (matrix.values[from + column] > values[place]) values[place] = matrix.values[from + column];
    }
  }
  return { rows, columns, pooled: matrix.pooled * by, values };
}
