/**
 * Measuring the importance of all heads: a background job of the server, with its progress and a stop button.
 *
 * The job keeps running while the user visits other views; its progress is shown again on return.
 */

import { h, setChildren } from "../../page/dom.js";
import { formatFixed, formatNumber } from "../../page/format.js";
import { errorMessage } from "../../page/messages.js";
import { JobPoll } from "../../source/job_poll.js";
import { radioRow } from "../shared/choices.js";

/** @import { HeadImportance, HeadImportanceRequest, Job, ModelSummary, Source, Store } from "../../contract.d.ts" */

/** The jobs started in this page, by model. @type {Map<string, Job>} */
const jobs = new Map();

export class ImportanceControl {
  /** @param {Source} source @param {Store} store @param {(importance: HeadImportance | null) => void} onResult */
  constructor(source, store, onResult) {
    this.source = source;
    this.store = store;
    this.onResult = onResult;
    /** @type {ModelSummary | null} */
    this.model = null;
    /** @type {"loss" | "bleu"} */
    this.metric = "loss";
    this.poll = new JobPoll(source);
    this.metricRow = radioRow("Metric", (value) => {
      this.metric = /** @type {"loss" | "bleu"} */ (value);
    });
    this.startButton = h("button", { type: "button", onclick: () => this.start() }, "Measure all heads");
    this.stopButton = h("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop");
    this.progress = h("progress", { max: 1, value: 0, "aria-label": "Heads measured", hidden: true });
    this.status = h("p", { class: "note", role: "status" });
    const hint = "one sentence per line; for a translator, sentence and translation separated by a tab";
    this.lines = h("textarea", { rows: 3, placeholder: hint, "aria-label": `Your own sentences: ${hint}` });
    this.element = h(
      "div",
      {},
      h("div", { class: "controls" }, this.metricRow.element, this.startButton, this.stopButton, this.progress),
      h("details", {}, h("summary", {}, "Use your own sentences"), this.lines),
      this.status,
    );
  }

  /** @param {ModelSummary} model */
  show(model) {
    if (this.model?.id === model.id) return;
    this.model = model;
    this.poll.leave();
    if (!model.metrics.includes(this.metric)) this.metric = "loss";
    this.metricRow.update(
      model.metrics.map((value) => ({ value, label: value === "bleu" ? "BLEU" : "loss" })),
      this.metric,
    );
    const job = jobs.get(model.id);
    if (job) return this.follow(async () => job);
    this.finish(null, "");
    const id = this.store.get().job;
    if (id !== "" && this.source.live) void this.restore(id, model);
  }

  /** Show the job in the URL, unless it belongs to another model or a restarted server. @param {string} id @param {ModelSummary} model */
  async restore(id, model) {
    const job = await this.source.job(id).catch(() => null);
    if (job?.model === model.id && this.model?.id === model.id && !jobs.has(model.id)) this.follow(async () => job);
  }

  destroy() {
    this.poll.leave();
    this.model = null;
  }

  start() {
    const model = this.model;
    if (!model) return;
    const lines = this.lines.value.split("\n").filter((line) => line.trim() !== "");
    /** @type {HeadImportanceRequest} */
    const request = {
      ablation: this.store.get().ablation,
      metric: this.metric,
      ...(lines.length > 0 ? { lines } : {}),
    };
    this.startButton.disabled = true;
    setChildren(this.status, "Starting …");
    this.follow(async () => {
      const job = await this.source.measureHeads(model.id, request);
      this.store.set({ job: job.id });
      return job;
    });
  }

  async stop() {
    try {
      await this.poll.stop();
    } catch (error) {
      const job = this.model && jobs.get(this.model.id);
      this.poll.leave();
      this.finish(job ? importanceOf(job) : null, `The job could not be stopped: ${errorMessage(error)}`, true);
    }
  }

  /** @param {() => Promise<Job>} start */
  follow(start) {
    void this.poll.follow(
      start,
      (job) => this.showJob(job),
      (error, job) => {
        if (job === null) return this.finish(null, `The heads could not be measured: ${errorMessage(error)}`, true);
        if (this.model) jobs.delete(this.model.id);
        this.finish(importanceOf(job), `The job was lost: ${errorMessage(error)}`, true);
      },
    );
  }

  /** @param {Job} job */
  showJob(job) {
    const model = this.model;
    if (!model) return;
    jobs.set(model.id, job);
    if (job.state !== "running") {
      const outcome = { done: "", stopped: "Stopped. ", failed: `The job failed: ${job.error} ` }[job.state];
      this.finish(importanceOf(job), `${outcome}${describe(importanceOf(job))}`, job.state === "failed");
      return;
    }
    this.setRunning(true);
    this.progress.max = Math.max(1, job.total);
    this.progress.value = job.done;
    setChildren(this.status, `${job.done} of ${job.total} heads measured. ${describe(importanceOf(job))}`);
    this.onResult(importanceOf(job));
  }

  /** @param {HeadImportance | null} importance @param {string} status @param {boolean} [failed] */
  finish(importance, status, failed = false) {
    this.setRunning(false);
    this.status.classList.toggle("problem", failed);
    setChildren(this.status, status);
    this.onResult(importance);
  }

  /** @param {boolean} running */
  setRunning(running) {
    this.startButton.disabled = running;
    this.stopButton.hidden = !running;
    this.progress.hidden = !running;
    if (running) this.status.classList.remove("problem");
  }
}

/** What a job has measured so far. @param {Job} job @returns {HeadImportance | null} */
function importanceOf({ result }) {
  return result !== undefined && "metric" in result ? result : null;
}

/** @param {HeadImportance | null} importance */
function describe(importance) {
  if (!importance) return "";
  const { metric, baseline, examples } = importance;
  const value = metric === "bleu" ? `BLEU ${formatFixed(baseline, 1)}` : `a loss of ${formatNumber(baseline, 4)}`;
  return `Without ablation: ${value} on ${examples} examples. Each number is the change when that head is ablated.`;
}
