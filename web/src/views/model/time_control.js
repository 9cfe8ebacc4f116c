/**
 * Measuring how long each box takes: a background job of the server, started by a button.
 */

/** @import { Job, ModuleTimes, Source, Trace } from "../../contract" */

import { h } from "../../page/dom.js";
import { errorMessage } from "../../page/messages.js";
import { JobPoll } from "../../source/job_poll.js";

/** Milliseconds between polls. */
const POLL_INTERVAL = 250;

/** What was measured in this page, by trace. @type {Map<string, ModuleTimes>} */
const measured = new Map();

export class TimeControl {
  /** @param {Source} source @param {() => void} onTimes called when there are times of the current trace */
  constructor(source, onTimes) {
    this.source = source;
    this.onTimes = onTimes;
    this.poll = new JobPoll(source, POLL_INTERVAL);
    this.trace = "";
    this.button = h("button", { type: "button", onclick: () => this.toggle() }, "Measure time");
    this.status = h("span", { class: "note", role: "status" });
    this.element = h("span", { class: "time-control" }, this.button, this.status);
  }

  /** The times of the current trace. */
  get times() {
    return measured.get(this.trace) ?? null;
  }

  /** @param {Trace | null} trace */
  show(trace) {
    const id = trace?.id ?? "";
    if (id === this.trace && this.button.dataset.ready === "yes") return;
    this.button.dataset.ready = "yes";
    if (id !== this.trace) this.leave();
    this.trace = id;
    this.button.hidden = !this.source.live;
    this.button.disabled = trace === null;
    if (!this.source.live) this.status.textContent = "Measuring the time needs the running model.";
    else this.describe();
  }

  toggle() {
    if (this.poll.id !== "") return void this.poll.stop().catch(() => undefined);
    const { trace } = this;
    this.button.textContent = "Stop";
    this.status.textContent = "Measuring …";
    return void this.poll.follow(
      () => this.source.measureTimes(trace),
      (job) => this.report(trace, job),
      (error) => this.fail(errorMessage(error)),
    );
  }

  /** @param {string} trace @param {Job} job */
  report(trace, { state, result, done, total, error }) {
    if (state === "failed") return this.fail(error);
    if (result !== undefined && "passes" in result && result.passes > 0) measured.set(trace, result);
    if (state === "running") this.status.textContent = `Measuring … pass ${done} of ${total}`;
    else this.describe();
    return this.onTimes();
  }

  /** @param {string} message */
  fail(message) {
    this.button.textContent = "Measure time";
    this.status.textContent = message;
  }

  describe() {
    const { times } = this;
    this.button.textContent = times === null ? "Measure time" : "Measure again";
    this.status.textContent =
      times === null
        ? ""
        : `Median of ${times.passes} ${times.passes === 1 ? "pass" : "passes"} on ${times.device}: a rough figure, because ` +
          "hooks run between the modules and the batch is a single input.";
  }

  /** Stop what is being measured. */
  leave() {
    void this.poll.stop().catch(() => undefined);
    this.poll.leave();
  }
}
