/**
 * What heads do as a table: every head and every measure of one attention type, with the baselines; and all numbers as
 * CSV.
 */

/** @import { HeadRoles, Store } from "../../../contract" */
/** @import { Head, Measure, MeasuredHeads } from "./measured.js" */

import { h, setChildren } from "../../../page/dom.js";
import { formatCount, formatPercent } from "../../../page/format.js";
import { saveCsv } from "../../../page/save.js";
import { scrollable } from "../../shared/section.js";

/** @param {Store} store */
export function rolesTable(store) {
  const notes = h("div", {});
  const content = h("div", {});
  /** @type {HeadRoles | null} */
  let shown = null;
  const save = h(
    "button",
    { type: "button", "data-no-export": true, onclick: () => saveCsv({ name: "head-roles", rows: rolesRows(shown) }, "") },
    "Save all numbers as CSV",
  );
  const element = h(
    "section",
    { class: "panel roles-table", "aria-label": "What heads do", hidden: true },
    h("h2", {}, "What heads do"),
    content,
    notes,
    save,
  );

  return {
    element,
    /** @param {HeadRoles | null} roles @param {MeasuredHeads} measured @param {Head[]} heads in order @param {string} sorted */
    show(roles, measured, heads, sorted) {
      shown = roles;
      element.hidden = roles === null || measured.measures.length === 0;
      if (roles === null || element.hidden) return setChildren(content);
      const focused = content.contains(document.activeElement)
        ? /** @type {HTMLElement} */ (document.activeElement).dataset.sort
        : undefined;
      setChildren(content, scrollable("What heads do, as a table", buildTable(store, measured, heads, sorted)));
      if (focused !== undefined)
        /** @type {HTMLElement | null} */ (content.querySelector(`[data-sort="${CSS.escape(focused)}"]`))?.focus();
      const about = "The numbers are shares of attention, unless they are error rates or shares of words. Marked numbers beat their baseline.";
      setChildren(
        notes,
        [about, roles.rule, ...roles.notes].map((text) => h("p", { class: "note" }, text)),
        h(
          "details",
          {},
          h("summary", {}, "What each measure counts"),
          h(
            "dl",
            {},
            measured.measures.flatMap(({ label, description }) => [h("dt", {}, label), h("dd", {}, description)]),
          ),
        ),
      );
    },
  };
}

/** @param {Store} store @param {MeasuredHeads} measured @param {Head[]} heads @param {string} sorted */
function buildTable(store, measured, heads, sorted) {
  const { measures } = measured;
  const header = measures.map((measure) => {
    const isSorted = measure.name === sorted;
    return h(
      "th",
      { scope: "col", "aria-sort": isSorted ? (measure.is_error ? "ascending" : "descending") : null },
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          "data-sort": measure.name,
          onclick: () => store.set({ sort_heads: isSorted ? "" : measure.name }),
        },
        measure.label,
        h("span", { "aria-hidden": "true" }, isSorted ? (measure.is_error ? " ↑" : " ↓") : ""),
      ),
    );
  });
  const counts = measures.map((measure) => h("td", {}, formatCount(measure.count)));
  const baselines = measures.map((measure) => h("td", {}, describeBaseline(measured, measure)));
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h("tr", {}, h("th", { scope: "col" }, "Head"), header),
      h("tr", {}, h("th", { scope: "row" }, "Baseline"), baselines),
      h("tr", {}, h("th", { scope: "row" }, "Queries"), counts),
    ),
    h(
      "tbody",
      {},
      heads.map((head) => headRow(measured, head)),
    ),
  );
}

/** @param {MeasuredHeads} measured @param {Head} head */
function headRow(measured, head) {
  const cells = measured.measures.map((measure) => {
    const role = measured.role(head, measure.name);
    if (role === undefined) return h("td", {}, "–");
    const data = { "data-head": `${head.layer}.${head.head}`, "data-measure": measure.name, "data-value": role.value };
    const number = formatPercent(role.value);
    return h("td", { ...data, title: measured.describe(measure, role) }, role.tagged ? h("strong", {}, number) : number);
  });
  return h("tr", {}, h("th", { scope: "row" }, `${head.layer + 1}.${head.head + 1}`), cells);
}

/** The baseline of a measure; it differs by layer if their masks do. @param {MeasuredHeads} measured @param {Measure} measure */
function describeBaseline(measured, { name }) {
  const roles = [...measured.heads.values()].flatMap((each) => each.filter((role) => role.measure === name));
  const values = roles.map((role) => role.baseline);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const range = least === most ? formatPercent(least) : `${formatPercent(least)} – ${formatPercent(most)}`;
  const strategies = [...new Set(roles.map((role) => role.strategy))];
  return h("span", {}, range, h("br", {}), h("small", {}, strategies.join("; ")));
}

/** @param {HeadRoles | null} roles @returns {(string | number)[][]} */
function rolesRows(roles) {
  const labels = new Map(roles?.measures.map((measure) => [`${measure.attention_type} ${measure.name}`, measure]));
  const header = ["attention", "layer", "head", "measure", "value", "share of largest weights", "baseline", "strategy"];
  return [
    [...header, "queries", "tag"],
    ...(roles?.heads ?? []).map((role) => [
      role.attention_type,
      role.layer + 1,
      role.head + 1,
      role.measure,
      role.value,
      role.maximum ?? "",
      role.baseline,
      role.strategy,
      labels.get(`${role.attention_type} ${role.measure}`)?.count ?? "",
      role.tagged ? "yes" : "",
    ]),
  ];
}
