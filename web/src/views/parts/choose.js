/**
 * Controls that choose one of a few: a row of radio buttons, or a list where they are many. Arrow keys move through both.
 */

import { h, put, unique } from "../../page/dom.js";

/** @typedef {{ value: string, label: string }} Choice */

/**
 * A row of radio buttons.
 * @param {string} label @param {(value: string) => void} choose
 * @returns {{ element: HTMLElement, show(choices: Choice[], chosen: string): void }}
 */
export function radioRow(label, choose) {
  const name = unique("radio");
  const row = h("span", { class: "radio-row" });
  let shown = "";
  return {
    element: h("fieldset", { class: "radio-field" }, h("legend", {}, label), row),
    show(choices, chosen) {
      const key = JSON.stringify(choices);
      if (key !== shown) {
        shown = key;
        put(
          row,
          choices.map(({ value, label: text }) =>
            h(
              "label",
              {},
              h("input", { type: "radio", name, value, onchange: () => choose(value) }),
              h("span", {}, text),
            ),
          ),
        );
      }
      for (const input of row.querySelectorAll("input")) input.checked = input.value === chosen;
    },
  };
}

/**
 * A list to choose from.
 * @param {string} label @param {(value: string) => void} choose
 * @returns {{ element: HTMLElement, show(choices: Choice[], chosen: string): void }}
 */
export function choiceList(label, choose) {
  const select = h("select", { onchange: () => choose(select.value) });
  let shown = "";
  return {
    element: h("label", { class: "choice" }, h("span", {}, label), select),
    show(choices, chosen) {
      const key = JSON.stringify(choices);
      if (key !== shown) {
        shown = key;
        put(
          select,
          choices.map(({ value, label: text }) => h("option", { value }, text)),
        );
      }
      select.value = chosen;
    },
  };
}
