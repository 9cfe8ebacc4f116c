/**
 * Running the model, one run at a time. Tokens arrive as they are generated; the finished run is a trace.
 */

/** @import { DecodingSettings, ModelSummary, RunRequest, Running, Source, State } from "../contract" */

import { errorMessage } from "./messages.js";

/**
 * @param {Source} source
 * @param {(message: string, kind?: "note" | "error") => void} notify
 */
export function createRunner(source, notify) {
  /** @type {Running | null} */
  let running = null;
  /** @type {Set<(running: Running | null) => void>} */
  const listeners = new Set();

  /** @param {Running | null} current */
  function setRunning(current) {
    running = current;
    for (const listener of [...listeners]) listener(running);
  }

  return {
    running: () => running,
    /** @param {(running: Running | null) => void} listener */
    subscribe(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    /**
     * @param {string} model
     * @param {RunRequest} request
     * @returns {Promise<string | null>} the trace's id; null if the run was stopped or failed, which is reported
     */
    async run(model, request) {
      running?.stop();
      const abort = new AbortController();
      /** @type {Running} */
      const run = { request, tokens: [], stop: () => abort.abort() };
      setRunning(run);
      try {
        return await source.run(
          model,
          request,
          (event) => {
            if (event.event !== "token" || running !== run) return;
            run.tokens.push(event);
            setRunning(run);
          },
          abort.signal,
        );
      } catch (error) {
        if (!abort.signal.aborted) notify(errorMessage(error), "error");
        else if (running === run) notify("Stopped.");
        return null;
      } finally {
        if (running === run) setRunning(null);
      }
    },
  };
}

/**
 * The decoding settings of the state, with the model's defaults for those that are not set.
 * @param {State} state
 * @param {ModelSummary} model
 * @returns {DecodingSettings}
 */
export function decodingSettings(state, model) {
  const defaults = model.decoding;
  return {
    method: state.method,
    beam_size: state.beam_size ?? defaults.beam_size,
    max_new_tokens: state.max_new_tokens ?? defaults.max_new_tokens,
    temperature: state.temperature ?? defaults.temperature,
    top_k: state.top_k ?? defaults.top_k,
    top_p: state.top_p ?? defaults.top_p,
    seed: state.seed ?? defaults.seed,
  };
}
