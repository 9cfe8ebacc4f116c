/**
 * Measuring what heads do: a background job of the server with its progress and a stop button; then sorting and filtering
 * the heads by what was measured.
 */

/** @import { HeadRoles, Job, ModelSummary, Source, State, Store } from "../../../contract" */
/** @import { MeasuredHeads } from "./measured.js" */

import { h, setChildren } from "../../../page/dom.js";
import { formatCount } from "../../../page/format.js";
import { errorMessage } from "../../../page/messages.js";
import { JobPoll } from "../../../source/job_poll.js";
import { dropDown } from "../../shared/choices.js";
import { ANY_TAG } from "./measured.js";

/** The latest job of each model in this page. @type {Map<string, Job>} */
const jobs = new Map();

export class RolesControl {
  /** @param {Source} source @param {Store} store @param {(roles: HeadRoles | null) => void} onResult */
  constructor(source, store, onResult) {
    this.source = source;
    this.store = store;
    this.onResult = onResult;
    this.poll = new JobPoll(source);
    /** @type {ModelSummary | null} */
    this.model = null;
    this.startButton = h("button", { type: "button", onclick: () => this.start() }, "Measure what heads do");
    this.stopButton = h("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop");
    this.progress = h("progress", { max: 1, value: 0, "aria-label": "Examples measured", hidden: true });
    this.status = h("p", { class: "note", role: "status" });
    const hint = "one sentence per line; for a translator, sentence and translation separated by a tab";
    this.lines = h("textarea", { rows: 3, placeholder: hint, "aria-label": `Your own sentences: ${hint}` });
    this.sorting = dropDown("Sort by", (sort_heads) => store.set({ sort_heads }));
    this.filter = dropDown("Show", (head_tag) => store.set({ head_tag }));
    this.choices = h("div", { class: "controls", hidden: true }, this.sorting.element, this.filter.element);
    this.element = h(
      "div",
      { class: "roles-control", "data-no-export": true },
      h("div", { class: "controls" }, this.startButton, this.stopButton, this.progress),
      h("details", {}, h("summary", {}, "Use your own sentences"), this.lines),
      this.status,
      this.choices,
    );
  }

  /**
   * @param {ModelSummary | null} model the model to measure; null if there is none, or one without tokens
   * @param {State} state
   */
  show(model, state) {
    this.element.hidden = model === null;
    if (model?.id === this.model?.id) return;
    this.model = model;
    this.poll.leave();
    this.report(null, "");
    if (model === null) return;
    const job = jobs.get(model.id);
    if (job) this.follow(async () => job);
    else if (state.sort_heads !== "" || state.head_tag !== "") this.start();
  }

  /** @param {MeasuredHeads} measured @param {State} state */
  showChoices(measured, state) {
    this.choices.hidden = measured.measures.length === 0;
    this.sorting.update(
      [
        { value: "", label: "layer and head" },
        ...measured.measures.map(({ name, label }) => ({ value: name, label })),
      ],
      measured.measure(state.sort_heads)?.name ?? "",
    );
    const tags = measured.measures.filter(({ name }) => measured.count(name) > 0);
    this.filter.update(
      [
        { value: "", label: "all heads" },
        ...(tags.length > 0 ? [{ value: ANY_TAG, label: "heads with a tag" }] : []),
        ...tags.map(({ name, tag }) => ({ value: name, label: `“${tag}” (${measured.count(name)})` })),
      ],
      tags.length > 0 && (state.head_tag === ANY_TAG || tags.some(({ name }) => name === state.head_tag))
        ? state.head_tag
        : "",
    );
  }

  start() {
    const { model } = this;
    if (model === null) return;
    const lines = this.lines.value.split("\n").filter((line) => line.trim() !== "");
    this.startButton.disabled = true;
    this.report(null, "Starting …");
    this.follow(() => this.source.measureRoles(model.id, lines.length > 0 ? { lines } : {}));
  }

  async stop() {
    try {
      await this.poll.stop();
    } catch (error) {
      this.status.textContent = `The job could not be stopped: ${errorMessage(error)}`;
    }
  }

  destroy() {
    this.poll.leave();
    this.model = null;
  }

  /** @param {() => Promise<Job>} start */
  follow(start) {
    void this.poll.follow(
      start,
      (job) => this.showJob(job),
      (error, job) => {
        this.showRunning(null);
        if (this.model) jobs.delete(this.model.id);
        const problem = job === null ? "What heads do could not be measured" : "The job was lost";
        this.report(rolesOf(job), `${problem}: ${errorMessage(error)}`, true);
      },
    );
  }

  /** @param {Job} job */
  showJob(job) {
    if (this.model === null) return;
    jobs.set(this.model.id, job);
    this.showRunning(job.state === "running" ? job : null);
    const roles = rolesOf(job);
    const examples = describeExamples(roles);
    if (job.state === "running") return this.report(roles, `${job.done} of ${job.total} steps.`);
    const text = { done: `Measured on ${examples}.`, stopped: `Stopped after ${examples}.`, failed: job.error }[job.state];
    this.report(roles, text, job.state === "failed");
  }

  /** @param {Job | null} job the running job */
  showRunning(job) {
    this.startButton.disabled = job !== null;
    this.stopButton.hidden = this.progress.hidden = job === null;
    this.progress.max = Math.max(1, job?.total ?? 1);
    this.progress.value = job?.done ?? 0;
  }

  /** @param {HeadRoles | null} roles @param {string} status @param {boolean} [failed] */
  report(roles, status, failed = false) {
    this.status.classList.toggle("problem", failed);
    setChildren(this.status, status);
    this.onResult(roles);
  }
}

/** What a job has measured so far. @param {Job | null} job @returns {HeadRoles | null} */
function rolesOf(job) {
  const result = job?.result;
  return result !== undefined && "measures" in result && result.heads.length > 0 ? result : null;
}

/** @param {HeadRoles | null} roles */
function describeExamples(roles) {
  const [examples, sentences] = [roles?.examples ?? 0, roles?.sentences ?? 0];
  const counted = (/** @type {number} */ count, /** @type {string} */ noun) =>
    `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
  return counted(examples, "example") + (sentences > 0 ? ` and ${counted(sentences, "sentence")} of a treebank` : "");
}
