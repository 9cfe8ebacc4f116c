/**
 * Data that a standalone file carries with it. It answers as a server would; what needs the model itself is refused with
 * a sentence that says what to do.
 */

/** @import { Embedded, Matrix, Side, Source } from "../contract" */

import { readBase64, widen } from "./half.js";
import { LARGEST, blocks, pooled } from "./pool.js";

/** How the trace of a file is called in the address. */
export const ONLY = "file";

/**
 * What stands in the file's element #embedded, or null for a page that a server sends.
 * @param {Document} page
 * @returns {Embedded | null}
 */
export function carried(page) {
  const text = page.getElementById("embedded")?.textContent?.trim() ?? "";
  return text === "" ? null : JSON.parse(text);
}

/**
 * @param {Embedded} file
 * @returns {Source}
 */
export function embeddedSource(file) {
  const trace = { ...file.trace, id: ONLY };
  const name = trace.model.name;
  /** @type {Map<string, Uint16Array>} */
  const arrays = new Map();

  /** @param {string} what */
  const refuse = (what) =>
    Promise.reject(new Error(`${what} needs the model itself, and this page is a file. Run: regard look ${name}`));

  /** @param {Side} side */
  function facts(side) {
    const found = trace.arrays.find((array) => array.name === `attention/${side}`);
    const text = file.arrays[`attention/${side}`];
    if (found === undefined || text === undefined) throw new Error(`This file has no attention of the ${side}.`);
    let bits = arrays.get(side);
    if (bits === undefined) arrays.set(side, (bits = readBase64(text)));
    const [layers, heads, rows, columns] = found.shape;
    return { layers, heads, rows, columns, bits };
  }

  /**
   * @param {Side} side
   * @param {number} layer
   * @param {number | "mean"} head
   * @returns {Matrix}
   */
  function whole(side, layer, head) {
    const { heads, rows, columns, bits } = facts(side);
    const each = rows * columns;
    /** @param {number} number */
    const one = (number) => {
      const first = (layer * heads + number) * each;
      return widen(bits.subarray(first, first + each));
    };
    if (head !== "mean") return { rows, columns, pooled: 1, values: one(head) };
    const sum = one(0);
    for (let number = 1; number < heads; number++) one(number).forEach((value, place) => (sum[place] += value));
    return { rows, columns, pooled: 1, values: sum.map((value) => value / heads) };
  }

  return {
    live: false,
    models: async () => [trace.model],
    parts: async () => file.parts,
    run: () => refuse("Running another text"),
    trace: async (id) => {
      if (id !== ONLY) throw new Error("This file holds one trace, and the address asks for another.");
      return trace;
    },
    async matrix(_, side, layer, head, pool) {
      const matrix = whole(side, layer, head);
      return pooled(matrix, pool ?? blocks(matrix.rows, matrix.columns, LARGEST));
    },
    async row(_, side, layer, head, query) {
      const { rows, columns, values } = whole(side, layer, head);
      if (query < 0 || query >= rows) throw new Error(`There is no token ${query} here.`);
      return { rows: 1, columns, pooled: 1, values: values.slice(query * columns, (query + 1) * columns) };
    },
    async thumbnails(_, side, layer, size) {
      const { heads, rows, columns } = facts(side);
      const by = blocks(rows, columns, size);
      return Array.from({ length: heads }, (_each, head) => pooled(whole(side, layer, head), by));
    },
    async node(_, number) {
      const found = file.nodes.find((node) => node.node === number);
      return found ?? refuse("Opening this one");
    },
    async cell(_, request) {
      const same = file.cells.find(
        ({ request: { side, layer, head, query } }) =>
          side === request.side && layer === request.layer && head === request.head && query === request.query,
      );
      return same ?? refuse("Opening this cell");
    },
    worth: () => refuse("Measuring what heads are worth"),
    job: () => refuse("Measuring what heads are worth"),
    stop: async () => undefined,
    async positions(length, width) {
      const found = (file.positions ?? []).find((each) => each.length === length && each.width === width);
      return found ?? refuse("Computing positions of another size");
    },
    runs: async () => [],
    runLines: () => refuse("Following a run"),
  };
}
