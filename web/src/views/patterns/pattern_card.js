/**
 * One pattern: its drawing, in which allowed pairs, pairs that are computed all the same, and skipped blocks differ in
 * color, and the work that it saves.
 */

/** @import { ModelPatterns, Patterns } from "../../contract" */
/** @import { NumberMatrices } from "../shared/number_matrix.js" */

import { colorCell } from "../../page/colors/scales.js";
import { h } from "../../page/dom.js";
import { ATTENTION_NAMES, formatCount, formatNumber, formatPercent } from "../../page/format.js";

/** What a color stands for: a positive number is blue, a negative one orange, and none gray. */
export const MASKED_VALUE = -0.22;
const DRAWING_SIZE = 260;

/** @typedef {Patterns["patterns"][number]} Pattern */

/** @param {NumberMatrices} matrices @param {Patterns} patterns @param {Pattern} pattern @param {ModelPatterns | null} ofModel */
export function patternCard(matrices, patterns, pattern, ofModel) {
  const { dense, block } = patterns;
  const { name, blocks, full_blocks, all_blocks, pairs, computed_pairs } = pattern;
  return h(
    "article",
    { class: "panel pattern-card", "data-pattern": name },
    h("h3", {}, name, " ", h("code", {}, pattern.pattern)),
    h("p", {}, pattern.description),
    drawing(matrices, patterns, pattern),
    h(
      "dl",
      { class: "pattern-numbers" },
      number("pairs", pairs, "Allowed", `${formatCount(pairs)} of ${formatCount(dense)} pairs (${formatPercent(pairs / dense)})`),
      number(
        "blocks",
        blocks,
        "Computed",
        `${formatCount(blocks)} of ${formatCount(all_blocks)} blocks of ${block} × ${block}` +
          (full_blocks > 0 ? `, ${formatCount(full_blocks)} of them without a mask` : ""),
      ),
      number(
        "computed",
        computed_pairs,
        "Saved",
        `${savedText(dense, computed_pairs)} Of the pairs that are computed, ${formatPercent(pairs / computed_pairs)} are allowed.`,
      ),
      h("dt", {}, "Used"),
      h("dd", {}, usedText(pattern, ofModel)),
    ),
  );
}

/** What the colors of a drawing mean. */
export function regionLegend() {
  return h(
    "ul",
    { class: "region-legend" },
    swatch(0.75, "allowed (weaker: a part of the pairs behind a cell)"),
    swatch(MASKED_VALUE, "computed, but masked: in a block with an allowed pair"),
    swatch(null, "skipped: no pair of the block is allowed"),
  );
}

/** @param {number | null} value @param {string} text */
export function swatch(value, text) {
  const mark = h("span", { class: "swatch", "aria-hidden": "true" });
  if (value !== null) colorCell(mark, "signed", value, 1); // else it has the gray of its style
  return h("li", {}, mark, text);
}

/** @param {NumberMatrices} matrices @param {Patterns} patterns @param {Pattern} pattern */
function drawing(matrices, { request, cell, block }, { name, cells, tiles, pairs, blocks }) {
  const tileOf = (/** @type {number} */ row, /** @type {number} */ column) =>
    tiles[Math.floor((row * cell) / block)][Math.floor((column * cell) / block)];
  const width = (/** @type {number} */ index) => Math.min(cell, request.length - index * cell);
  const share = (/** @type {number} */ row, /** @type {number} */ column) =>
    cells[row][column] / (width(row) * width(column));
  const values = cells.map((counts, row) =>
    counts.map((count, column) => {
      if (count > 0) return 0.25 + 0.5 * share(row, column);
      return tileOf(row, column) > 0 ? MASKED_VALUE : null;
    }),
  );
  const position = (/** @type {string} */ kind) => (/** @type {number} */ index) =>
    cell === 1 ? `${kind} ${index}` : `${kind === "query" ? "queries" : "keys"} ${index * cell}–${index * cell + width(index) - 1}`;
  return matrices.add(values, {
    label: `The pattern ${name}: ${pairs} allowed pairs in ${blocks} blocks.`,
    rowName: position("query"),
    columnName: position("key"),
    describe: (row, column) => {
      if (cells[row][column] > 0) {
        return cell === 1 ? "allowed" : `${formatPercent(share(row, column))} of the pairs allowed`;
      }
      return tileOf(row, column) > 0 ? "computed, but masked" : "skipped";
    },
    maxHeight: DRAWING_SIZE,
    limit: 1,
  });
}

/** @param {string} name @param {number} value @param {string} title @param {string} text */
function number(name, value, title, text) {
  return [h("dt", {}, title), h("dd", { "data-number": name, "data-value": value }, text)];
}

/** @param {number} dense @param {number} computed */
function savedText(dense, computed) {
  if (computed === dense) return "Nothing: as much is computed as without a pattern.";
  return `${formatPercent(1 - computed / dense)}: ${formatNumber(dense / computed, 2)} times fewer pairs than without a pattern.`;
}

/** @param {Pattern} pattern @param {ModelPatterns | null} ofModel */
function usedText({ pattern }, ofModel) {
  const found = (ofModel?.layers ?? []).filter((layer) => layer.pattern === pattern);
  if (found.length === 0) return "This model has no attention with this pattern, so there are no weights to show.";
  const types = [...new Set(found.map(({ attention_type }) => ATTENTION_NAMES[attention_type].toLowerCase()))];
  return `By this model, in ${types.join(" and ")}: see below.`;
}
