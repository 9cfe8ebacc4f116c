/**
 * The heads whose attention differs most between two runs, as a list of buttons.
 */

/** @import { AttentionType, Source, State, Store, Trace } from "../../../contract" */

import { h, setChildren } from "../../../page/dom.js";
import { capitalize, formatPercent, headLabel } from "../../../page/format.js";
import { fractionBar } from "../../shared/bars.js";
import { LatestRequest } from "../../shared/latest_request.js";
import { showError, showLoading } from "../../shared/placeholders.js";
import { alignRuns, differenceOf, longestAxis, movedAttention } from "./aligned.js";

/** Tokens of the longest text whose heads are all compared. */
const MAX_TOKENS = 256;
/** Heads in the list. */
const MAX_HEADS = 8;

/** @typedef {{ attention_type: AttentionType, layer: number, head: number, moved: number }} MovedHead */

export class MovedHeads {
  /** @param {Source} source @param {Store} store */
  constructor(source, store) {
    this.source = source;
    this.store = store;
    this.requests = new LatestRequest();
    this.requested = "";
    /** @type {MovedHead[] | null} */
    this.heads = null;
    this.list = h("div", { class: "moved-heads" });
    this.element = h(
      "section",
      { class: "panel", "aria-label": "Heads that differ most" },
      h("h2", {}, "Heads that differ most"),
      h(
        "p",
        { class: "note" },
        "How much of a head’s attention lies elsewhere in the second run: half the sum of a row’s absolute differences, as a mean over the rows. Click a head to see its matrix.",
      ),
      this.list,
    );
  }

  /** @param {State} state @param {Trace} first @param {Trace} second */
  show(state, first, second) {
    const requested = JSON.stringify([first.id, second.id, state.merge_subwords, state.show_special]);
    if (requested === this.requested) return this.draw(state);
    this.requested = requested;
    this.heads = null;
    const types = first.model.attention.map((spec) => spec.attention_type);
    if ([first, second].some((trace) => types.some((type) => longestAxis(trace, type) > MAX_TOKENS))) {
      this.requests.cancel();
      this.heads = [];
      return setChildren(this.list, h("p", { class: "note" }, `All heads are compared for texts of up to ${MAX_TOKENS} tokens. This one is longer.`));
    }
    showLoading(this.list, "Comparing all heads …");
    this.requests.start(
      this.compare(state, first, second),
      (heads) => {
        this.heads = heads.sort((one, other) => other.moved - one.moved);
        this.draw(this.store.get());
      },
      (message) =>
        showError(this.list, `The heads could not be compared: ${message}`, () => {
          this.requested = "";
          this.show(this.store.get(), first, second);
        }),
    );
  }

  /** Forget what is shown. */
  clear() {
    this.requests.cancel();
    this.requested = "";
    this.heads = null;
  }

  /** @param {State} state @param {Trace} first @param {Trace} second @returns {Promise<MovedHead[]>} */
  async compare(state, first, second) {
    const layers = first.model.attention.flatMap(({ attention_type, layers: count }) =>
      Array.from({ length: count }, (_, layer) => ({ attention_type, layer })),
    );
    const compared = layers.map(async ({ attention_type, layer }) => {
      const [ones, others] = await Promise.all(
        [first, second].map(({ id }) => this.source.thumbnails(id, attention_type, layer, MAX_TOKENS)),
      );
      const runs = alignRuns(first, second, attention_type, state);
      return ones.map((one, head) => {
        const moved = movedAttention(differenceOf(runs, one, others[head]));
        return { attention_type, layer, head, moved };
      });
    });
    return (await Promise.all(compared)).flat();
  }

  /** @param {State} state */
  draw(state) {
    if (this.heads === null || this.heads.length === 0) return;
    const focused = this.list.contains(document.activeElement) && document.activeElement?.getAttribute("data-head");
    const items = this.heads.slice(0, MAX_HEADS).map((head) => h("li", {}, this.button(head, state)));
    setChildren(this.list, h("ol", {}, items));
    if (focused) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-head="${focused}"]`))?.focus();
  }

  /** @param {MovedHead} moved @param {State} state */
  button({ attention_type: type, layer, head, moved }, state) {
    const isType = type === state.attention_type;
    const isSelected = isType && !state.average_heads && layer === state.layer && head === state.head;
    const select = () =>
      this.store.set({ attention_type: type, layer, head, heads: [], average_heads: false, ...(isType ? {} : { token: -1 }) });
    return h(
      "button",
      { type: "button", "aria-pressed": String(isSelected), "data-head": `${type}.${layer}.${head}`, onclick: select },
      h("span", {}, capitalize(headLabel({ attention_type: type, layer, head }))),
      fractionBar(moved, formatPercent(moved)),
    );
  }
}
