/**
 * A slider with its value beside it.
 */

import { h, setChildren } from "../../page/dom.js";

/**
 * @param {string} label
 * @param {number} min
 * @param {number} max
 * @param {number} step
 * @param {(value: number) => void} onInput
 */
export function slider(label, min, max, step, onInput) {
  const output = h("output");
  const input = h("input", {
    type: "range",
    min,
    max,
    step,
    "aria-label": label,
    oninput: () => onInput(Number(input.value)),
  });
  return {
    element: h("label", { class: "choice" }, h("span", {}, label), input, output),
    value: () => Number(input.value),
    /**
     * Show the nearest valid value, by its name if it has one.
     * @param {number} value
     * @param {(value: number) => string} [name]
     */
    show(value, name = String) {
      input.value = String(value);
      const text = name(Number(input.value));
      input.setAttribute("aria-valuetext", text);
      setChildren(output, text);
    },
    /** @param {number} last */
    setMax(last) {
      input.max = String(last);
    },
  };
}
