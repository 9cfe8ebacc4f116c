/**
 * The texts of the tour: sentences with links to the glossary ([[softmax]]), numbers of the model, tokens, and examples.
 */

/** @import { Child } from "../page/dom.js" */
/** @import { Token } from "../contract" */

import { h } from "../page/dom.js";
import { linkTerms } from "../page/glossary/links.js";
import { tokenLabel } from "../page/tokens.js";

/**
 * A sentence: say`The model has ${fact("heads", 4)} [[heads|head]].`
 * @param {TemplateStringsArray} texts
 * @param {(Child | Child[])[]} values
 * @returns {Child[]}
 */
export function say(texts, ...values) {
  const parts = texts.flatMap((text, index) => [...linkTerms(text), values[index]].flat());
  return parts.filter((part) => part !== null && part !== undefined && part !== false && part !== "");
}

/**
 * A number or name that was read from the model, with its exact value for checks.
 * @param {string} name
 * @param {number | string} value
 * @param {string} [shown]
 */
export function fact(name, value, shown = String(value)) {
  return h("b", { "data-fact": name, "data-value": value }, shown);
}

/** The text of a token, or of several. @param {Token[]} tokens */
export function spelled(...tokens) {
  return h("i", {}, tokens.map(tokenLabel).join(" "));
}

/**
 * An example with numbers of its own, which are not the model's.
 * @param {string} text
 * @param {string[]} columns the first is that of the row names
 * @param {(string | number)[][]} rows
 */
export function example(text, columns, rows) {
  const [corner, ...names] = columns;
  return h(
    "figure",
    { class: "tour-example" },
    h("figcaption", {}, text),
    h(
      "div",
      { class: "scrollable", tabindex: 0, role: "region", "aria-label": "An example" },
      h(
        "table",
        { class: "numbers" },
        h("thead", {}, h("tr", {}, corner === "" ? h("td") : h("th", { scope: "col" }, corner), names.map(columnHeader))),
        h("tbody", {}, rows.map(tableRow)),
      ),
    ),
  );
}

/** @param {string} name */
function columnHeader(name) {
  return h("th", { scope: "col", class: "number" }, name);
}

/** @param {(string | number)[]} row */
function tableRow([name, ...values]) {
  return h("tr", {}, h("th", { scope: "row" }, name), values.map((value) => h("td", { class: "number" }, value)));
}
