/**
 * The metrics of training runs as they are logged. Live runs are polled for new records while the page is visible.
 */

import { errorMessage } from "../../page/messages.js";

/** @import { RunSummary, Source } from "../../contract.d.ts" */
/** @import { MetricRecord } from "./curves.js" */

/** @typedef {{ records: MetricRecord[], nextLine: number, error: string }} RunData */

/** Milliseconds between polls of the metrics, and of the list of runs. */
const [METRICS_INTERVAL, LIST_INTERVAL] = [2000, 10_000];

/** The id that selects no run at all. */
export const NO_RUNS = "none";

export class MetricsFeed {
  /** @param {Source} source @param {() => void} onChange called when there is new data */
  constructor(source, onChange) {
    this.source = source;
    this.onChange = onChange;
    /** @type {RunSummary[] | null} */
    this.runs = null;
    this.error = "";
    /** @type {Map<string, RunData>} */
    this.data = new Map();
    /** The requested runs; empty: the default. @type {string[] | null} */
    this.requested = null;
    /** @type {Set<string>} */
    this.selected = new Set();
    this.listedAt = 0;
    this.isPolling = false;
    this.isClosed = false;
    this.reported = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.onVisibilityChange = () => (document.hidden ? clearTimeout(this.timer) : void this.poll());
    document.addEventListener("visibilitychange", this.onVisibilityChange);
  }

  /** Whether a selected run is still training. */
  get isLive() {
    return (this.runs ?? []).some(({ id, live }) => live && this.selected.has(id));
  }

  /** Show these runs. @param {string[]} ids empty: those in training, or else the first */
  request(ids) {
    if (this.requested?.join() === ids.join()) return;
    this.requested = ids;
    this.updateSelection();
    this.onChange();
    void this.poll();
  }

  /** Select the requested runs, as far as they exist. */
  updateSelection() {
    const requested = this.requested ?? [];
    const runs = this.runs ?? [];
    const selected = requested.length > 0 ? runs.filter(({ id }) => requested.includes(id)) : defaultRuns(runs);
    this.selected = new Set(selected.map(({ id }) => id));
  }

  /**
   * Load what is new, and schedule the next poll.
   * @param {boolean} [reloadList]
   * @returns {Promise<void>}
   */
  async poll(reloadList = false) {
    clearTimeout(this.timer);
    if (this.isPolling) return;
    this.isPolling = true;
    try {
      if (reloadList || this.runs === null || Date.now() - this.listedAt > LIST_INTERVAL) await this.loadList();
      await Promise.all([...this.selected].map((id) => this.loadMetrics(id)));
    } finally {
      this.isPolling = false;
    }
    if ([...this.selected].some((id) => !this.data.has(id))) return this.poll(); // selected in the meantime
    const current = this.signature();
    if (current !== this.reported) this.onChange();
    this.reported = current;
    if (!document.hidden && this.source.live && !this.isClosed)
      this.timer = setTimeout(() => void this.poll(), METRICS_INTERVAL);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.onVisibilityChange);
  }

  /** A short description of all data: equal if nothing has changed. */
  signature() {
    const runs = [...this.data].map(([id, { nextLine, error }]) => [id, nextLine, error]);
    return JSON.stringify([this.runs, this.error, runs, [...this.selected]]);
  }

  async loadList() {
    try {
      const isFirst = this.runs === null;
      this.runs = await this.source.runs();
      this.error = "";
      if (isFirst) this.updateSelection();
    } catch (error) {
      this.error = errorMessage(error);
    }
    this.listedAt = Date.now();
  }

  /** @param {string} id */
  async loadMetrics(id) {
    const data = this.data.get(id) ?? { records: [], nextLine: 0, error: "" };
    const run = this.runs?.find((each) => each.id === id);
    const isComplete = run && !run.live && (data.records.at(-1)?.step ?? 0) >= run.step;
    if (data.records.length > 0 && data.error === "" && isComplete) return;
    try {
      const response = await this.source.runMetrics(id, data.nextLine);
      // A resumed run has dropped lines; then the response starts from the beginning.
      const restarted = response.next_line < data.nextLine;
      const added = response.records.length > 0 ? [...data.records, ...response.records] : data.records;
      this.data.set(id, { records: restarted ? response.records : added, nextLine: response.next_line, error: "" });
    } catch (error) {
      this.data.set(id, { ...data, error: errorMessage(error) });
    }
  }
}

/** The runs that are shown at first: all that are live, or else the first. @param {RunSummary[]} runs */
function defaultRuns(runs) {
  const live = runs.filter((run) => run.live);
  return live.length > 0 ? live : runs.slice(0, 1);
}
