/**
 * The data source of a running server: JSON for metadata, float16 for tensors, and a stream of JSON lines during a run.
 *
 * The server may become unreachable. Then each request fails with an error, `onReachable` is called, and the server is
 * polled every few seconds until it responds; what was loaded before stays available.
 *
 * The server may also be busy: it refuses a request if too many are waiting. Then `onBusy` is called with its message,
 * and the request is repeated a few times before it fails.
 */

/** @import { AttentionType, Matrix, RunEvent, Source } from "../contract" */

import { decodeFloat16Buffer } from "./float16.js";
import { poolSize } from "./max_pool.js";
import { NOT_RESPONDING } from "./not_responding.js";

const UNREACHABLE = `${NOT_RESPONDING}. What is already loaded keeps working.`;
/** Bytes of cached matrices. */
const CACHE_BYTES = 192 * 2 ** 20;
/** Milliseconds between polls. */
const POLL_INTERVAL = 2500;
/** How often a request is repeated while the server is busy, and the seconds in between if the server names none. */
const [MAX_RETRIES, RETRY_SECONDS] = [5, 2];
/** Nodes and cells that are requested at a time: they wait for the model, and a browser has six connections in all. */
const MAX_COMPUTATIONS = 2;

/**
 * @param {(reachable: boolean) => void} onReachable called when the server becomes reachable or unreachable
 * @param {(message: string) => void} onBusy called when a request is going to be repeated, with the server's message
 * @param {string} [base] the server's URL
 * @returns {Source}
 */
export function liveSource(onReachable, onBusy, base = "") {
  let reachable = true;
  const inTurn = createQueue(MAX_COMPUTATIONS);
  const matrixCache = createMatrixCache(CACHE_BYTES);
  /** @type {Map<string, Promise<any>>} */
  const jsonCache = new Map();

  /** @param {boolean} current */
  function setReachable(current) {
    if (current === reachable) return;
    reachable = current;
    if (current) jsonCache.clear(); // the server may have been restarted
    onReachable(current);
  }

  /**
   * @param {string} path
   * @param {RequestInit} [options]
   */
  async function request(path, options) {
    for (let retries = 0; ; retries++) {
      const response = await requestOnce(path, options);
      if (response.ok) return response;
      const message = await responseError(response);
      if (response.status !== 503 || retries === MAX_RETRIES) throw new Error(message);
      onBusy(message);
      await pause(Number(response.headers.get("Retry-After")) || RETRY_SECONDS, options?.signal);
    }
  }

  /**
   * @param {string} path
   * @param {RequestInit} [options]
   */
  async function requestOnce(path, options) {
    let response;
    try {
      response = await fetch(`${base}api/${path}`, options);
    } catch (error) {
      if (options?.signal?.aborted) throw error;
      setReachable(false);
      throw new Error(UNREACHABLE);
    }
    setReachable(true);
    return response;
  }

  /** @type {(path: string, options?: RequestInit) => Promise<any>} */
  const getJson = async (path, options) => (await request(path, options)).json();

  /** @type {(body: unknown, signal?: AbortSignal) => RequestInit} */
  const postOptions = (body, signal) => ({
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  /** @type {(path: string, body: unknown) => Promise<any>} */
  const postJson = (path, body) => getJson(path, postOptions(body));

  /** @type {(path: string) => Promise<any>} */
  const getCachedJson = (path) => {
    const cached = jsonCache.get(path);
    if (cached !== undefined) return cached;
    const response = getJson(path);
    jsonCache.set(path, response);
    response.catch(() => jsonCache.delete(path));
    return response;
  };

  /**
   * @param {string} path
   * @returns {Promise<Matrix[]>}
   */
  async function getMatrices(path) {
    const response = await request(path);
    const rows = Number(response.headers.get("X-Rows"));
    const columns = Number(response.headers.get("X-Columns"));
    const pooled = Number(response.headers.get("X-Pooled") ?? 1);
    const values = decodeFloat16Buffer(await response.arrayBuffer());
    const size = rows * columns;
    const count = size === 0 ? 0 : Math.round(values.length / size);
    return Array.from({ length: count }, (_, index) => ({
      rows,
      columns,
      pooled,
      values: values.subarray(index * size, (index + 1) * size),
    }));
  }

  /** @type {(path: string) => Promise<Matrix[]>} */
  const getCachedMatrices = (path) => matrixCache(path, () => getMatrices(path));

  /** @type {(trace: string, type: AttentionType, rest: string) => string} */
  const attentionPath = (trace, type, rest) => `traces/${encodeURIComponent(trace)}/attention/${type}/${rest}`;

  /** @type {(trace: string, type: AttentionType) => Promise<[number, number]>} */
  const attentionSize = async (trace, type) => {
    const shape = (await getCachedJson(`traces/${encodeURIComponent(trace)}`)).arrays.find(
      (/** @type {{ name: string }} */ array) => array.name === `attention/${type}`,
    )?.shape;
    if (shape === undefined) throw new Error(`This trace has no ${type} attention.`);
    return [shape[2], shape[3]];
  };

  setInterval(() => {
    if (document.visibilityState === "visible" || !reachable) getJson("models").catch(() => undefined);
  }, POLL_INTERVAL);

  return {
    live: true,
    models: () => getJson("models"),
    diagram: (model) => getCachedJson(`models/${encodeURIComponent(model)}/diagram`),
    sentences: (model, text) => postJson(`models/${encodeURIComponent(model)}/sentences`, { text }),
    async run(model, runRequest, onEvent, signal) {
      const response = await request(`models/${encodeURIComponent(model)}/traces`, postOptions(runRequest, signal));
      let trace = "";
      for await (const event of readEvents(response, () => setReachable(false))) {
        onEvent(event);
        if (event.event === "failed") throw new Error(event.error);
        if (event.event === "done") trace = event.trace;
      }
      if (trace === "") throw new Error("The server stopped before the run was complete. Please run it again.");
      return trace;
    },
    trace: (id) => getCachedJson(`traces/${encodeURIComponent(id)}`),
    async matrix(trace, type, layer, head, pool) {
      const query = pool === undefined ? "" : `?pool=${pool}`;
      const [matrix] = await getCachedMatrices(attentionPath(trace, type, `${layer}/${head}${query}`));
      return matrix;
    },
    async row(trace, type, layer, head, query) {
      const rows = typeof query === "number" ? `row=${query}` : `mean_from=${query.from}`;
      const [matrix] = await getCachedMatrices(attentionPath(trace, type, `${layer}/${head}?${rows}`));
      return matrix;
    },
    patchClasses: (trace) => getCachedJson(`traces/${encodeURIComponent(trace)}/patch-classes`),
    async thumbnails(trace, type, layer, maxSize) {
      const pool = poolSize(...(await attentionSize(trace, type)), maxSize);
      return getCachedMatrices(attentionPath(trace, type, `${layer}/all?pool=${pool}`));
    },
    node: (trace, node) => inTurn(() => postJson(`traces/${encodeURIComponent(trace)}/nodes/${node}`, {})),
    cell: (trace, cellRequest) => inTurn(() => postJson(`traces/${encodeURIComponent(trace)}/cell`, cellRequest)),
    measureHeads: (model, jobRequest) => postJson(`models/${encodeURIComponent(model)}/head-importance`, jobRequest),
    measureRoles: (model, jobRequest) => postJson(`models/${encodeURIComponent(model)}/head-roles`, jobRequest),
    explainChoice: (trace, choice) => postJson(`traces/${encodeURIComponent(trace)}/contrast`, choice),
    lens: (trace, steps) => inTurn(() => postJson(`traces/${encodeURIComponent(trace)}/lens`, steps)),
    activations: (trace) => getCachedJson(`traces/${encodeURIComponent(trace)}/activations`),
    moduleValues: (trace, path, first) =>
      getCachedJson(
        `traces/${encodeURIComponent(trace)}/activations/values?path=${encodeURIComponent(path)}&first=${first}`,
      ),
    measureTimes: (trace) => postJson(`traces/${encodeURIComponent(trace)}/module-times`, {}),
    job: (id) => getJson(`jobs/${encodeURIComponent(id)}`),
    stopJob: async (id) => {
      await request(`jobs/${encodeURIComponent(id)}`, { method: "DELETE" });
    },
    positions: (length, width) => getCachedJson(`positions?length=${length}&width=${width}`),
    neighbors: (model, side, token) =>
      getCachedJson(`models/${encodeURIComponent(model)}/neighbors?side=${side}&token=${token}`),
    contextualVectors: (model, sentences) =>
      inTurn(() => postJson(`models/${encodeURIComponent(model)}/contextual-vectors`, sentences)),
    residualStream: (trace) => getCachedJson(`traces/${encodeURIComponent(trace)}/residual-stream`),
    patterns: ({ length, window, step, tokens, causal, own }) =>
      getCachedJson(
        `patterns?length=${length}&window=${window}&step=${step}&tokens=${tokens}&causal=${causal}` +
          `&own=${encodeURIComponent(own)}`,
      ),
    modelPatterns: (trace) => getCachedJson(`traces/${encodeURIComponent(trace)}/patterns`),
    runs: () => getJson("runs"),
    runMetrics: (id, after) => getJson(`runs/${encodeURIComponent(id)}?after=${after}`),
  };
}

/**
 * The message of an error response.
 * @param {Response} response
 */
export async function responseError(response) {
  try {
    const error = await response.json();
    if (typeof error.detail === "string") return error.detail;
  } catch {
    // Not one of the server's own messages.
  }
  return `The server responded with status ${response.status} and no message.`;
}

/**
 * @param {Response} response
 * @param {() => void} onLost
 * @returns {AsyncGenerator<RunEvent>}
 */
async function* readEvents(response, onLost) {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      onLost();
      throw new Error(UNREACHABLE);
    }
    buffer += chunk.value ?? "";
    const lines = buffer.split("\n");
    buffer = chunk.done ? "" : (lines.pop() ?? "");
    for (const line of lines) if (line.trim() !== "") yield JSON.parse(line);
    if (chunk.done) return;
  }
}

/**
 * Wait; an aborted signal ends the wait with its error.
 * @param {number} seconds
 * @param {AbortSignal | null} [signal]
 */
async function pause(seconds, signal) {
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
  });
  signal?.throwIfAborted();
}

/**
 * Limits how many functions run at a time; the others wait for their turn.
 * @param {number} maxRunning
 * @returns {<Result>(start: () => Promise<Result>) => Promise<Result>}
 */
function createQueue(maxRunning) {
  let running = 0;
  /** @type {((value?: unknown) => void)[]} */
  const waiting = [];
  return async (start) => {
    if (running < maxRunning) running += 1;
    else await new Promise((resolve) => waiting.push(resolve));
    try {
      return await start();
    } finally {
      const next = waiting.shift();
      if (next) next();
      else running -= 1;
    }
  };
}

/**
 * An LRU cache of matrices.
 * @param {number} maxBytes
 * @returns {(key: string, load: () => Promise<Matrix[]>) => Promise<Matrix[]>}
 */
function createMatrixCache(maxBytes) {
  /** @type {Map<string, { matrices: Promise<Matrix[]>, bytes: number }>} */
  const entries = new Map();
  let totalBytes = 0;
  return (key, load) => {
    const cached = entries.get(key);
    if (cached !== undefined) {
      entries.delete(key);
      entries.set(key, cached);
      return cached.matrices;
    }
    const entry = { matrices: load(), bytes: 0 };
    entries.set(key, entry);
    entry.matrices.then(
      (matrices) => {
        entry.bytes = matrices.reduce((sum, matrix) => sum + matrix.values.byteLength, 0);
        totalBytes += entry.bytes;
        for (const [oldest, { bytes }] of entries) {
          if (totalBytes <= maxBytes || oldest === key) break;
          entries.delete(oldest);
          totalBytes -= bytes;
        }
      },
      () => entries.delete(key),
    );
    return entry.matrices;
  };
}
