/**
 * Lines of runs as they are written. A run that is live is asked for new lines again and again, but not while nobody looks.
 */

import { sentence } from "./latest.js";

/** @import { RunSummary, Source } from "../../contract.d.ts" */
/** @import { Line } from "./curves.js" */

/** @typedef {{ lines: Line[], next: number, problem: string }} Known */

/** How often lines, and how often the list of runs, are asked for, in milliseconds. */
const [LINES_EVERY, LIST_EVERY] = [2000, 10_000];

/** Among the runs that are wanted: none of them. */
export const NONE = "none";

export class RunFeed {
  /** @param {Source} source @param {() => void} hear called when there is something new */
  constructor(source, hear) {
    this.source = source;
    this.hear = hear;
    /** @type {RunSummary[] | null} */
    this.runs = null;
    this.problem = "";
    /** @type {Map<string, Known>} */
    this.known = new Map();
    /** The runs to show; empty: the usual. @type {string[] | null} */
    this.wanted = null;
    /** @type {Set<string>} */
    this.chosen = new Set();
    this.listed = 0;
    this.asking = false;
    this.over = false;
    this.heard = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.waiting = undefined;
    this.seen = () => (document.hidden ? clearTimeout(this.waiting) : void this.look());
    document.addEventListener("visibilitychange", this.seen);
  }

  /** Whether anything chosen is still being trained. */
  get live() {
    return (this.runs ?? []).some(({ id, live }) => live && this.chosen.has(id));
  }

  /** Show these runs. @param {string[]} ids none: those that are training, or the first */
  want(ids) {
    if (this.wanted?.join() === ids.join()) return;
    this.wanted = ids;
    this.settle();
    this.hear();
    void this.look();
  }

  /** Which runs are shown. What an address names and is not there is left out. */
  settle() {
    const wanted = this.wanted ?? [];
    const runs = this.runs ?? [];
    const shown = wanted.length > 0 ? runs.filter(({ id }) => wanted.includes(id)) : usual(runs);
    this.chosen = new Set(shown.map(({ id }) => id));
  }

  /**
   * Ask for what is new, and again after a while.
   * @param {boolean} [anew] whether the list is asked for in any case
   * @returns {Promise<void>}
   */
  async look(anew = false) {
    clearTimeout(this.waiting);
    if (this.asking) return;
    this.asking = true;
    try {
      if (anew || this.runs === null || Date.now() - this.listed > LIST_EVERY) await this.list();
      await Promise.all([...this.chosen].map((id) => this.lines(id)));
    } finally {
      this.asking = false;
    }
    if ([...this.chosen].some((id) => !this.known.has(id))) return this.look(); // chosen while we asked
    const now = this.signature();
    if (now !== this.heard) this.hear();
    this.heard = now;
    if (!document.hidden && this.source.live && !this.over)
      this.waiting = setTimeout(() => void this.look(), LINES_EVERY);
  }

  close() {
    this.over = true;
    clearTimeout(this.waiting);
    document.removeEventListener("visibilitychange", this.seen);
  }

  /** What is known, in short: the same if nothing has changed. */
  signature() {
    const lines = [...this.known].map(([id, { next, problem }]) => [id, next, problem]);
    return JSON.stringify([this.runs, this.problem, lines, [...this.chosen]]);
  }

  async list() {
    try {
      const first = this.runs === null;
      this.runs = await this.source.runs();
      this.listed = Date.now();
      this.problem = "";
      if (first) this.settle();
    } catch (error) {
      this.problem = sentence(error);
      this.listed = Date.now();
    }
  }

  /** @param {string} id */
  async lines(id) {
    const known = this.known.get(id) ?? { lines: [], next: 0, problem: "" };
    const run = this.runs?.find((one) => one.id === id);
    if (known.lines.length > 0 && known.problem === "" && !run?.live && run && lastStep(known.lines) >= run.step)
      return;
    try {
      const answer = await this.source.runLines(id, known.next);
      // A run that is taken up again forgets lines; then all of them come anew.
      const anew = answer.next < known.next;
      const lines = anew ? answer.lines : answer.lines.length > 0 ? [...known.lines, ...answer.lines] : known.lines;
      this.known.set(id, { lines, next: answer.next, problem: "" });
    } catch (error) {
      this.known.set(id, { ...known, problem: sentence(error) });
    }
  }
}

/** What is shown at first: all that is live, or else the first. @param {RunSummary[]} runs */
function usual(runs) {
  const live = runs.filter((run) => run.live);
  return live.length > 0 ? live : runs.slice(0, 1);
}

/** @param {Line[]} lines */
function lastStep(lines) {
  return lines.at(-1)?.step ?? 0;
}
