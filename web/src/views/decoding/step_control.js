/**
 * Choosing a decoding step: a slider, numbered buttons, arrow keys, and a button that plays the steps one by one.
 */

import { h, setChildren } from "../../page/dom.js";
import { radioRow } from "../shared/choices.js";

/** With more steps, there is only the slider. */
const MAX_NUMBERED_STEPS = 20;
/** Milliseconds per step while playing. */
const INTERVAL = 1500;

export class StepControl {
  /** @param {() => number} currentStep @param {(step: number) => void} setStep */
  constructor(currentStep, setStep) {
    this.currentStep = currentStep;
    this.setStep = setStep;
    this.lastStep = 1;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.timer = undefined;
    const attributes = { type: "range", min: 1, value: 1, "aria-label": "Decoding step" };
    this.slider = h("input", { ...attributes, oninput: () => this.go(Number(this.slider.value)) });
    this.numbers = radioRow("Decoding step", (value) => this.go(Number(value)));
    this.progress = h("output", {});
    this.playButton = h("button", { type: "button", onclick: () => this.togglePlaying() }, "▶ Play");
    this.element = h(
      "div",
      { class: "controls steps", role: "group", "aria-label": "Steps" },
      this.numbers.element,
      this.slider,
      this.progress,
      this.playButton,
    );
  }

  /** @param {number} lastStep */
  setLastStep(lastStep) {
    this.lastStep = lastStep;
    this.slider.max = String(lastStep);
    this.numbers.element.hidden = lastStep > MAX_NUMBERED_STEPS;
  }

  /** @param {number} step */
  show(step) {
    const count = this.lastStep > MAX_NUMBERED_STEPS ? 0 : this.lastStep;
    const choices = Array.from({ length: count }, (_, index) => ({
      value: String(index + 1),
      label: String(index + 1),
    }));
    this.numbers.update(choices, String(step));
    this.slider.value = String(step);
    this.slider.setAttribute("aria-valuetext", `step ${step} of ${this.lastStep}`);
    setChildren(this.progress, `step ${step} of ${this.lastStep}`);
  }

  /** @param {number} step */
  go(step) {
    this.setStep(Math.min(Math.max(1, step), this.lastStep));
  }

  /**
   * The left and right arrow keys change the step wherever the focus is, unless the focused element uses them itself.
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move === undefined || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    if (usesArrows(/** @type {Element} */ (event.target))) return;
    event.preventDefault();
    this.go(this.currentStep() + move);
  }

  togglePlaying() {
    if (this.timer !== undefined) return this.stop();
    if (this.currentStep() >= this.lastStep) this.go(1);
    setChildren(this.playButton, "■ Stop");
    this.timer = setInterval(
      () => (this.currentStep() >= this.lastStep ? this.stop() : this.go(this.currentStep() + 1)),
      INTERVAL,
    );
  }

  stop() {
    clearInterval(this.timer);
    this.timer = undefined;
    setChildren(this.playButton, "▶ Play");
  }
}

/** @param {Element} element */
function usesArrows(element) {
  if (element.matches("select, textarea, input:not([type=checkbox], [type=file])")) return true;
  // A frame that follows the steps shows the next one; any other scrolls, if there is something to scroll.
  return element.matches(".scrollable:not([data-follows-step])") && element.scrollWidth > element.clientWidth;
}
