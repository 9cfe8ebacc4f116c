/**
 * The data source of a standalone file. It answers like a server from the embedded data; requests that need the model
 * are rejected with an error that tells what to do.
 */

/** @import { AttentionType, HeadChoice, Matrix, Source } from "../contract" */

import { attentionCell } from "./attention_row.js";
import { decodeBase64, decodeFloat16 } from "./float16.js";
import { MAX_UNPOOLED, maxPool, poolSize } from "./max_pool.js";
import { unpack } from "./unpack.js";

/** The id of the file's only trace. */
export const EMBEDDED_TRACE = "file";

/**
 * The content of the file's element #embedded; "" for a page that a server sent.
 * @param {Document} page
 */
export function readEmbedded(page) {
  return page.getElementById("embedded")?.textContent?.trim() ?? "";
}

/**
 * @param {string} content of the element #embedded
 * @returns {Source}
 */
export function embeddedSource(content) {
  const unpacked = unpack(content).then(
    (file) => ({ file, trace: { ...file.trace, id: EMBEDDED_TRACE } }),
    () => {
      throw new Error("The data in this file is damaged. Please create it again.");
    },
  );
  /** @type {Map<string, Uint16Array>} */
  const decoded = new Map();

  /** @param {string} action @returns {Promise<never>} */
  const reject = async (action) => {
    const { trace } = await unpacked;
    const command = `regard look ${trace.model.name}`;
    throw new Error(`${action} needs the model, but this page is a standalone file. Run: ${command}`);
  };

  /** @param {AttentionType} type */
  async function attentionArray(type) {
    const { file, trace } = await unpacked;
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
   * @returns {Promise<Matrix>}
   */
  async function fullMatrix(type, layer, head) {
    if (head === "rollout") return rolloutMatrix(type, layer);
    const { heads, rows, columns, bits } = await attentionArray(type);
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

  /** @param {AttentionType} type @param {number} layer @returns {Promise<Matrix>} */
  async function rolloutMatrix(type, layer) {
    const text = (await unpacked).file.rollout?.[type];
    if (text === undefined) return reject("Computing attention rollout");
    const key = `rollout ${type}`;
    let bits = decoded.get(key);
    if (bits === undefined) decoded.set(key, (bits = decodeBase64(text)));
    const { rows, columns } = await attentionArray(type);
    const size = rows * columns;
    return { rows, columns, pooled: 1, values: decodeFloat16(bits.subarray(layer * size, (layer + 1) * size)) };
  }

  return {
    live: false,
    models: async () => [(await unpacked).trace.model],
    diagram: async () => (await unpacked).file.diagram,
    sentences: () => reject("Splitting a text"),
    run: () => reject("Running another text"),
    trace: async (id) => {
      if (id !== EMBEDDED_TRACE) throw new Error("This file contains a single trace, and the address names another.");
      return (await unpacked).trace;
    },
    async matrix(_, type, layer, head, pool) {
      const matrix = await fullMatrix(type, layer, head);
      return maxPool(matrix, pool ?? poolSize(matrix.rows, matrix.columns, MAX_UNPOOLED));
    },
    async row(_, type, layer, head, query) {
      const { rows, columns, values } = await fullMatrix(type, layer, head);
      const [first, last] = typeof query === "number" ? [query, query + 1] : [query.from, rows];
      if (first < 0 || first >= rows) throw new Error(`There is no token ${first}.`);
      const mean = new Float32Array(columns);
      for (let row = first; row < last; row++)
        for (let column = 0; column < columns; column++) mean[column] += values[row * columns + column] / (last - first);
      return { rows: 1, columns, pooled: 1, values: mean };
    },
    patchClasses: async () => (await unpacked).file.patch_classes ?? reject("Reading what the patches say"),
    async thumbnails(_, type, layer, size) {
      const { heads, rows, columns } = await attentionArray(type);
      const pool = poolSize(rows, columns, size);
      const matrices = await Promise.all(Array.from({ length: heads }, (_each, head) => fullMatrix(type, layer, head)));
      return matrices.map((matrix) => maxPool(matrix, pool));
    },
    async node(_, id) {
      const found = (await unpacked).file.nodes.find((node) => node.node === id);
      return found ?? reject("Computing this node");
    },
    async cell(_, wanted) {
      const inputs = (await unpacked).file.attention_inputs.find(
        ({ attention_type: type, layer, head }) =>
          type === wanted.attention_type && layer === wanted.layer && head === wanted.head,
      );
      return inputs === undefined ? reject("Computing this attention row") : attentionCell(inputs, wanted);
    },
    measureHeads: () => reject("Measuring head importance"),
    measureRoles: () => reject("Measuring what heads do"),
    explainChoice: () => reject("Explaining a choice"),
    lens: () => reject("Looking through the layers"),
    activations: async () => (await unpacked).file.activations ?? reject("Reading what leaves each box"),
    moduleValues: () => reject("Reading the values"),
    measureTimes: () => reject("Measuring the time"),
    job: () => reject("Measuring head importance"),
    stopJob: async () => undefined,
    async positions(length, width) {
      const found = ((await unpacked).file.positions ?? []).find((each) => each.length === length && each.width === width);
      return found ?? reject("Computing encodings of another size");
    },
    async neighbors(_, side, token) {
      const found = ((await unpacked).file.neighbors ?? []).find((each) => each.side === side && each.token.id === token);
      return found ?? reject("Looking up the neighbors of this token");
    },
    contextualVectors: () => reject("Reading other sentences"),
    residualStream: () => reject("Reading the residual stream"),
    async patterns(wanted) {
      const found = ((await unpacked).file.patterns ?? []).find(({ request }) =>
        Object.entries(wanted).every(([name, value]) => request[/** @type {keyof typeof wanted} */ (name)] === value),
      );
      return found ?? reject("Computing patterns of other sizes");
    },
    modelPatterns: async () => (await unpacked).file.model_patterns ?? reject("Reading the model’s patterns"),
    runs: async () => [],
    runMetrics: () => reject("Reading a run’s metrics"),
  };
}
