/**
 * What each head is worth: a job on the server, with its progress and a way to stop it.
 *
 * A job goes on while a person looks at something else. Coming back, its progress is found again.
 */

import { h, put } from "../../page/dom.js";
import { radioRow } from "./choose.js";
import { sentence } from "./latest.js";
import { fixed, short } from "./numbers.js";

/** @import { Job, ModelSummary, Source, Store, Worth, WorthRequest } from "../../contract.d.ts" */

/** How often a running job is asked, in milliseconds. */
const PERIOD = 500;

/** Jobs begun in this page, by model. @type {Map<string, Job>} */
const begun = new Map();

export class WorthControl {
  /** @param {Source} source @param {Store} store @param {(worth: Worth | null) => void} hear */
  constructor(source, store, hear) {
    this.source = source;
    this.store = store;
    this.hear = hear;
    /** @type {ModelSummary | null} */
    this.model = null;
    /** @type {"loss" | "bleu"} */
    this.measure = "loss";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.waiting = undefined;
    this.measures = radioRow("Measured by", (value) => this.choose(/** @type {"loss" | "bleu"} */ (value)));
    this.start = h("button", { type: "button", onclick: () => this.begin() }, "Measure every head");
    this.halt = h("button", { type: "button", hidden: true, onclick: () => this.end() }, "Stop");
    this.bar = h("progress", { max: 1, value: 0, "aria-label": "Heads measured", hidden: true });
    this.words = h("p", { class: "note", role: "status" });
    const hint = "one sentence a line; for a translator, a pair with a tab between";
    this.lines = h("textarea", { rows: 3, placeholder: hint, "aria-label": `Sentences of your own: ${hint}` });
    this.element = h(
      "div",
      {},
      h("div", { class: "controls" }, this.measures.element, this.start, this.halt, this.bar),
      h("details", {}, h("summary", {}, "With sentences of your own"), this.lines),
      this.words,
    );
  }

  /** @param {ModelSummary} model */
  show(model) {
    if (this.model?.id === model.id) return;
    this.model = model;
    clearTimeout(this.waiting);
    const measures = model.task === "translation" ? ["loss", "bleu"] : ["loss"];
    if (!measures.includes(this.measure)) this.measure = "loss";
    this.measures.show(
      measures.map((value) => ({ value, label: value === "bleu" ? "BLEU" : "loss" })),
      this.measure,
    );
    const job = begun.get(model.id);
    if (job) return this.take(job);
    this.rest(null, "");
    const named = this.store.get().job;
    if (named !== "" && this.source.live) void this.find(named, model);
  }

  /** A job that the address names; one of another model, or of a server that is no more, is passed over. @param {string} id @param {ModelSummary} model */
  async find(id, model) {
    const job = await this.source.job(id).catch(() => null);
    if (job?.model === model.id && this.model?.id === model.id && !begun.has(model.id)) this.take(job);
  }

  destroy() {
    clearTimeout(this.waiting);
    this.model = null;
  }

  /** @param {"loss" | "bleu"} measure */
  choose(measure) {
    this.measure = measure;
  }

  async begin() {
    const model = this.model;
    if (!model) return;
    const lines = this.lines.value.split("\n").filter((line) => line.trim() !== "");
    /** @type {WorthRequest} */
    const request = { how: this.store.get().off_how, measure: this.measure, ...(lines.length > 0 ? { lines } : {}) };
    this.start.disabled = true;
    put(this.words, "Beginning …");
    try {
      const job = await this.source.worth(model.id, request);
      this.store.set({ job: job.id });
      this.take(job);
    } catch (error) {
      this.rest(null, `The heads could not be measured: ${sentence(error)}`, true);
    }
  }

  async end() {
    const job = this.model && begun.get(this.model.id);
    if (!job) return;
    try {
      await this.source.stop(job.id);
      this.take(await this.source.job(job.id));
    } catch (error) {
      this.rest(job.result ?? null, `It could not be stopped: ${sentence(error)}`, true);
    }
  }

  /** @param {Job} job */
  take(job) {
    const model = this.model;
    if (!model) return;
    begun.set(model.id, job);
    clearTimeout(this.waiting);
    if (job.state !== "running") {
      const end = { done: "", stopped: "Stopped. ", failed: `It failed: ${job.reason} ` }[job.state];
      this.rest(job.result ?? null, `${end}${inWords(job.result)}`, job.state === "failed");
      return;
    }
    this.busy(true);
    this.bar.max = Math.max(1, job.of);
    this.bar.value = job.done;
    put(this.words, `${job.done} of ${job.of} measured. ${inWords(job.result)}`);
    this.hear(job.result ?? null);
    this.waiting = setTimeout(() => void this.ask(job), PERIOD);
  }

  /** @param {Job} job */
  async ask(job) {
    try {
      const answer = await this.source.job(job.id);
      if (this.model && begun.get(this.model.id)?.id === job.id) this.take(answer);
    } catch (error) {
      if (this.model) begun.delete(this.model.id);
      this.rest(job.result ?? null, `The measuring was lost: ${sentence(error)}`, true);
    }
  }

  /** @param {Worth | null} worth @param {string} words @param {boolean} [failed] */
  rest(worth, words, failed = false) {
    this.busy(false);
    this.words.classList.toggle("problem", failed);
    put(this.words, words);
    this.hear(worth);
  }

  /** @param {boolean} working */
  busy(working) {
    this.start.disabled = working;
    this.halt.hidden = !working;
    this.bar.hidden = !working;
    if (working) this.words.classList.remove("problem");
  }
}

/** @param {Worth | undefined} worth */
function inWords(worth) {
  if (!worth) return "";
  const name = worth.measure === "bleu" ? `BLEU ${fixed(worth.whole, 1)}` : `a loss of ${short(worth.whole, 4)}`;
  return `With all heads: ${name} over ${worth.sentences} sentences. Each number is the change without that head.`;
}
