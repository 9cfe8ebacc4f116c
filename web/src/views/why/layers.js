/**
 * The logit lens: what each layer would write in every step, if the layers after it did nothing.
 */

/** @import { Lens, LensCell, Source, Trace } from "../../contract" */

import { probabilityLegend } from "../../page/colors/legend.js";
import { h, setChildren } from "../../page/dom.js";
import { formatCount, formatFixed, formatPercent } from "../../page/format.js";
import { firstGenerated, stepLabel, tokenLabel } from "../../page/tokens.js";
import { radioRow } from "../shared/choices.js";
import { LatestRequest } from "../shared/latest_request.js";
import { showError, showLoading } from "../shared/placeholders.js";
import { moveInTable } from "../shared/roving_focus.js";
import { scrollable, section } from "../shared/section.js";

/** What a cell shows. */
const MEASURES = [
  { value: "token", label: "likeliest token" },
  { value: "rank", label: "rank of the written one" },
  { value: "norm", label: "norm" },
  { value: "cosine", label: "cosine to the layer before" },
];

export class Layers {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    this.requests = new LatestRequest();
    this.measure = "token";
    this.measureRow = radioRow("Each cell shows", (value) => {
      this.measure = value;
      this.draw();
    });
    this.pages = h("div", { class: "controls", "data-no-export": true });
    this.table = h("div", {});
    this.legend = h("div", {}, probabilityLegend(), h("p", { class: "note" }, "The color is the probability of the token that was written in the end."));
    this.table.addEventListener("keydown", moveInTable);
    this.details = h("div", { class: "lens-details", role: "status" });
    this.element = section(
      "Layers",
      "What would each layer write, if the layers after it did nothing? The [[residual stream]] after the layer goes through " +
        "the decoder’s final norm (if it has one) and the [[output projection]], as that of the last layer does; this is the " +
        "[[logit lens]]. Rank 1 is the likeliest token. Early layers were never trained to be read in this way.",
      h("div", { class: "controls", "data-no-export": true }, this.measureRow.element),
      this.pages,
      this.table,
      this.details,
    );
    this.key = "";
    /** The steps in one response. */
    this.pageSize = 0;
    /** @type {Lens | null} */
    this.lens = null;
  }

  /** Show the steps of a trace, those around a position. @param {Trace} trace @param {number} [first] */
  update(trace, first = firstGenerated(trace)) {
    this.measureRow.update(MEASURES, this.measure);
    const key = `${trace.id} ${first}`;
    if (key === this.key) return;
    this.key = key;
    this.trace = trace;
    this.lens = null;
    setChildren(this.details);
    showLoading(this.table, "Reading the layers …");
    this.requests.start(
      this.source.lens(trace.id, { first }),
      (lens) => {
        this.lens = lens;
        this.drawPages(trace, lens);
        this.draw();
      },
      (message) => {
        showError(this.table, message, () => {
          this.key = "";
          this.update(trace, first);
        });
      },
    );
  }

  /** The last page that was asked for stays. @param {Trace} trace */
  refresh(trace) {
    if (trace.id === this.trace?.id) return;
    this.pageSize = 0;
    this.update(trace);
  }

  /** Buttons to the steps before and after, of a long output. @param {Trace} trace @param {Lens} lens */
  drawPages(trace, { first, written }) {
    this.pageSize = Math.max(this.pageSize, written.length); // the last page has fewer
    const [start, end] = [firstGenerated(trace), first + written.length];
    const button = (/** @type {string} */ label, /** @type {number} */ target) =>
      h("button", { type: "button", onclick: () => this.update(trace, target) }, label);
    const isPart = written.length < trace.generated.length;
    setChildren(
      this.pages,
      isPart && h("span", { class: "note" }, `Steps ${first - start + 1} to ${end - start} of ${trace.generated.length}`),
      first > start && button("earlier steps", Math.max(start, first - this.pageSize)),
      end < trace.target.length && button("later steps", end),
    );
  }

  draw() {
    const { lens } = this;
    if (lens === null) return;
    const header = h(
      "tr",
      {},
      h("td"),
      lens.written.map((token, step) => h("th", { scope: "col" }, stepLabel(lens.read[step], token))),
    );
    const rows = lens.layers.map((cells, layer) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, layerName(layer)),
        cells.map((cell, step) => h("td", {}, this.cell(cell, layer, step))),
      ),
    );
    const table = h("table", { class: "lens" }, h("thead", {}, header), h("tbody", {}, rows));
    setChildren(this.table, scrollable("What each layer would write in every step", table), this.legend);
    this.table.querySelector("button")?.setAttribute("tabindex", "0");
  }

  /** @param {LensCell} cell @param {number} layer @param {number} step */
  cell(cell, layer, step) {
    const [best] = cell.tokens;
    const isWritten = best.token.id === this.lens?.written[step].id;
    const values = {
      token: [h("b", {}, tokenLabel(best.token)), h("span", {}, formatPercent(best.probability))],
      rank: [h("b", {}, formatCount(cell.rank)), h("span", {}, formatPercent(cell.probability))],
      norm: [h("b", {}, formatFixed(cell.norm, 1))],
      cosine: [h("b", {}, formatFixed(cell.cosine))],
    };
    const button = h(
      "button",
      {
        type: "button",
        tabindex: -1,
        class: isWritten ? "lens-cell written" : "lens-cell",
        "data-layer": layer,
        "data-step": step,
        "data-token": best.token.id,
        "data-token-probability": best.probability,
        "data-rank": cell.rank,
        "data-probability": cell.probability,
        "data-norm": cell.norm,
        "data-cosine": cell.cosine,
        onclick: () => this.describe(cell, layer, step),
      },
      values[/** @type {keyof typeof values} */ (this.measure)],
    );
    button.style.setProperty("--probability", cell.probability.toFixed(4));
    return button;
  }

  /** @param {LensCell} cell @param {number} layer @param {number} step */
  describe(cell, layer, step) {
    const { lens } = this;
    if (lens === null) return;
    const tokens = cell.tokens.map(({ token, probability }) => `${tokenLabel(token)} ${formatPercent(probability)}`);
    const cosine = cell.cosine === undefined ? "" : `, its cosine to that of the layer before is ${formatFixed(cell.cosine)}`;
    setChildren(
      this.details,
      h(
        "p",
        {},
        h("b", {}, `${stepLabel(lens.read[step], lens.written[step])}, ${layerName(layer)}: `),
        `${tokens.join(" · ")}. “${tokenLabel(lens.written[step])}” has rank ${formatCount(cell.rank)} and ` +
          `${formatPercent(cell.probability)}. The norm of the residual stream is ${formatFixed(cell.norm, 1)}${cosine}.`,
      ),
    );
  }
}

/** @param {number} layer */
function layerName(layer) {
  return layer === 0 ? "embedding" : `layer ${layer}`;
}
