/**
 * Which step is looked at: a slider, the numbers of the steps, arrow keys, and a button that plays them one by one.
 */

import { h, put } from "../../page/dom.js";
import { radioRow } from "./choose.js";

/** More steps than this are chosen by the slider alone. */
const NUMBERED = 24;
/** How long a step stays while they are played, in milliseconds. */
const PAUSE = 1500;

export class StepControl {
  /** @param {() => number} at @param {(step: number) => void} choose */
  constructor(at, choose) {
    this.at = at;
    this.choose = choose;
    this.last = 1;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.playing = undefined;
    const facts = { type: "range", min: 1, value: 1, "aria-label": "Decoding time step" };
    this.slider = h("input", { ...facts, oninput: () => this.go(Number(this.slider.value)) });
    this.numbers = radioRow("Decoding time step", (value) => this.go(Number(value)));
    this.count = h("output", {});
    this.button = h("button", { type: "button", onclick: () => this.playOrStop() }, "▶ Play");
    this.element = h("div", { class: "controls steps" }, this.numbers.element, this.slider, this.count, this.button);
  }

  /** How many steps there are. @param {number} last */
  reach(last) {
    this.last = last;
    this.slider.max = String(last);
    this.numbers.element.hidden = last > NUMBERED;
  }

  /** @param {number} step */
  show(step) {
    const count = this.last > NUMBERED ? 0 : this.last;
    const choices = Array.from({ length: count }, (_, index) => ({
      value: String(index + 1),
      label: String(index + 1),
    }));
    this.numbers.show(choices, String(step));
    this.slider.value = String(step);
    this.slider.setAttribute("aria-valuetext", `step ${step} of ${this.last}`);
    put(this.count, `step ${step} of ${this.last}`);
  }

  /** @param {number} step */
  go(step) {
    this.choose(Math.min(Math.max(1, step), this.last));
  }

  /**
   * Left and right go through the steps, unless they mean something where the focus is.
   * @param {KeyboardEvent} event
   */
  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const target = /** @type {Element} */ (event.target);
    if (move === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    if (target.closest("input, select, textarea, .beam-tree, .scroll")) return;
    event.preventDefault();
    this.go(this.at() + move);
  }

  playOrStop() {
    if (this.playing !== undefined) return this.stop();
    if (this.at() >= this.last) this.go(1);
    put(this.button, "■ Stop");
    this.playing = setInterval(() => (this.at() >= this.last ? this.stop() : this.go(this.at() + 1)), PAUSE);
  }

  stop() {
    clearInterval(this.playing);
    this.playing = undefined;
    put(this.button, "▶ Play");
  }
}
