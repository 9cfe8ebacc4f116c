/**
 * Attention as lines between two columns of tokens: from the queries on the left to the keys on the right. Each head has
 * its color and dash pattern, by its place in the order of selection; the larger the weight, the thicker the line. While a token is pointed at or pinned, only its lines are strong.
 */

/** @import { Selection } from "./selection.js" */

import { linkHorizontal } from "d3-shape";
import { h, s, setChildren } from "../../page/dom.js";
import { dashPattern, paletteColor } from "../../page/colors/palette.js";
import { formatWeight, headName } from "../../page/format.js";
import { onVisibleChange } from "../shared/visible_part.js";
import { TokenColumn } from "./token_column.js";

/** The number of lines drawn at most. */
const MAX_LINES = 300;
/** Faint lines of other tokens, behind those of the selected one. */
const MAX_FAINT_LINES = 120;
/** Histogram bins for finding the largest weights. */
const BINS = 4096;

/** @typedef {{ role: "query" | "key", group: number }} Pin */
/** @typedef {{ query: number, key: number, weight: number, head: number }} Line */

/**
 * @typedef {object} LinesOptions
 * @property {(pin: Pin | null) => void} pin
 * @property {(pin: Pin | null) => void} point called when the mouse or the focus moves to a token, or away
 */

/** @param {LinesOptions} options */
export function linesPanel(options) {
  const queryColumn = new TokenColumn("query", "Queries", () => drawing);
  const keyColumn = new TokenColumn("key", "Keys", () => drawing);
  const svg = s("svg", { class: "attention-lines", "aria-hidden": "true" });
  const drawing = h("div", { class: "lines" }, queryColumn.element, svg, keyColumn.element);
  const note = h("p", { class: "note", "data-role": "lines-note", "aria-live": "polite" });
  const element = h("div", { class: "lines-container" }, drawing, note);
  /** @type {{ selection: Selection, threshold: number, pinned: Pin | null, rowHeight: number } | null} */
  let shown = null;
  /** @type {Pin | null} */
  let pointed = null;
  /** @type {Line[]} */
  let drawnLines = [];
  let builtFor = "";

  /** @param {TokenColumn} own @param {TokenColumn} other */
  function addListeners(own, other) {
    const { element: column, role } = own;
    /** @param {Event} event @returns {Pin | null} */
    const pinAt = (event) => {
      const token = /** @type {Element} */ (event.target).closest("[data-group]");
      return token instanceof HTMLElement ? { role, group: Number(token.dataset.group) } : null;
    };
    column.addEventListener("click", (event) => {
      const pin = pinAt(event);
      if (pin === null) return;
      const isPinned = shown?.pinned?.role === pin.role && shown.pinned.group === pin.group;
      options.pin(isPinned ? null : pin);
    });
    for (const name of ["pointerover", "focusin"]) column.addEventListener(name, (event) => point(pinAt(event)));
    for (const name of ["pointerleave", "focusout"]) column.addEventListener(name, () => point(null));
    column.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const current = pinAt(event);
      if (current === null) return;
      const across = (event.key === "ArrowRight" && role === "query") || (event.key === "ArrowLeft" && role === "key");
      if (step === undefined && !across) return;
      event.preventDefault();
      const target = across ? other : own;
      target.setStop(across ? target.stop : current.group + (step ?? 0), true);
    });
  }
  addListeners(queryColumn, keyColumn);
  addListeners(keyColumn, queryColumn);

  /** @param {Pin | null} pin */
  function point(pin) {
    if (pin?.role === pointed?.role && pin?.group === pointed?.group) return;
    pointed = pin;
    options.point(pin);
    draw();
  }

  function draw() {
    if (shown === null) return;
    const { selection, threshold, rowHeight } = shown;
    const pin = pointed ?? shown.pinned;
    const { lines, omitted, maxWeight } = largestWeights(selection, threshold, pin);
    drawnLines = lines;
    const height = Math.max(selection.rows.length, selection.columns.length) * rowHeight;
    const width = svg.clientWidth || 200;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", String(height));
    const curve = linkHorizontal();
    /** @param {Line} line @param {number} opacity */
    const drawLine = ({ query, key, weight, head }, opacity) =>
      s("path", {
        d: curve({ source: [0, (query + 0.5) * rowHeight], target: [width, (key + 0.5) * rowHeight] }),
        fill: "none",
        stroke: paletteColor(head),
        "stroke-dasharray": dashPattern(head),
        "stroke-width": (0.8 + 5.2 * weight).toFixed(2),
        "stroke-opacity": (opacity * (0.16 + 0.8 * Math.sqrt(weight))).toFixed(3),
        "stroke-linecap": dashPattern(head) === "none" ? "round" : "butt",
      });
    const faint = pin === null ? [] : largestWeights(selection, threshold, null).lines.slice(0, MAX_FAINT_LINES);
    setChildren(
      svg,
      faint.reverse().map((line) => drawLine(line, 0.14)),
      [...lines].reverse().map((line) => drawLine(line, 1)),
    );
    markTokens(pin);
    note.textContent = describe(lines.length, omitted, maxWeight, threshold, pin, selection);
  }

  /** @param {Pin | null} pin */
  function markTokens(pin) {
    for (const column of [queryColumn, keyColumn]) {
      const { role } = column;
      for (const [group, token] of column.tokens()) {
        token.classList.toggle("pinned", pin?.role === role && group === pin.group);
        const isPinned = shown?.pinned?.role === role && group === shown.pinned.group;
        token.setAttribute("aria-pressed", String(isPinned));
      }
    }
    showWeights(pin);
  }

  /** Other tokens are visible. */
  function redrawTokens() {
    if (shown === null) return;
    queryColumn.drawVisible();
    keyColumn.drawVisible();
    markTokens(pointed ?? shown.pinned);
  }

  /**
   * Show the weights beside the tokens of the other column: as a number for one head, as swatches for several.
   * @param {Pin | null} pin
   */
  function showWeights(pin) {
    if (shown === null) return;
    const { selection, threshold } = shown;
    for (const column of [queryColumn, keyColumn])
      for (const weights of column.element.querySelectorAll(".weights")) weights.replaceChildren();
    if (pin === null) return;
    const column = pin.role === "query" ? keyColumn : queryColumn;
    for (const [group, token] of column.tokens()) {
      const weights = selection.overlaid.map(({ matrix }) =>
        pin.role === "query"
          ? matrix.values[pin.group * matrix.columns + group]
          : matrix.values[group * matrix.columns + pin.group],
      );
      const container = token.querySelector(".weights");
      if (weights.length === 1) container?.append(weights[0] >= threshold ? formatWeight(weights[0]) : "");
      else {
        container?.append(
          ...weights.map((weight, head) => {
            const { layer, head: number } = selection.overlaid[head];
            const title = `${headName(layer, number)}: ${formatWeight(weight)}`;
            const swatch = h("span", { class: "swatch", title });
            swatch.style.backgroundColor = paletteColor(head);
            swatch.style.opacity = String(Math.max(0.06, Math.sqrt(weight)));
            return swatch;
          }),
        );
      }
    }
  }

  const observer = new ResizeObserver(() => draw());
  observer.observe(drawing);
  const stopWatching = onVisibleChange(drawing, redrawTokens);

  return {
    element,
    /**
     * @param {Selection} selection
     * @param {number} threshold
     * @param {Pin | null} pinned
     */
    show(selection, threshold, pinned) {
      const count = Math.max(selection.rows.length, selection.columns.length);
      const rowHeight = count <= 40 ? 28 : count <= 120 ? 22 : 18;
      shown = { selection, threshold, pinned, rowHeight };
      const labels = JSON.stringify([
        selection.rows.map((row) => row.label),
        selection.columns.map((column) => column.label),
      ]);
      if (labels !== builtFor) {
        builtFor = labels;
        pointed = null;
        queryColumn.show(selection.rows, rowHeight);
        keyColumn.show(selection.columns, rowHeight);
        drawing.style.setProperty("--row-height", `${rowHeight}px`);
      }
      if (pinned !== null) (pinned.role === "query" ? queryColumn : keyColumn).setStop(pinned.group);
      draw();
    },
    destroy() {
      observer.disconnect();
      stopWatching();
    },
    read: () => ({ lines: drawnLines.map((line) => ({ ...line })), note: note.textContent ?? "" }),
  };
}

/**
 * The largest weights above the threshold, in descending order, and how many more there are.
 * @param {Selection} selection
 * @param {number} threshold
 * @param {Pin | null} pin
 * @returns {{ lines: Line[], omitted: number, maxWeight: number }}
 */
export function largestWeights(selection, threshold, pin) {
  const minWeight = Math.max(threshold, 1e-4);
  // Long texts have millions of weights. A histogram finds the cutoff first, so that only the drawn ones become objects.
  const histogram = new Uint32Array(BINS + 1);
  let [count, maxWeight] = [0, 0];
  forEachWeight(selection, pin, (weight) => {
    if (weight > maxWeight) maxWeight = weight;
    if (weight < minWeight) return;
    histogram[Math.min(BINS, Math.floor(weight * BINS))] += 1;
    count += 1;
  });
  let bin = BINS;
  for (let found = histogram[BINS]; found < Math.min(MAX_LINES, count); found += histogram[bin]) bin -= 1;
  /** @type {Line[]} */
  const lines = [];
  forEachWeight(selection, pin, (weight, query, key, head) => {
    if (weight >= minWeight && weight * BINS >= bin) lines.push({ query, key, weight, head });
  });
  lines.sort((a, b) => b.weight - a.weight);
  return { lines: lines.slice(0, MAX_LINES), omitted: Math.max(0, count - MAX_LINES), maxWeight };
}

/**
 * @param {Selection} selection
 * @param {Pin | null} pin
 * @param {(weight: number, query: number, key: number, head: number) => void} visit
 */
function forEachWeight(selection, pin, visit) {
  selection.overlaid.forEach(({ matrix: { rows, columns, values } }, head) => {
    const [top, bottom] = pin?.role === "query" ? [pin.group, Math.min(rows, pin.group + 1)] : [0, rows];
    const [left, right] = pin?.role === "key" ? [pin.group, Math.min(columns, pin.group + 1)] : [0, columns];
    for (let row = top; row < bottom; row++) {
      for (let column = left; column < right; column++) visit(values[row * columns + column], row, column, head);
    }
  });
}

/**
 * @param {number} count
 * @param {number} omitted
 * @param {number} maxWeight
 * @param {number} threshold
 * @param {Pin | null} pin
 * @param {Selection} selection
 */
function describe(count, omitted, maxWeight, threshold, pin, selection) {
  if (count === 0) {
    return `No weight reaches ${threshold}; the largest is ${formatWeight(maxWeight)}. Move “Minimum weight” to the left.`;
  }
  const ends =
    pin === null
      ? ""
      : pin.role === "query"
        ? ` from “${selection.rows[pin.group]?.label}”`
        : ` to “${selection.columns[pin.group]?.label}”`;
  const lines = `${count} ${count === 1 ? "line" : "lines"}${ends} with a weight of ${threshold} or more`;
  const more = omitted === 0 ? "." : `; ${omitted.toLocaleString("en")} smaller ones are not drawn.`;
  return `${lines}${more}${pin === null ? "" : " The faint lines belong to other tokens."}`;
}
