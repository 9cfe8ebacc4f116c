/**
 * The data source of a standalone file. It answers like a server from the embedded data; requests that need the model
 * are rejected with an error that tells what to do.
 */

/** @import { AttentionType, Embedded, HeadChoice, Matrix, Source } from "../contract" */

import { decodeBase64, decodeFloat16 } from "./float16.js";
import { MAX_UNPOOLED, maxPool, poolSize } from "./max_pool.js";

/** The id of the file's only trace. */
export const EMBEDDED_TRACE = "file";

/**
 * The content of the file's element #embedded, or null for a page that a server sent.
 * @param {Document} page
 * @returns {Embedded | null}
 */
export function readEmbedded(page) {
  const text = page.getElementById("embedded")?.textContent?.trim() ?? "";
  return text === "" ? null : JSON.parse(text);
}

/**
 * @param {Embedded} file
 * @returns {Source}
 */
export function embeddedSource(file) {
  const trace = { ...file.trace, id: EMBEDDED_TRACE };
  const name = trace.model.name;
  /** @type {Map<string, Uint16Array>} */
  const decoded = new Map();

  /** @param {string} action */
  const needsModel = (action) => `${action} needs the model, but this page is a standalone file. Run: regard look ${name}`;
  /** @param {string} action */
  const reject = (action) => Promise.reject(new Error(needsModel(action)));

  /** @param {AttentionType} type */
  function attentionArray(type) {
    const spec = trace.arrays.find((array) => array.name === `attention/${type}`);
    const text = file.arrays[`attention/${type}`];
    if (spec === undefined || text === undefined) throw new Error(`This file has no ${type} attention.`);
    let bits = decoded.get(type);
    if (bits === undefined) decoded.set(type, (bits = decodeBase64(text)));
    const [layers, heads, rows, columns] = spec.shape;
    return { layers, heads, rows, columns, bits };
  }

  /**
   * @param {AttentionType} type
   * @param {number} layer
   * @param {HeadChoice} head
   * @returns {Matrix}
   */
  function fullMatrix(type, layer, head) {
    if (head === "rollout") return rolloutMatrix(type, layer);
    const { heads, rows, columns, bits } = attentionArray(type);
    const size = rows * columns;
    /** @param {number} index */
    const headValues = (index) => {
      const first = (layer * heads + index) * size;
      return decodeFloat16(bits.subarray(first, first + size));
    };
    if (head !== "mean") return { rows, columns, pooled: 1, values: headValues(head) };
    const sum = headValues(0);
    for (let index = 1; index < heads; index++) headValues(index).forEach((value, cell) => (sum[cell] += value));
    return { rows, columns, pooled: 1, values: sum.map((value) => value / heads) };
  }

  /** @param {AttentionType} type @param {number} layer @returns {Matrix} */
  function rolloutMatrix(type, layer) {
    const text = file.rollout?.[type];
    if (text === undefined) throw new Error(needsModel("Computing attention rollout"));
    const key = `rollout ${type}`;
    let bits = decoded.get(key);
    if (bits === undefined) decoded.set(key, (bits = decodeBase64(text)));
    const { rows, columns } = attentionArray(type);
    const size = rows * columns;
    return { rows, columns, pooled: 1, values: decodeFloat16(bits.subarray(layer * size, (layer + 1) * size)) };
  }

  return {
    live: false,
    models: async () => [trace.model],
    diagram: async () => file.diagram,
    run: () => reject("Running another text"),
    trace: async (id) => {
      if (id !== EMBEDDED_TRACE) throw new Error("This file contains a single trace, and the address names another.");
      return trace;
    },
    async matrix(_, type, layer, head, pool) {
      const matrix = fullMatrix(type, layer, head);
      return maxPool(matrix, pool ?? poolSize(matrix.rows, matrix.columns, MAX_UNPOOLED));
    },
    async row(_, type, layer, head, query) {
      const { rows, columns, values } = fullMatrix(type, layer, head);
      const [first, last] = typeof query === "number" ? [query, query + 1] : [query.from, rows];
      if (first < 0 || first >= rows) throw new Error(`There is no token ${first}.`);
      const mean = new Float32Array(columns);
      for (let row = first; row < last; row++)
        for (let column = 0; column < columns; column++) mean[column] += values[row * columns + column] / (last - first);
      return { rows: 1, columns, pooled: 1, values: mean };
    },
    patchClasses: async () => file.patch_classes ?? reject("Reading what the patches say"),
    async thumbnails(_, type, layer, size) {
      const { heads, rows, columns } = attentionArray(type);
      const pool = poolSize(rows, columns, size);
      return Array.from({ length: heads }, (_each, head) => maxPool(fullMatrix(type, layer, head), pool));
    },
    async node(_, id) {
      const found = file.nodes.find((node) => node.node === id);
      return found ?? reject("Computing this node");
    },
    async cell(_, wanted) {
      const found = file.cells.find(
        ({ request }) =>
          request.attention_type === wanted.attention_type &&
          request.layer === wanted.layer &&
          request.head === wanted.head &&
          request.query === wanted.query,
      );
      return found ?? reject("Computing this attention row");
    },
    measureHeads: () => reject("Measuring head importance"),
    measureRoles: () => reject("Measuring what heads do"),
    explainChoice: () => reject("Explaining a choice"),
    lens: () => reject("Looking through the layers"),
    activations: async () => file.activations ?? reject("Reading what leaves each box"),
    moduleValues: () => reject("Reading the values"),
    measureTimes: () => reject("Measuring the time"),
    job: () => reject("Measuring head importance"),
    stopJob: async () => undefined,
    async positions(length, width) {
      const found = (file.positions ?? []).find((each) => each.length === length && each.width === width);
      return found ?? reject("Computing encodings of another size");
    },
    async neighbors(_, side, token) {
      const found = (file.neighbors ?? []).find((each) => each.side === side && each.token.id === token);
      return found ?? reject("Looking up the neighbors of this token");
    },
    contextualVectors: () => reject("Reading other sentences"),
    residualStream: () => reject("Reading the residual stream"),
    async patterns(wanted) {
      const found = (file.patterns ?? []).find(({ request }) =>
        Object.entries(wanted).every(([name, value]) => request[/** @type {keyof typeof wanted} */ (name)] === value),
      );
      return found ?? reject("Computing patterns of other sizes");
    },
    modelPatterns: async () => file.model_patterns ?? reject("Reading the model’s patterns"),
    runs: async () => [],
    runMetrics: () => reject("Reading a run’s metrics"),
  };
}
