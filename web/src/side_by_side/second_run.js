/**
 * The second run, as the address keeps it: what differs from the first one. What it leaves out is that of the first run:
 * its model, its text and its decoding settings. Conditions, such as heads that are off, are never taken over.
 */

/** @import { AttentionType, ModelSummary, RunRequest, Trace } from "../contract" */

import { conditionsFromAddress, conditionsToAddress } from "../page/run_conditions.js";

/**
 * What is selected in the second pane only, because the first run has no such thing: a node of the search tree, a token
 * or an output position without a counterpart, or a head of a larger model. `at` is the first run's head at that time.
 * @typedef {object} Own
 * @property {number} [node]
 * @property {number} [token]
 * @property {number} [position]
 * @property {{ attention_type: AttentionType, layer: number, head: number, at: string }} [head]
 */

/** @typedef {Record<string, unknown> & { model?: string, text?: string, own?: Own }} SecondRun */

/** The second run in the address; null if there is one run only. @param {string} text @returns {SecondRun | null} */
export function parseSecond(text) {
  if (text === "") return null;
  try {
    const second = JSON.parse(text);
    if (typeof second !== "object" || second === null || Array.isArray(second)) return {};
    const { model, text: own, ...rest } = second;
    return {
      ...rest,
      ...(typeof model === "string" ? { model } : {}),
      ...(typeof own === "string" ? { text: own } : {}),
    };
  } catch {
    return {}; // a broken link still shows something
  }
}

/**
 * The request of the second run. The server checks its values.
 * @param {SecondRun} second
 * @param {Trace} first
 * @param {ModelSummary} model
 * @returns {RunRequest}
 */
export function secondRequest(second, first, model) {
  const { text, image, decoding } = first.request;
  const own = typeof second.decoding === "object" ? second.decoding : {};
  return {
    text: model.input === "image" ? "" : (second.text ?? text),
    ...(model.input === "image" ? { image } : {}),
    ...(model.generates ? { decoding: { ...decoding, ...own } } : {}),
    ...conditionsFromAddress(second),
  };
}

/**
 * What the address keeps of a run beside the first.
 * @param {string} model
 * @param {RunRequest} request
 * @param {Trace} first
 * @param {string} selected the model that is selected for the first run
 * @returns {SecondRun}
 */
export function describeSecond(model, request, first, selected) {
  const decoding = { ...first.model.decoding, ...first.request.decoding };
  const names = /** @type {(keyof typeof decoding)[]} */ (Object.keys(request.decoding ?? {}));
  const differs = names.some((name) => request.decoding?.[name] !== decoding[name]);
  return {
    ...(model === selected ? {} : { model }),
    ...(request.text === first.request.text ? {} : { text: request.text }),
    ...(differs ? { decoding: request.decoding } : {}),
    ...conditionsToAddress(request),
  };
}

/** The second run after its text or its model has changed: without what names its tokens or heads. @param {SecondRun} second @param {"text" | "model"} changed */
export function withoutOutdated(second, changed) {
  const { own: _own, source_tokens: _source, prefix_tokens: _prefix, ...rest } = second;
  if (changed === "text") return /** @type {SecondRun} */ (rest);
  const { ablated_heads: _heads, ...kept } = rest;
  return /** @type {SecondRun} */ (kept);
}

/** The second run in the address after another model was selected for the first. @param {string} text */
export function secondForOtherModel(text) {
  const second = parseSecond(text);
  return second === null || second.model !== undefined ? text : JSON.stringify(withoutOutdated(second, "model"));
}

/** The same for two requests that make the same run. @param {ModelSummary} model @param {RunRequest} request */
export function runKey(model, request) {
  const decoding = model.generates ? { ...model.decoding, ...request.decoding } : {};
  const settings = Object.entries(decoding).sort(([one], [other]) => (one < other ? -1 : 1));
  return JSON.stringify([model.id, request.text, request.image ?? "", settings, conditionsToAddress(request)]);
}
