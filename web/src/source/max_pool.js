/**
 * Max pooling of matrices that are too large to show cell by cell: the maximum of each block is kept, so that a strong
 * weight never disappears. The server does the same; this is for standalone files, which contain the full matrices.
 */

/** @import { Matrix } from "../contract" */

/** Matrices with more rows or columns are pooled. */
export const MAX_UNPOOLED = 1024;

/**
 * The smallest pool size that leaves at most `maxSize` rows and columns.
 * @param {number} rows
 * @param {number} columns
 * @param {number} maxSize
 */
export function poolSize(rows, columns, maxSize) {
  return Math.max(1, Math.ceil(Math.max(rows, columns) / maxSize));
}

/**
 * @param {Matrix} matrix
 * @param {number} size
 * @returns {Matrix}
 */
export function maxPool(matrix, size) {
  if (size <= 1) return matrix;
  const rows = Math.ceil(matrix.rows / size);
  const columns = Math.ceil(matrix.columns / size);
  const values = new Float32Array(rows * columns);
  for (let row = 0; row < matrix.rows; row++) {
    const to = Math.floor(row / size) * columns;
    const from = row * matrix.columns;
    for (let column = 0; column < matrix.columns; column++) {
      const index = to + Math.floor(column / size);
      if (matrix.values[from + column] > values[index]) values[index] = matrix.values[from + column];
    }
  }
  return { rows, columns, pooled: matrix.pooled * size, values };
}
