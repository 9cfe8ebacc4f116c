/**
 * Explaining a choice: a background job of the server, which reports results as it progresses.
 */

/** @import { Contrast, ContrastRequest, Job, Source } from "../../contract" */

import { errorMessage } from "../../page/messages.js";
import { JobPoll } from "../../source/job_poll.js";

/** Milliseconds between polls. */
const POLL_INTERVAL = 250;

/**
 * What is known of a choice. `state` is "starting" until the server has answered.
 * @typedef {object} Progress
 * @property {Job["state"] | "starting"} state
 * @property {number} done
 * @property {number} total
 * @property {string} error
 * @property {Contrast | null} contrast
 */

/** Explanations that were finished in this page, by trace and choice. @type {Map<string, Progress>} */
const finished = new Map();
const MAX_FINISHED = 50;

export class ContrastJob {
  /** @param {Source} source @param {(progress: Progress) => void} onProgress */
  constructor(source, onProgress) {
    this.source = source;
    this.onProgress = onProgress;
    this.poll = new JobPoll(source, POLL_INTERVAL);
  }

  /** @param {string} trace @param {ContrastRequest} request */
  async start(trace, request) {
    this.leave();
    const key = JSON.stringify([trace, request]);
    const known = finished.get(key);
    if (known) return this.onProgress(known);
    this.onProgress({ state: "starting", done: 0, total: 0, error: "", contrast: null });
    await this.poll.follow(
      () => this.source.explainChoice(trace, request),
      (job) => {
        const { state, done, total, error } = job;
        /** @type {Progress} */
        const progress = { state, done, total, error, contrast: asContrast(job) };
        if (state === "done") remember(key, progress);
        this.onProgress(progress);
      },
      (error) => this.onProgress({ state: "failed", done: 0, total: 0, error: errorMessage(error), contrast: null }),
    );
  }

  /** Stop the job; what it has found stays, and its last report follows. */
  async stop() {
    await this.poll.stop().catch(() => undefined);
  }

  /** Stop the job and ignore what it reports. */
  leave() {
    void this.stop();
    this.poll.leave();
  }
}

/** @param {Job} job @returns {Contrast | null} */
function asContrast({ result }) {
  return result !== undefined && "margin" in result ? result : null;
}

/** @param {string} key @param {Progress} progress */
function remember(key, progress) {
  finished.set(key, progress);
  for (const oldest of finished.keys()) {
    if (finished.size <= MAX_FINISHED) break;
    finished.delete(oldest);
  }
}
