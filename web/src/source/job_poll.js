/**
 * Following a background job of the server: it is polled until it has ended.
 */

/** @import { Job, Source } from "../contract" */

export class JobPoll {
  /** @param {Source} source @param {number} [interval] milliseconds between polls */
  constructor(source, interval = 400) {
    this.source = source;
    this.interval = interval;
    /** The job that runs on the server; "" if there is none. */
    this.id = "";
    /** The number of the latest job; what earlier ones report is ignored. */
    this.latest = 0;
  }

  /**
   * Start or continue a job instead of the one before, and report it after each poll until it has ended.
   * @param {() => Promise<Job>} start
   * @param {(job: Job) => void} onJob
   * @param {(error: unknown, job: Job | null) => void} onError gets the last report, if there was one
   */
  async follow(start, onJob, onError) {
    this.leave();
    const { latest } = this;
    /** @type {Job | null} */
    let reported = null;
    try {
      let job = await start();
      for (;;) {
        if (latest !== this.latest) return;
        this.id = job.state === "running" ? job.id : "";
        reported = job;
        onJob(job);
        if (job.state !== "running") return;
        await new Promise((resolve) => setTimeout(resolve, this.interval));
        if (latest !== this.latest) return;
        job = await this.source.job(job.id);
      }
    } catch (error) {
      if (latest !== this.latest) return;
      this.id = "";
      onError(error, reported);
    }
  }

  /** Stop the job after its current step; its last report follows, with what it has found. */
  async stop() {
    if (this.id !== "") await this.source.stopJob(this.id);
  }

  /** Ignore what the job reports from now on; it goes on. */
  leave() {
    this.id = "";
    this.latest += 1;
  }
}
