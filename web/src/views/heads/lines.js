/**
 * Attention as lines between two columns of words: from who looks, on the left, to what is looked at, on the right. Each
 * head has its colour, a stronger link is thicker. A word that is pointed at or pinned shows its own lines only.
 */

/** @import { Group } from "../../page/tokens.js" */
/** @import { Selection } from "./selection.js" */

import { linkHorizontal } from "d3-shape";
import { h, put, s } from "../../page/dom.js";
import { weight } from "../../page/words.js";

/** More lines than this nobody can follow. */
const MOST = 300;
/** Lines of other words, behind those of the one that is looked at. */
const FAINT = 120;
/** Sizes of weights that are told apart when they are counted. */
const BINS = 4096;

/** @typedef {{ side: "query" | "key", group: number }} Pin */
/** @typedef {{ from: number, to: number, weight: number, head: number }} Link */

/**
 * @typedef {object} Asks
 * @property {(pin: Pin | null) => void} pin
 * @property {(pin: Pin | null) => void} point the mouse or focus is on a word, or on none
 */

/** @param {Asks} asks */
export function linesPanel(asks) {
  const left = h("div", { class: "words looks", role: "group", "aria-label": "Who looks" });
  const right = h("div", { class: "words seen", role: "group", "aria-label": "What is looked at" });
  const drawing = s("svg", { class: "links", "aria-hidden": "true" });
  const picture = h("div", { class: "lines" }, left, drawing, right);
  const note = h("p", { class: "note", "data-role": "lines-note", "aria-live": "polite" });
  const element = h("div", { class: "lines-place" }, picture, note);
  /** @type {{ selection: Selection, colours: string[], threshold: number, pinned: Pin | null, high: number } | null} */
  let shown = null;
  /** @type {Pin | null} */
  let pointed = null;
  /** @type {Link[]} */
  let drawnLinks = [];
  let built = "";

  /** @param {HTMLElement} column @param {"query" | "key"} side */
  function listen(column, side) {
    /** @param {Event} event @returns {Pin | null} */
    const at = (event) => {
      const word = /** @type {Element} */ (event.target).closest("[data-group]");
      return word instanceof HTMLElement ? { side, group: Number(word.dataset.group) } : null;
    };
    column.addEventListener("click", (event) => {
      const pin = at(event);
      if (pin === null) return;
      const same = shown?.pinned?.side === pin.side && shown.pinned.group === pin.group;
      asks.pin(same ? null : pin);
    });
    for (const come of ["pointerover", "focusin"]) column.addEventListener(come, (event) => point(at(event)));
    for (const go of ["pointerleave", "focusout"]) column.addEventListener(go, () => point(null));
    column.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const now = at(event);
      if (now === null) return;
      const across = (event.key === "ArrowRight" && side === "query") || (event.key === "ArrowLeft" && side === "key");
      if (step === undefined && !across) return;
      event.preventDefault();
      const goal = across ? (side === "query" ? right : left) : column;
      const next = goal.querySelector(across ? '[tabindex="0"]' : `[data-group="${now.group + (step ?? 0)}"]`);
      if (!(next instanceof HTMLElement)) return;
      for (const word of goal.querySelectorAll("[data-group]")) word.setAttribute("tabindex", "-1");
      next.tabIndex = 0;
      next.focus();
    });
  }
  listen(left, "query");
  listen(right, "key");

  /** @param {Pin | null} pin */
  function point(pin) {
    if (pin?.side === pointed?.side && pin?.group === pointed?.group) return;
    pointed = pin;
    asks.point(pin);
    draw();
  }

  function draw() {
    if (shown === null) return;
    const { selection, colours, threshold, high } = shown;
    const pin = pointed ?? shown.pinned;
    const { links, others, top } = strongest(selection, threshold, pin);
    drawnLinks = links;
    const height = Math.max(selection.rows.length, selection.columns.length) * high;
    const width = drawing.clientWidth || 200;
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("height", String(height));
    const curve = linkHorizontal();
    /** @param {Link} link @param {number} strong how much of its colour it has */
    const line = ({ from, to, weight: strength, head }, strong) =>
      s("path", {
        d: curve({ source: [0, (from + 0.5) * high], target: [width, (to + 0.5) * high] }),
        fill: "none",
        stroke: colours[head],
        "stroke-width": (0.8 + 5.2 * strength).toFixed(2),
        "stroke-opacity": (strong * (0.16 + 0.8 * Math.sqrt(strength))).toFixed(3),
        "stroke-linecap": "round",
      });
    const behind = pin === null ? [] : strongest(selection, threshold, null).links.slice(0, FAINT);
    put(
      drawing,
      behind.reverse().map((link) => line(link, 0.14)),
      [...links].reverse().map((link) => line(link, 1)),
    );
    mark(left, "query", pin);
    mark(right, "key", pin);
    strips(pin);
    note.textContent = described(links.length, others, top, threshold, pin, selection);
  }

  /** @param {HTMLElement} column @param {"query" | "key"} side @param {Pin | null} pin */
  function mark(column, side, pin) {
    for (const word of column.children) {
      const mine = pin?.side === side && Number(/** @type {HTMLElement} */ (word).dataset.group) === pin.group;
      const pinned =
        shown?.pinned?.side === side && Number(/** @type {HTMLElement} */ (word).dataset.group) === shown.pinned.group;
      word.classList.toggle("pinned", mine);
      word.setAttribute("aria-pressed", String(pinned));
    }
  }

  /**
   * Beside the words on the other side, how much weight each head gives: as a number for one head, as spots for several.
   * @param {Pin | null} pin
   */
  function strips(pin) {
    if (shown === null) return;
    const { selection, colours } = shown;
    for (const column of [left, right]) for (const place of column.querySelectorAll(".strip")) place.replaceChildren();
    if (pin === null) return;
    const column = pin.side === "query" ? right : left;
    for (const word of column.children) {
      const group = Number(/** @type {HTMLElement} */ (word).dataset.group);
      const strip = word.querySelector(".strip");
      const weights = selection.over.map(({ matrix }) =>
        pin.side === "query"
          ? matrix.values[pin.group * matrix.columns + group]
          : matrix.values[group * matrix.columns + pin.group],
      );
      if (weights.length === 1) strip?.append(weights[0] >= shown.threshold ? weight(weights[0]) : "");
      else {
        strip?.append(
          ...weights.map((each, head) => {
            const spot = h("span", { class: "spot", title: weight(each) });
            spot.style.backgroundColor = colours[head];
            spot.style.opacity = String(Math.max(0.06, Math.sqrt(each)));
            return spot;
          }),
        );
      }
    }
  }

  /** @param {Group[]} groups @param {boolean} before whether the numbers stand before the words */
  const words = (groups, before) =>
    groups.map((group, number) => {
      const strip = h("span", { class: "strip" });
      const letters = h("span", { class: "letters" }, group.label);
      const button = h(
        "button",
        {
          type: "button",
          class: group.special ? "word special" : "word",
          "data-group": number,
          tabindex: number === 0 ? 0 : -1,
          "aria-pressed": "false",
        },
        before ? [strip, letters] : [letters, strip],
      );
      return button;
    });

  const watcher = new ResizeObserver(() => draw());
  watcher.observe(picture);

  return {
    element,
    picture,
    /**
     * @param {Selection} selection
     * @param {string[]} colours of the heads
     * @param {number} threshold
     * @param {Pin | null} pinned
     */
    show(selection, colours, threshold, pinned) {
      const most = Math.max(selection.rows.length, selection.columns.length);
      const high = most <= 40 ? 28 : most <= 120 ? 22 : 18;
      shown = { selection, colours, threshold, pinned, high };
      const same = JSON.stringify([
        selection.rows.map((row) => row.label),
        selection.columns.map((column) => column.label),
      ]);
      if (same !== built) {
        built = same;
        pointed = null;
        put(left, words(selection.rows, true));
        put(right, words(selection.columns, false));
        picture.style.setProperty("--high", `${high}px`);
      }
      if (pinned !== null) {
        const column = pinned.side === "query" ? left : right;
        for (const word of column.querySelectorAll("[data-group]")) {
          /** @type {HTMLElement} */ (word).tabIndex =
            Number(/** @type {HTMLElement} */ (word).dataset.group) === pinned.group ? 0 : -1;
        }
      }
      draw();
    },
    destroy: () => watcher.disconnect(),
    read: () => ({ links: drawnLinks.map((link) => ({ ...link })), note: note.textContent ?? "" }),
  };
}

/**
 * The links to draw, strongest first, and how many more there are above the threshold.
 * @param {Selection} selection
 * @param {number} threshold
 * @param {Pin | null} pin
 * @returns {{ links: Link[], others: number, top: number }} top: the largest weight of all
 */
export function strongest(selection, threshold, pin) {
  const least = Math.max(threshold, 1e-4);
  // Long texts have millions of weights: they are counted first, by size, so that only those to be drawn become links.
  const counts = new Uint32Array(BINS + 1);
  let [count, top] = [0, 0];
  each(selection, pin, (weight) => {
    if (weight > top) top = weight;
    if (weight < least) return;
    counts[Math.min(BINS, Math.floor(weight * BINS))] += 1;
    count += 1;
  });
  let bin = BINS;
  for (let found = counts[BINS]; found < Math.min(MOST, count); found += counts[bin]) bin -= 1;
  /** @type {Link[]} */
  const links = [];
  each(selection, pin, (weight, from, to, head) => {
    if (weight >= least && weight * BINS >= bin) links.push({ from, to, weight, head });
  });
  links.sort((one, other) => other.weight - one.weight);
  return { links: links.slice(0, MOST), others: Math.max(0, count - MOST), top };
}

/**
 * @param {Selection} selection
 * @param {Pin | null} pin
 * @param {(weight: number, from: number, to: number, head: number) => void} see
 */
function each(selection, pin, see) {
  selection.over.forEach(({ matrix: { rows, columns, values } }, head) => {
    const [top, bottom] = pin?.side === "query" ? [pin.group, Math.min(rows, pin.group + 1)] : [0, rows];
    const [left, right] = pin?.side === "key" ? [pin.group, Math.min(columns, pin.group + 1)] : [0, columns];
    for (let row = top; row < bottom; row++) {
      for (let column = left; column < right; column++) see(values[row * columns + column], row, column, head);
    }
  });
}

/**
 * @param {number} count
 * @param {number} others
 * @param {number} top
 * @param {number} threshold
 * @param {Pin | null} pin
 * @param {Selection} selection
 */
function described(count, others, top, threshold, pin, selection) {
  if (count === 0) {
    return `No link reaches ${threshold}; the strongest has ${weight(top)}. Move “Lines from this weight on” to the left.`;
  }
  const whose =
    pin === null
      ? ""
      : pin.side === "query"
        ? ` from “${selection.rows[pin.group]?.label}”`
        : ` to “${selection.columns[pin.group]?.label}”`;
  const links = `${count} ${count === 1 ? "link" : "links"}${whose} of weight ${threshold} or more`;
  const more = others === 0 ? "." : `; ${others.toLocaleString("en")} weaker ones above it are not drawn.`;
  return `${links}${more}${pin === null ? "" : " The faint lines are those of other words."}`;
}
