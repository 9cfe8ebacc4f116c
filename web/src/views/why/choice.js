/**
 * Choosing what to ask: a token of the output, and what could stand there instead, an alternative or any text.
 */

/** @import { GeneratedToken, Trace } from "../../contract" */

import { probabilityLegend } from "../../page/colors/legend.js";
import { h, setChildren } from "../../page/dom.js";
import { formatPercent } from "../../page/format.js";
import { firstGenerated, stepLabel, tokenLabel } from "../../page/tokens.js";
import { tokenPages } from "../shared/token_pages.js";
import { tokenChip } from "../shared/token_row.js";

export class Choice {
  /** @param {(position: number) => void} onPosition @param {(contrast: string) => void} onContrast */
  constructor(onPosition, onContrast) {
    this.onPosition = onPosition;
    this.onContrast = onContrast;
    this.steps = h("div", {});
    this.alternatives = h("div", { class: "alternatives" });
    this.input = h("input", { type: "text", maxlength: 200, autocomplete: "off", spellcheck: "false" });
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      if (this.input.value.trim() !== "") onContrast(this.input.value.trim());
    };
    this.form = h(
      "form",
      { class: "controls", onsubmit: submit },
      h("label", {}, "or any other text: ", this.input),
      h("button", { type: "submit" }, "Compare"),
    );
    this.question = h("h3", {});
    this.instead = h("div", { class: "instead", hidden: true }, this.question, this.alternatives, this.form);
    this.element = h("div", { class: "why-choice" }, this.steps, this.instead);
    /** @type {Trace | null} */
    this.trace = null;
    this.position = -1;
  }

  /** @param {Trace} trace @param {number} position @param {string} contrast @param {boolean} live */
  update(trace, position, contrast, live) {
    const generated = trace.generated[position - firstGenerated(trace)];
    const isShown = this.steps.querySelector(`[data-position="${position}"]`) !== null;
    if (trace !== this.trace || (!isShown && generated !== undefined)) this.drawSteps(trace, position);
    if (trace !== this.trace || position !== this.position) this.drawAlternatives(generated);
    [this.trace, this.position] = [trace, position];
    press(this.steps, "position", String(position));
    press(this.alternatives, "contrast", contrast);
    this.instead.hidden = generated === undefined;
    this.form.hidden = !live;
    for (const button of this.alternatives.querySelectorAll("button")) button.disabled = !live;
    this.input.value = contrast.startsWith("#") ? "" : contrast;
  }

  /** @param {Trace} trace @param {number} position the chosen one */
  drawSteps(trace, position) {
    const first = firstGenerated(trace);
    const given = trace.request.prefix_tokens?.length ?? 0;
    const chip = (/** @type {number} */ index) =>
      this.step(trace.target[first + index - 1], trace.generated[index], first + index, index < given);
    const row = tokenPages("The steps of the decoder", trace.generated.length, chip, { at: position - first });
    setChildren(this.steps, row, probabilityLegend());
  }

  /** @param {Trace["target"][number]} read @param {GeneratedToken} generated @param {number} position @param {boolean} given */
  step(read, { token, probability }, position, given) {
    const number = `${formatPercent(probability)}${given ? ", given" : ""}`;
    const onclick = () => this.onPosition(position);
    const attributes = { "aria-pressed": String(position === this.position), "data-position": position, onclick };
    return tokenChip({ text: stepLabel(read, token), special: token.special, number, probability, attributes }, "button");
  }

  /** @param {GeneratedToken | undefined} generated */
  drawAlternatives(generated) {
    if (generated === undefined) return;
    setChildren(this.question, `Why “${tokenLabel(generated.token)}”, and not …`);
    const others = generated.alternatives.filter(({ token }) => token.id !== generated.token.id);
    setChildren(
      this.alternatives,
      others.map(({ token, probability }) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": "false",
            "data-contrast": `#${token.id}`,
            "data-probability": probability,
            onclick: () => this.onContrast(`#${token.id}`),
          },
          h("span", { class: "alternative-text" }, tokenLabel(token)),
          " ",
          h("span", { class: "soft" }, formatPercent(probability)),
        ),
      ),
    );
  }
}

/** Mark the button whose data has a value as pressed. @param {HTMLElement} group @param {string} name @param {string} value */
function press(group, name, value) {
  for (const button of /** @type {NodeListOf<HTMLElement>} */ (group.querySelectorAll(`[data-${name}]`)))
    button.setAttribute("aria-pressed", String(button.dataset[name] === value));
}
