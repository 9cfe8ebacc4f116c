/**
 * What made a run besides its text: heads that were ablated, source tokens that were edited, what was said about the
 * output, and the decoding settings. The address keeps it, so that the page can repeat the run if the server has lost its
 * trace; and every view and every saved file says it, so that nobody takes such a run for a plain one.
 */

/** @import { AblatedHead, ModelSummary, RunRequest, State, Trace } from "../contract" */

import { ATTENTION_NAMES } from "./format.js";
import { decodingSettings } from "./runner.js";
import { firstGenerated, tokenLabel } from "./tokens.js";

/** The lists of a request that change a run. */
const CONDITIONS = /** @type {const} */ ([
  "source_tokens",
  "ablated_heads",
  "prefix_tokens",
  "require",
  "forbid",
]);

/** The conditions of a run without its decoding settings. @param {RunRequest} request @returns {Partial<RunRequest>} */
function conditionsOf(request) {
  return Object.fromEntries(CONDITIONS.filter((name) => request[name]?.length).map((name) => [name, request[name]]));
}

/**
 * What the address keeps of a trace's run: JSON with the fields of its request, the decoding settings only if they are not
 * those of the state; "" if nothing is left. `model` names a model that the server does not have.
 * @param {Trace} trace
 * @param {State} state
 * @param {ModelSummary[]} models
 */
export function runToAddress({ model, request }, state, models) {
  const made = { ...model.decoding, ...request.decoding };
  const chosen = decodingSettings(state, model);
  const names = /** @type {(keyof typeof made)[]} */ (Object.keys(chosen));
  const isChosen = !model.generates || names.every((name) => made[name] === chosen[name]);
  const run = {
    ...(models.some(({ id }) => id === model.id) ? {} : { model: model.name }),
    ...(isChosen ? {} : { decoding: made }),
    ...conditionsToAddress(request),
  };
  return Object.keys(run).length === 0 ? "" : JSON.stringify(run);
}

/**
 * The request that repeats the run in the address. The server checks its values.
 * @param {State} state
 * @param {ModelSummary} model
 * @returns {RunRequest}
 */
export function requestFromAddress(state, model) {
  const run = parse(state.run);
  return {
    text: state.text || model.example,
    decoding: { ...decodingSettings(state, model), ...(typeof run.decoding === "object" ? run.decoding : {}) },
    ...conditionsFromAddress(run),
  };
}

/** The conditions of a run as the address keeps them. @param {RunRequest} request @returns {Record<string, unknown>} */
export function conditionsToAddress(request) {
  const { ablated_heads: heads } = request;
  return {
    ...conditionsOf({ ...request, ablated_heads: undefined }),
    ...(heads?.length ? { ablated_heads: heads.map(headToAddress) } : {}),
  };
}

/** The conditions in the address, as a request has them. @param {Record<string, unknown>} run @returns {Partial<RunRequest>} */
export function conditionsFromAddress(run) {
  const conditions = CONDITIONS.filter((name) => Array.isArray(run[name])).map((name) => {
    const values = /** @type {unknown[]} */ (run[name]);
    return [name, name === "ablated_heads" ? values.map(headFromAddress) : values];
  });
  return Object.fromEntries(conditions);
}

/** A head as the address names it: "cross.1.0.zero". @param {AblatedHead} head */
function headToAddress({ attention_type: type, layer, head, ablation }) {
  return [type, layer, head, ablation].join(".");
}

/** @param {unknown} name */
function headFromAddress(name) {
  const [attention_type, layer, head, ablation] = String(name).split(".");
  return { attention_type, layer: Number(layer), head: Number(head), ablation };
}

/** The name of the model that made the run in the address, if the server did not have it; or "". @param {State} state */
export function modelOfFile(state) {
  const { model } = parse(state.run);
  return typeof model === "string" ? model : "";
}

/** @param {string} text @returns {Record<string, unknown>} */
function parse(text) {
  try {
    const run = JSON.parse(text || "{}");
    return typeof run === "object" && run !== null ? run : {};
  } catch {
    return {}; // a broken link still shows something
  }
}

/** The same run without any condition. @param {RunRequest} request @returns {RunRequest} */
export function plainRequest({ text, image, decoding }) {
  return { text, image, decoding };
}

/** The tokens that the output had to begin with. @param {Trace} trace */
export function givenTokens(trace) {
  const first = firstGenerated(trace);
  return trace.target.slice(first, first + (trace.request.prefix_tokens?.length ?? 0));
}

/** What a run was made with, as one sentence; "" for a plain one. @param {Trace | null} trace @param {number} [maxHeads] heads that are listed one by one */
export function describeRun(trace, maxHeads = Infinity) {
  if (trace === null) return "";
  const { source_tokens: edited, ablated_heads: heads, prefix_tokens: prefix, require, forbid } = trace.request;
  const parts = [
    heads?.length && `with heads off: ${describeHeads(heads, maxHeads)}`,
    edited?.length && "with edited source tokens",
    prefix?.length && `with a given prefix: ${givenTokens(trace).map(tokenLabel).join(" · ")}`,
    require?.length && `with required words: ${quoted(require)}`,
    forbid?.length && `with forbidden words: ${quoted(forbid)}`,
  ].filter(Boolean);
  return parts.length === 0 ? "" : `Run ${parts.join("; ")}.`;
}

/** What the names of saved files say of a run: "-heads-off". @param {Trace | null} trace */
export function fileSuffix(trace) {
  const names = {
    ablated_heads: "heads-off",
    source_tokens: "edited",
    prefix_tokens: "given-prefix",
    require: "required-words",
    forbid: "forbidden-words",
  };
  const conditions = trace === null ? {} : conditionsOf(trace.request);
  return Object.entries(names)
    .filter(([name]) => name in conditions)
    .map(([, suffix]) => `-${suffix}`)
    .join("");
}

/** Heads by attention type: "cross-attention 2.1, 2.3 (zeros); encoder self-attention 1.1 (mean)". @param {AblatedHead[]} heads @param {number} maxHeads */
function describeHeads(heads, maxHeads) {
  /** @type {Map<string, string[]>} */
  const groups = new Map();
  for (const { attention_type: type, layer, head, ablation } of heads.slice(0, maxHeads)) {
    const key = `${ATTENTION_NAMES[type].toLowerCase()}|${ablation === "zero" ? "zeros" : "mean"}`;
    groups.set(key, [...(groups.get(key) ?? []), `${layer + 1}.${head + 1}`]);
  }
  const texts = [...groups].map(([key, names]) => {
    const [type, ablation] = key.split("|");
    return `${type} ${names.join(", ")} (${ablation})`;
  });
  const more = heads.length - maxHeads;
  return `${texts.join(", ")}${more > 0 ? `, and ${more} more` : ""}`;
}

/** @param {string[]} words */
function quoted(words) {
  return words.map((word) => `“${word}”`).join(", ");
}
