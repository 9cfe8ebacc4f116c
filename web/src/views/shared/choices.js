/**
 * Controls for choosing one of several values: a row of radio buttons for a few, a drop-down list for many.
 */

import { h, setChildren, uniqueId } from "../../page/dom.js";

/** @typedef {{ value: string, label: string }} Choice */

/**
 * A row of radio buttons.
 * @param {string} label @param {(value: string) => void} onSelect
 * @returns {{ element: HTMLElement, update(choices: Choice[], selected: string): void }}
 */
export function radioRow(label, onSelect) {
  const name = uniqueId("radio");
  const row = h("span", { class: "radio-row" });
  let builtFor = "";
  return {
    element: h("fieldset", { class: "radio-field" }, h("legend", {}, label), row),
    update(choices, selected) {
      const key = JSON.stringify(choices);
      if (key !== builtFor) {
        builtFor = key;
        setChildren(
          row,
          choices.map(({ value, label: text }) =>
            h(
              "label",
              {},
              h("input", { type: "radio", name, value, onchange: () => onSelect(value) }),
              h("span", {}, text),
            ),
          ),
        );
      }
      for (const input of row.querySelectorAll("input")) input.checked = input.value === selected;
    },
  };
}

/**
 * A drop-down list.
 * @param {string} label @param {(value: string) => void} onSelect
 * @returns {{ element: HTMLElement, update(choices: Choice[], selected: string): void }}
 */
export function dropDown(label, onSelect) {
  const select = h("select", { onchange: () => onSelect(select.value) });
  let builtFor = "";
  return {
    element: h("label", { class: "choice" }, h("span", {}, label), select),
    update(choices, selected) {
      const key = JSON.stringify(choices);
      if (key !== builtFor) {
        builtFor = key;
        setChildren(
          select,
          choices.map(({ value, label: text }) => h("option", { value }, text)),
        );
      }
      select.value = selected;
    },
  };
}
