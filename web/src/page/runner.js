/**
 * The model at work: one run at a time. Tokens are heard as they are written; the trace at the end is the one looked at.
 */

/** @import { DecodingSettings, ModelSummary, RunRequest, Running, Source, State } from "../contract" */

/**
 * @param {Source} source
 * @param {(sentence: string, kind?: "note" | "error") => void} say
 */
export function openRunner(source, say) {
  /** @type {Running | null} */
  let running = null;
  /** @type {Set<(running: Running | null) => void>} */
  const listeners = new Set();

  /** @param {Running | null} now */
  function become(now) {
    running = now;
    for (const hear of [...listeners]) hear(running);
  }

  return {
    running: () => running,
    /** @param {(running: Running | null) => void} hear */
    listen(hear) {
      listeners.add(hear);
      return () => void listeners.delete(hear);
    },
    /**
     * @param {string} model
     * @param {RunRequest} request
     * @returns {Promise<string | null>} the trace's id; null where it was stopped or went wrong, which is said
     */
    async run(model, request) {
      running?.stop();
      const control = new AbortController();
      /** @type {Running} */
      const mine = { request, tokens: [], stop: () => control.abort() };
      become(mine);
      try {
        return await source.run(
          model,
          request,
          (event) => {
            if (event.event !== "token" || running !== mine) return;
            mine.tokens.push(event);
            become(mine);
          },
          control.signal,
        );
      } catch (problem) {
        if (!control.signal.aborted) say(problem instanceof Error ? problem.message : String(problem), "error");
        else if (running === mine) say("Stopped.");
        return null;
      } finally {
        if (running === mine) become(null);
      }
    },
  };
}

/**
 * The decoding that the state asks for, as the model has it where it says nothing.
 * @param {State} state
 * @param {ModelSummary} model
 * @returns {DecodingSettings}
 */
export function decodingOf(state, model) {
  const own = model.decoding;
  return {
    method: state.method,
    beams: state.beams || own.beams,
    longest: state.longest || own.longest,
    temperature: state.temperature || own.temperature,
    top_k: state.top_k || own.top_k,
    top_p: state.top_p || own.top_p,
    seed: state.seed || own.seed,
  };
}
