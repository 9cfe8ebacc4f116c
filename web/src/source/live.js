/**
 * Data from a server: JSON for what is said, 16-bit numbers for what is measured, a stream of lines while a model writes.
 *
 * A server may go away. Each request then fails with a sentence, `hear` is told, and it is asked again every few seconds
 * until it answers; what was fetched before is kept and goes on working.
 */

/** @import { Source, Matrix, RunEvent, Side } from "../contract" */

import { readHalves } from "./half.js";
import { blocks } from "./pool.js";

const AWAY = "The server does not answer. What is already here goes on working.";
/** Bytes of matrices that are kept. */
const ROOM = 192 * 2 ** 20;
/** Milliseconds between questions whether the server is there. */
const ASK = 2500;

/**
 * @param {(there: boolean) => void} hear whether the server answers
 * @param {string} [base] where it is
 * @returns {Source}
 */
export function liveSource(hear, base = "") {
  let there = true;
  const kept = keep(ROOM);
  /** @type {Map<string, Promise<any>>} */
  const said = new Map();

  /** @param {boolean} now */
  function found(now) {
    if (now === there) return;
    there = now;
    if (now) said.clear(); // another server may have come back
    hear(now);
  }

  /**
   * @param {string} path
   * @param {RequestInit} [how]
   */
  async function ask(path, how) {
    let answer;
    try {
      answer = await fetch(`${base}api/${path}`, how);
    } catch (problem) {
      if (how?.signal?.aborted) throw problem;
      found(false);
      throw new Error(AWAY);
    }
    found(true);
    if (!answer.ok) throw new Error(await sentence(answer));
    return answer;
  }

  /** @type {(path: string, how?: RequestInit) => Promise<any>} */
  const json = async (path, how) => (await ask(path, how)).json();

  /** @type {(path: string, body: unknown, stop?: AbortSignal) => RequestInit} */
  const posted = (_, body, stop) => ({
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: stop,
  });
  /** @type {(path: string, body: unknown, stop?: AbortSignal) => Promise<any>} */
  const post = (path, body, stop) => json(path, posted(path, body, stop));

  /** @type {(path: string) => Promise<any>} */
  const once = (path) => {
    const before = said.get(path);
    if (before !== undefined) return before;
    const asked = json(path);
    said.set(path, asked);
    asked.catch(() => said.delete(path));
    return asked;
  };

  /**
   * @param {string} path
   * @returns {Promise<Matrix[]>}
   */
  async function weights(path) {
    const answer = await ask(path);
    const rows = Number(answer.headers.get("X-Rows"));
    const columns = Number(answer.headers.get("X-Columns"));
    const by = Number(answer.headers.get("X-Pooled") ?? 1);
    const values = readHalves(await answer.arrayBuffer());
    const each = rows * columns;
    const count = each === 0 ? 0 : Math.round(values.length / each);
    return Array.from({ length: count }, (_, number) => ({
      rows,
      columns,
      pooled: by,
      values: values.subarray(number * each, (number + 1) * each),
    }));
  }

  /** @type {(trace: string, side: Side, rest: string) => string} */
  const place = (trace, side, rest) => `traces/${encodeURIComponent(trace)}/attention/${side}/${rest}`;

  /** @type {(trace: string, side: Side) => Promise<[number, number]>} */
  const size = async (trace, side) => {
    const shape = (await once(`traces/${encodeURIComponent(trace)}`)).arrays.find(
      (/** @type {{ name: string }} */ array) => array.name === `attention/${side}`,
    )?.shape;
    if (shape === undefined) throw new Error(`This trace has no attention of the ${side}.`);
    return [shape[2], shape[3]];
  };

  setInterval(() => {
    if (document.visibilityState === "visible" || !there) json("models").catch(() => undefined);
  }, ASK);

  return {
    live: true,
    models: () => json("models"),
    parts: (model) => once(`models/${encodeURIComponent(model)}/parts`),
    async run(model, request, hearEvent, stop) {
      const path = `models/${encodeURIComponent(model)}/traces`;
      const answer = await ask(path, posted(path, request, stop));
      let trace = "";
      for await (const event of lines(answer, () => found(false))) {
        hearEvent(event);
        if (event.event === "failed") throw new Error(event.reason);
        if (event.event === "done") trace = event.trace;
      }
      if (trace === "") throw new Error("The server stopped in the middle of the answer. Please run it again.");
      return trace;
    },
    trace: (id) => once(`traces/${encodeURIComponent(id)}`),
    matrix(trace, side, layer, head, pool) {
      const asked = pool === undefined ? "" : `?pool=${pool}`;
      const path = place(trace, side, `${layer}/${head}${asked}`);
      return kept(path, () => weights(path)).then(([only]) => only);
    },
    row(trace, side, layer, head, query) {
      const path = place(trace, side, `${layer}/${head}?row=${query}`);
      return kept(path, () => weights(path)).then(([only]) => only);
    },
    async thumbnails(trace, side, layer, largest) {
      const path = place(trace, side, `${layer}/all?pool=${blocks(...(await size(trace, side)), largest)}`);
      return kept(path, () => weights(path));
    },
    node: (trace, node) => post(`traces/${encodeURIComponent(trace)}/nodes/${node}`, {}),
    cell: (trace, request) => post(`traces/${encodeURIComponent(trace)}/cell`, request),
    worth: (model, request) => post(`models/${encodeURIComponent(model)}/worth`, request),
    job: (id) => json(`jobs/${encodeURIComponent(id)}`),
    stop: async (id) => {
      await ask(`jobs/${encodeURIComponent(id)}`, { method: "DELETE" });
    },
    positions: (length, width) => once(`positions?length=${length}&width=${width}`),
    runs: () => json("runs"),
    runLines: (id, after) => json(`runs/${encodeURIComponent(id)}?after=${after}`),
  };
}

/**
 * What the server said is wrong.
 * @param {Response} answer
 */
export async function sentence(answer) {
  try {
    const problem = await answer.json();
    if (typeof problem.detail === "string") return problem.detail;
  } catch {
    // Not the server's own words: the number has to do.
  }
  return `The server answered with ${answer.status} and gave no reason.`;
}

/**
 * @param {Response} answer
 * @param {() => void} lost
 * @returns {AsyncGenerator<RunEvent>}
 */
async function* lines(answer, lost) {
  if (answer.body === null) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (problem) {
      if (problem instanceof DOMException && problem.name === "AbortError") throw problem;
      lost();
      throw new Error(AWAY);
    }
    rest += part.value ?? "";
    const whole = rest.split("\n");
    rest = part.done ? "" : (whole.pop() ?? "");
    for (const line of whole) if (line.trim() !== "") yield JSON.parse(line);
    if (part.done) return;
  }
}

/**
 * A memory of matrices that forgets those unused for longest when it is full.
 * @param {number} room bytes
 * @returns {(name: string, make: () => Promise<Matrix[]>) => Promise<Matrix[]>}
 */
function keep(room) {
  /** @type {Map<string, { made: Promise<Matrix[]>, bytes: number }>} */
  const entries = new Map();
  let held = 0;
  return (name, make) => {
    const before = entries.get(name);
    if (before !== undefined) {
      entries.delete(name);
      entries.set(name, before);
      return before.made;
    }
    const entry = { made: make(), bytes: 0 };
    entries.set(name, entry);
    entry.made.then(
      (matrices) => {
        entry.bytes = matrices.reduce((sum, matrix) => sum + matrix.values.byteLength, 0);
        held += entry.bytes;
        for (const [oldest, { bytes }] of entries) {
          if (held <= room || oldest === name) break;
          entries.delete(oldest);
          held -= bytes;
        }
      },
      () => entries.delete(name),
    );
    return entry.made;
  };
}
