/**
 * The runs on disk as a list to choose from; each has a number and a colour, which its curves have too.
 */

import { h } from "../../page/dom.js";
import { short } from "./numbers.js";

/** @import { RunSummary } from "../../contract.d.ts" */
/** @import { RunFeed } from "./run_feed.js" */

const EMPTY = "There are no runs here yet. Train one with regard train RECIPE, and it appears.";
const FILE = "This page is a file, which carries no runs. Open a live one with regard look to see those on disk.";

/**
 * @param {RunFeed} feed
 * @param {(number: number) => string} colour
 * @param {(id: string, shown: boolean) => void} choose
 */
export function runList(feed, colour, choose) {
  const { runs, problem } = feed;
  const again = h("button", { type: "button", onclick: () => void feed.look(true) }, "Try again");
  return [
    problem ? h("p", { class: "problem", role: "status" }, `The runs could not be read: ${problem} `, again) : null,
    runs === null && !problem ? h("p", { class: "note", role: "status" }, "Looking for runs …") : null,
    runs?.length === 0 ? h("p", { class: "note" }, feed.source.live ? EMPTY : FILE) : null,
    runs?.length
      ? h(
          "ul",
          { class: "run-list" },
          runs.map((run, index) => item(feed, run, index, colour(index), choose)),
        )
      : null,
  ];
}

/** The last parts of where a run lies. @param {RunSummary} run */
export function runName({ folder }) {
  return folder.split(/[/\\]/).filter(Boolean).slice(-2).join("/");
}

/**
 * @param {RunFeed} feed
 * @param {RunSummary} run
 * @param {number} index
 * @param {string} colour
 * @param {(id: string, shown: boolean) => void} choose
 */
function item(feed, run, index, colour, choose) {
  const box = h("input", { type: "checkbox", "data-run": run.id, onchange: () => choose(run.id, box.checked) });
  box.checked = feed.chosen.has(run.id);
  const problem = feed.known.get(run.id)?.problem;
  const far = run.steps > 0 ? `step ${short(run.step, 7)} of ${short(run.steps, 7)}` : `step ${short(run.step, 7)}`;
  return h(
    "li",
    {},
    h(
      "label",
      { title: run.folder },
      box,
      h("span", { class: "swatch", style: { "--swatch": colour } }, index + 1),
      h("b", {}, runName(run)),
      h("span", { class: "soft" }, `${run.recipe} · ${far}`),
    ),
    run.live ? h("span", { class: "live" }, "● training now") : null,
    problem ? h("p", { class: "problem" }, `Its lines could not be read: ${problem}`) : null,
  );
}
