/**
 * Attention over an image: the image for each head, colored where the query attends. The query is by default what the
 * classifier reads, the class token or the mean of the patches; any patch and any other token can be chosen.
 */

/** @import { HeadChoice, Source, State, Store, Trace } from "../../contract" */

import { h, setChildren } from "../../page/dom.js";
import { formatPercent, formatWeight, headName } from "../../page/format.js";
import { paletteColor } from "../../page/colors/palette.js";
import { selectedHeads } from "../../page/selected_heads.js";
import { tokenLabel } from "../../page/tokens.js";
import { LatestRequest } from "../shared/latest_request.js";
import { slider } from "../shared/slider.js";
import { PatchCanvas, firstPatch, hasClassToken } from "./patch_canvas.js";
import { headKey } from "./weighted_sum.js";

const PATCH_NAMES = " A patch is named by its row and column, from 0,0 in the upper left.";

/** @typedef {{ layer: number, head: HeadChoice, weights: number[] }} HeadRow */
/** @typedef {{ key: string, trace: Trace, query: number, heads: HeadRow[] }} Shown */

/** The query: a position, or -1 for the mean of all patches. @param {State} state @param {Trace} trace */
export function imageQuery(state, trace) {
  const isPinned = state.token_role === "query" && state.token >= 0 && state.token < trace.source.length;
  return isPinned ? state.token : hasClassToken(trace) ? 0 : -1;
}

export class PatchPanel {
  /** @param {Source} source @param {Store} store @param {(message: string) => void} onError @param {() => void} onLoad */
  constructor(source, store, onError, onLoad) {
    this.source = source;
    this.store = store;
    this.onError = onError;
    this.onLoad = onLoad;
    this.queries = h("div", { class: "controls image-queries", role: "group", "aria-label": "Query" });
    this.strength = slider("Strength of the colors", 0, 1, 0.05, (overlay) => store.set({ overlay }));
    this.images = h("div", { class: "head-images" });
    this.legend = h("div", { class: "legends" });
    this.summary = h("p", { class: "note", "aria-live": "polite" });
    this.element = h(
      "div",
      { class: "patches", hidden: true },
      this.queries,
      h("div", { class: "controls" }, this.strength.element),
      this.images,
      this.legend,
      this.summary,
    );
    this.request = new LatestRequest();
    /** @type {Shown | null} */
    this.shown = null;
    this.requested = "";
    /** @type {{ canvas: PatchCanvas, caption: HTMLElement }[]} */
    this.figures = [];
  }

  /** @param {Trace} trace @param {State} state */
  update(trace, state) {
    this.element.hidden = trace.grid === undefined;
    if (trace.grid === undefined) return;
    this.strength.show(state.overlay, formatPercent);
    const query = imageQuery(state, trace);
    this.showQueries(trace, query);
    const heads = selectedHeads(state, trace.model);
    const key = JSON.stringify([trace.id, heads, query]);
    if (key === this.shown?.key) this.draw(state);
    if (key === this.requested) return;
    this.requested = key;
    const wanted = query < 0 ? { from: firstPatch(trace) } : query;
    const rows = heads.map(({ layer, head }) => this.source.row(trace.id, state.attention_type, layer, head, wanted));
    this.request.start(
      Promise.all(rows),
      (loaded) => {
        const weights = loaded.map((row) => Array.from(row.values));
        this.shown = { key, trace, query, heads: heads.map((head, index) => ({ ...head, weights: weights[index] })) };
        this.draw(this.store.get());
        this.onLoad();
      },
      (message) => {
        this.requested = "";
        this.onError(message);
      },
    );
  }

  /** Buttons for the queries that are no patch. @param {Trace} trace @param {number} query */
  showQueries(trace, query) {
    const special = trace.source
      .slice(0, firstPatch(trace))
      .map((_, position) => ({ name: queryName(trace, position), position }));
    const others = hasClassToken(trace) ? [] : [{ name: queryName(trace, -1), position: -1 }];
    const buttons = [...others, ...special].map(({ name, position }) =>
      h(
        "button",
        {
          type: "button",
          "data-query": position,
          "aria-pressed": String(query === position),
          onclick: () => this.store.set({ token: position, token_role: "query" }),
        },
        name.charAt(0).toUpperCase() + name.slice(1),
      ),
    );
    const focused = this.queries.querySelector(":focus")?.getAttribute("data-query");
    setChildren(
      this.queries,
      h("span", { class: "note" }, "Query:"),
      buttons,
      h("span", { class: "note" }, "or select a patch of the image"),
    );
    buttons.find((button) => button.dataset.query === focused)?.focus();
  }

  /** @param {State} state */
  draw({ overlay }) {
    const { trace, query, heads } = /** @type {Shown} */ (this.shown);
    const grid = /** @type {NonNullable<Trace["grid"]>} */ (trace.grid);
    const first = firstPatch(trace);
    this.build(heads.length);
    const limit = this.limit();
    heads.forEach(({ layer, head, weights }, index) => {
      const { canvas, caption } = this.figures[index];
      const color = paletteColor(index);
      const patches = weights
        .slice(first)
        .map((weight) => ({ color, opacity: limit === 0 ? 0 : overlay * Math.sqrt(Math.min(1, weight / limit)) }));
      canvas.show(grid, patches, query - first);
      const name = headName(layer, head);
      canvas.canvas.setAttribute("aria-label", `${name}: attended patches; arrow keys move the query patch`);
      setChildren(caption, headKey(name, index));
    });
    setChildren(this.legend, overlayLegend(limit));
    setChildren(this.summary, describeQuery(trace, query), heads.map((head) => describeHead(trace, head)).join(" "), PATCH_NAMES);
  }

  /** The weight that has the full color: the largest on a patch other than the query. */
  limit() {
    if (this.shown === null) return 0;
    const { trace, query, heads } = this.shown;
    const first = firstPatch(trace);
    const others = heads.flatMap(({ weights }) => weights.filter((_, token) => token >= first && token !== query));
    return others.reduce((largest, weight) => Math.max(largest, weight), 0);
  }

  /** @param {number} count */
  build(count) {
    if (this.figures.length === count) return;
    const select = (/** @type {number} */ patch) => {
      const { trace } = /** @type {Shown} */ (this.shown);
      this.store.set({ token: firstPatch(trace) + patch, token_role: "query" });
    };
    this.figures = Array.from({ length: count }, () => ({
      canvas: new PatchCanvas("", select),
      caption: h("figcaption", {}),
    }));
    setChildren(
      this.images,
      this.figures.map(({ canvas, caption }) => h("figure", {}, canvas.canvas, caption)),
    );
    this.images.classList.toggle("several", count > 1);
  }

  read() {
    if (this.shown === null || this.shown.key !== this.requested) return null;
    const { query, heads } = this.shown;
    return { query, heads, limit: this.limit(), summary: this.summary.textContent ?? "" };
  }
}

/** @param {Trace} trace @param {number} query */
function queryName(trace, query) {
  if (query < 0) return "mean of all patches";
  const { piece } = trace.source[query];
  return query >= firstPatch(trace) ? `patch ${piece}` : piece === "⟨class⟩" ? "class token" : piece.replace(/[⟨⟩]/g, "");
}

/** @param {Trace} trace @param {number} query */
function describeQuery(trace, query) {
  if (query >= firstPatch(trace)) return `The query is the framed patch ${trace.source[query].piece}. `;
  if (query < 0)
    return "The query is the mean of all patches, because this model classifies the mean of their vectors: each weight is the mean over the queries. ";
  const isClass = trace.source[query].piece === "⟨class⟩";
  return isClass
    ? "The query is the class token, whose vector the classifier reads. "
    : `The query is ${queryName(trace, query)}, which belongs to no patch. `;
}

/** @param {Trace} trace @param {HeadRow} head */
function describeHead(trace, { layer, head, weights }) {
  const first = firstPatch(trace);
  let best = first;
  weights.forEach((weight, token) => {
    if (token >= first && weight > weights[best]) best = token;
  });
  const special = weights
    .slice(0, first)
    .map((weight, token) => `${formatPercent(weight)} on ${tokenLabel(trace.source[token])}`);
  const elsewhere = special.length === 0 ? "" : `; not in the image: ${special.join(", ")}`;
  const name = headName(layer, head);
  return `${name.charAt(0).toUpperCase()}${name.slice(1)}: most on patch ${trace.source[best].piece} (${formatPercent(weights[best])})${elsewhere}.`;
}

/** @param {number} limit */
function overlayLegend(limit) {
  const ticks = [0, 0.04, 0.16, 0.36, 0.64, 1].map((fraction) => {
    const tick = h("span", {}, fraction === 0 ? "0" : formatWeight(fraction * limit));
    tick.style.left = `${100 * Math.sqrt(fraction)}%`;
    return tick;
  });
  return h(
    "div",
    { class: "legend" },
    h("span", { class: "legend-label" }, "attention weight of a patch; the largest (beside the query’s own) has the full color"),
    h("div", { class: "ramp overlay-ramp" }, h("div", { class: "overlay-colors" }), ticks),
  );
}
