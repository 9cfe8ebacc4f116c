/**
 * The answer to “why this token and not that one?”: sentences, the map of heads and feed-forward networks, the words, and
 * the direct contributions. It fills while the server computes.
 */

/** @import { AttentionType, Contrast, Trace } from "../../contract" */
/** @import { Progress } from "./contrast_job.js" */

import { h, setChildren } from "../../page/dom.js";
import { formatFixed } from "../../page/format.js";
import { linkTerms } from "../../page/glossary/links.js";
import { stepLabel, tokenLabel } from "../../page/tokens.js";
import { hasHeads } from "../shared/heads.js";
import { section } from "../shared/section.js";
import { EffectMap } from "./effect_map.js";
import { partLabel, wordLabel } from "./names.js";
import { signedBars } from "./signed_bars.js";
import { describeCauses, describeChoice } from "./summary.js";

/** Words that are drawn. */
const MAX_WORDS = 100;
const NO_TRANSFORMER =
  "This model is no Transformer: it has no heads and feed-forward networks to ablate, and its logits are no sum of " +
  "their contributions. So only the probabilities of the two tokens are shown.";

export class Results {
  /** @param {() => void} onStop @param {(type: AttentionType, layer: number, head: number) => void} onHead */
  constructor(onStop, onHead) {
    this.progress = h("progress", { max: 1, value: 0, "aria-label": "Passes computed" });
    this.stopButton = h("button", { type: "button", onclick: onStop }, "Stop");
    this.status = h("span", { class: "note", role: "status" });
    this.bar = h(
      "div",
      { class: "controls", "data-no-export": true },
      this.progress,
      this.stopButton,
      this.status,
    );
    this.map = new EffectMap(onHead);
    this.title = h("h2", {});
    this.answer = h("p", { class: "answer" });
    this.causes = h("div", { class: "answer causes", role: "status" });
    this.words = h("div", { class: "word-bars" });
    this.parts = h("div", {});
    this.partsNote = h("span");
    this.parted = h(
      "div",
      {},
      section(
        "Without a head or a feed-forward network",
        "Each is ablated on its own (its output is replaced by zeros), and the step is computed again. The numbers do " +
          "not add up: without one part, others change too.",
        this.map.element,
      ),
      section(
        "Without a word",
        "Each word is hidden on its own ([[occlusion]]): the embeddings of its tokens are replaced by zeros, their positions stay.",
        this.words,
      ),
      section("Direct contributions", this.partsNote, this.parts),
    );
    this.missing = h("p", { class: "note" }, NO_TRANSFORMER);
    this.element = h(
      "section",
      { class: "section why-results", "aria-label": "Why" },
      this.title,
      this.answer,
      this.causes,
      this.bar,
      this.missing,
      this.parted,
    );
  }

  /** @param {Trace} trace @param {Progress | null} progress */
  update(trace, progress) {
    this.element.hidden = progress === null;
    if (progress === null) return;
    this.updateStatus(progress);
    const { contrast } = progress;
    const isTransformer = hasHeads(trace.model);
    this.parted.hidden = contrast === null || !isTransformer;
    this.missing.hidden = contrast === null || isTransformer;
    if (contrast === null) return void setChildren(this.element, this.bar);
    setChildren(this.element, this.title, this.answer, this.causes, this.bar, this.missing, this.parted);
    const [written, other] = [tokenLabel(contrast.token), tokenLabel(contrast.contrast)];
    setChildren(this.title, `${stepLabel(contrast.read, contrast.token)}, not ${other}`);
    setChildren(this.answer, describeChoice(contrast));
    const hasEnded = progress.state === "done" || progress.state === "stopped";
    setChildren(this.causes, hasEnded ? describeCauses(contrast, trace).map((text) => h("p", {}, text)) : null);
    if (!isTransformer) return;
    this.map.update(trace.model, contrast, written, other);
    this.drawWords(trace, contrast, written);
    this.drawParts(contrast, written);
  }

  /** @param {Progress} progress */
  updateStatus({ state, done, total, error }) {
    const running = state === "running" || state === "starting";
    this.progress.hidden = this.stopButton.hidden = !running;
    this.progress.max = Math.max(1, total);
    this.progress.value = done;
    this.bar.hidden = state === "done";
    this.status.classList.toggle("problem", state === "failed");
    const texts = {
      starting: "Starting …",
      running: `${done} of ${total} passes.`,
      done: "",
      stopped: `Stopped after ${done} of ${total} passes; what is missing is shown as “…”.`,
      failed: error,
    };
    setChildren(this.status, texts[state]);
  }

  /** @param {Trace} trace @param {Contrast} contrast @param {string} written */
  drawWords(trace, { words: all }, written) {
    const words = largest(all, MAX_WORDS);
    const limit = Math.max(...words.map(({ change }) => Math.abs(change)));
    const part = words.length < all.length ? ` The ${MAX_WORDS} words with the largest effect are shown, of ${all.length}.` : "";
    const sides = /** @type {const} */ (["source", "target"]);
    setChildren(
      this.words,
      sides.flatMap((side) => {
        const bars = words
          .filter((word) => word.side === side)
          .map((word) => ({
            label: wordLabel(trace, word),
            value: word.change,
            supports: word.change < 0,
            key: `${side}.${word.positions.join(",")}`,
          }));
        const title = side === "source" ? "Words of the source" : "Words written or given before";
        const caption = `${title}: the change of the margin without each`;
        return bars.length === 0 ? [] : [h("div", {}, h("h3", {}, title), signedBars(bars, caption, limit))];
      }),
      h(
        "p",
        { class: "note" },
        `Bars to the left (blue): without the word the margin falls, so it speaks for “${written}”.${part}`,
      ),
    );
  }

  /** @param {Contrast} contrast @param {string} written */
  drawParts({ parts, margin }, written) {
    if (parts.length === 0) {
      setChildren(this.partsNote, "The decoder has no residual connections, so its hidden state is no sum of its parts.");
      return void setChildren(this.parts);
    }
    const sum = parts.reduce((total, { value }) => total + value, 0);
    setChildren(
      this.partsNote,
      linkTerms(
        "The last [[hidden state]] is a sum of what the embedding, the heads, the feed-forward networks and the biases of the " +
        "decoder added to the [[residual stream]], their [[direct contributions|direct contribution]] (with the norms’ divisors held at their values). So is the margin: " +
        `these ${parts.length} numbers add up to ${formatFixed(sum)}, and the margin is ${formatFixed(margin)}. ` +
        `Positive ones speak for “${written}”. What a part does through later parts counts as theirs.`,
      ),
    );
    const bars = [...parts]
      .sort((first, second) => second.value - first.value)
      .map((part) => ({
        label: partLabel(part),
        value: part.value,
        supports: part.value > 0,
        key: [part.kind, part.layer ?? "", part.head ?? ""].join("."),
      }));
    const limit = Math.max(...parts.map(({ value }) => Math.abs(value)));
    setChildren(this.parts, signedBars(bars, "The direct contribution of each part to the margin", limit));
  }
}

/** The items with the largest effect, in their order. @template {{ change: number }} Item @param {Item[]} items @param {number} count */
function largest(items, count) {
  if (items.length <= count) return items;
  const kept = new Set([...items].sort((a, b) => Math.abs(b.change) - Math.abs(a.change)).slice(0, count));
  return items.filter((item) => kept.has(item));
}
