/**
 * Saving two panes: both drawings beside each other under the difference, both tables one after the other, and a caption
 * that says what both runs were made with.
 */

/** @import { Exports, Trace } from "../contract" */

import { cssVariable, s } from "../page/dom.js";
import { truncate } from "../page/format.js";
import { describeRun } from "../page/run_conditions.js";

/** Pixels between drawings, and above each for its name. */
const [GAP, TITLE_HEIGHT] = [24, 34];
/** Letters of an input or output in a caption. */
const MAX_TEXT = 200;

/**
 * @param {{ first?: Exports, second?: Exports, difference?: Exports }} parts
 * @param {Trace} firstTrace
 * @param {Trace} secondTrace
 * @returns {Exports}
 */
export function combinedExports({ first = {}, second = {}, difference = {} }, firstTrace, secondTrace) {
  const { svg, csv } = first;
  return {
    ...(svg === undefined ? {} : { svg: () => drawTogether(svg(), second.svg?.(), difference.svg?.()) }),
    ...(csv === undefined
      ? {}
      : {
          csv: () => {
            const { name, rows } = csv();
            const tables = /** @type {const} */ ([
              ["first", rows],
              ["second", second.csv?.().rows ?? []],
              ["difference", difference.csv?.().rows ?? []],
            ]);
            return { name: `${name}-side-by-side`, rows: tables.flatMap(([run, table]) => table.map((row) => [run, ...row])) };
          },
        }),
    caption: () => `First run: ${describeTrace(firstTrace)} Second run: ${describeTrace(secondTrace)}`,
  };
}

/** A run in a sentence: its model, input, output and conditions. @param {Trace} trace */
export function describeTrace(trace) {
  const input = trace.grid === undefined ? `“${truncate(trace.request.text, MAX_TEXT)}”` : "an image";
  const output = trace.output === "" ? "" : ` → “${truncate(trace.output, MAX_TEXT)}”`;
  return `${trace.model.name}, ${input}${output}. ${describeRun(trace)}`.trim();
}

/** @param {SVGSVGElement} first @param {SVGSVGElement | undefined} second @param {SVGSVGElement | undefined} difference */
function drawTogether(first, second, difference) {
  const above = difference === undefined ? 0 : size(difference).height + TITLE_HEIGHT + GAP;
  const left = size(first).width + GAP;
  const placed = [
    { svg: difference, name: "Difference: second run − first run", x: 0, y: 0 },
    { svg: first, name: "First run", x: 0, y: above },
    { svg: second, name: "Second run", x: left, y: above },
  ].flatMap(({ svg, ...place }) => (svg === undefined ? [] : [{ svg, ...place }]));
  const width = Math.max(...placed.map(({ svg, x }) => x + size(svg).width));
  const height = Math.max(...placed.map(({ svg, y }) => y + TITLE_HEIGHT + size(svg).height));
  const style = { "font-family": cssVariable("--font"), "font-size": 15, "font-weight": 600, fill: cssVariable("--ink") };
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}` },
    s("rect", { width, height, fill: cssVariable("--paper") }),
    placed.flatMap(({ svg, name, x, y }) => {
      svg.setAttribute("x", String(x));
      svg.setAttribute("y", String(y + TITLE_HEIGHT));
      return [s("text", { x: x + 16, y: y + 24, ...style }, name), svg];
    }),
  );
}

/** @param {SVGSVGElement} svg */
function size(svg) {
  return { width: Number(svg.getAttribute("width")), height: Number(svg.getAttribute("height")) };
}
