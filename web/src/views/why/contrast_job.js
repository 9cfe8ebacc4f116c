/**
 * Explaining a choice: a background job of the server, which reports results as it progresses.
 */

/** @import { Contrast, ContrastRequest, Job, Source } from "../../contract" */

import { errorMessage } from "../../page/messages.js";

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
    /** The job that runs on the server; "" if there is none. */
    this.id = "";
    /** The number of the latest request; what earlier ones report is ignored. */
    this.latest = 0;
  }

  /** @param {string} trace @param {ContrastRequest} request */
  async start(trace, request) {
    this.leave();
    const latest = this.latest;
    const key = JSON.stringify([trace, request]);
    const known = finished.get(key);
    if (known) return this.onProgress(known);
    this.onProgress({ state: "starting", done: 0, total: 0, error: "", contrast: null });
    try {
      let job = await this.source.explainChoice(trace, request);
      for (;;) {
        if (latest !== this.latest) return;
        this.id = job.state === "running" ? job.id : "";
        const { state, done, total, error } = job;
        /** @type {Progress} */
        const progress = { state, done, total, error, contrast: asContrast(job) };
        if (state === "done") remember(key, progress);
        this.onProgress(progress);
        if (state !== "running") return;
        await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL));
        if (latest === this.latest) job = await this.source.job(job.id);
      }
    } catch (error) {
      if (latest === this.latest)
        this.onProgress({ state: "failed", done: 0, total: 0, error: errorMessage(error), contrast: null });
    }
  }

  /** Stop the job; what it has found stays, and its last report follows. */
  async stop() {
    if (this.id !== "") await this.source.stopJob(this.id).catch(() => undefined);
  }

  /** Stop the job and ignore what it reports. */
  leave() {
    void this.stop();
    this.id = "";
    this.latest += 1;
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
