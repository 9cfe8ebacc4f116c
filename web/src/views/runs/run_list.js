/**
 * The list of training runs to choose from; each has a number and a color, which its curves share.
 */

import { h } from "../../page/dom.js";
import { formatNumber } from "../../page/format.js";

/** @import { RunSummary } from "../../contract.d.ts" */
/** @import { MetricsFeed } from "./metrics_feed.js" */

const NO_RUNS_YET = "There are no runs yet. Start one with: regard train RECIPE";
const STANDALONE_FILE = "This page is a standalone file without runs. Use regard look to see the runs on disk.";

/**
 * @param {MetricsFeed} feed
 * @param {(index: number) => string} color
 * @param {(id: string, selected: boolean) => void} onSelect
 */
export function runList(feed, color, onSelect) {
  const { runs, error } = feed;
  const retry = h("button", { type: "button", onclick: () => void feed.poll(true) }, "Try again");
  return [
    error ? h("p", { class: "problem", role: "status" }, `The runs could not be loaded: ${error} `, retry) : null,
    runs === null && !error ? h("p", { class: "note", role: "status" }, "Loading the runs …") : null,
    runs?.length === 0 ? h("p", { class: "note" }, feed.source.live ? NO_RUNS_YET : STANDALONE_FILE) : null,
    runs?.length
      ? h(
          "ul",
          { class: "run-list" },
          runs.map((run, index) => listItem(feed, run, index, color(index), onSelect)),
        )
      : null,
  ];
}

/** The last parts of the run's folder. @param {RunSummary} run */
export function runName({ folder }) {
  return folder.split(/[/\\]/).filter(Boolean).slice(-2).join("/");
}

/**
 * @param {MetricsFeed} feed
 * @param {RunSummary} run
 * @param {number} index
 * @param {string} color
 * @param {(id: string, selected: boolean) => void} onSelect
 */
function listItem(feed, run, index, color, onSelect) {
  const box = h("input", { type: "checkbox", "data-run": run.id, onchange: () => onSelect(run.id, box.checked) });
  box.checked = feed.selected.has(run.id);
  const error = feed.data.get(run.id)?.error;
  const total = run.steps > 0 ? ` of ${formatNumber(run.steps, 7)}` : "";
  return h(
    "li",
    {},
    h(
      "label",
      { title: run.folder },
      box,
      h("span", { class: "run-color", style: { "--run-color": color } }, index + 1),
      h("b", {}, runName(run)),
      h("span", { class: "soft" }, `${run.recipe} · step ${formatNumber(run.step, 7)}${total}`),
    ),
    run.live ? h("span", { class: "live" }, "● in training") : null,
    run.problem ? h("p", { class: "problem" }, run.problem) : null,
    error ? h("p", { class: "problem" }, `Its metrics could not be loaded: ${error}`) : null,
  );
}
