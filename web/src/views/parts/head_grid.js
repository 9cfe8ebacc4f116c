/**
 * All heads of a model as switches: a row a layer, a column a head. Where it was measured what a head is worth, its switch
 * is coloured by it and bears the number, so that the grid is the map as well.
 */

import { h, put } from "../../page/dom.js";
import { SIDES, headName } from "../../page/words.js";
import { signed } from "./numbers.js";
import { asText, isLight, signedColour } from "./signed.js";
import { tilesLegend } from "./tiles.js";

/** @import { ModelSummary, Side, Worth } from "../../contract.d.ts" */

/** What removing a head costs: a higher loss, or a lower BLEU. @param {Worth} worth @param {{ change: number }} head */
export function harm(worth, head) {
  return worth.measure === "loss" ? head.change : -head.change;
}

export class HeadGrid {
  /** @param {(key: string) => void} turn */
  constructor(turn) {
    this.turn = turn;
    this.tables = h("div", { class: "head-tables" });
    this.legend = h("div", { class: "head-legend" });
    this.element = h("div", { class: "head-grid" }, this.tables, this.legend);
    this.element.addEventListener("keydown", (event) => move(event));
    /** @type {Map<string, HTMLButtonElement>} */
    this.switches = new Map();
    this.built = "";
  }

  /** @param {ModelSummary} model @param {string[]} off @param {Worth | null} worth */
  show(model, off, worth) {
    const key = JSON.stringify(model.attention);
    if (key !== this.built) {
      this.built = key;
      this.build(model);
    }
    const known = new Map((worth?.heads ?? []).map((head) => [`${head.side}.${head.layer}.${head.head}`, head]));
    const most = Math.max(1e-9, ...(worth?.heads ?? []).map((head) => Math.abs(head.change)));
    for (const [name, button] of this.switches) {
      const head = known.get(name);
      const isOn = !off.includes(name);
      button.setAttribute("aria-checked", String(isOn));
      const number = head && worth ? signed(head.change, worth.measure === "loss" ? 3 : 2) : "";
      put(
        button,
        h("span", { class: "switch-state" }, isOn ? "on" : "off"),
        number && h("span", { class: "switch-worth" }, number),
      );
      const colour = head && worth ? signedColour(harm(worth, head), most) : null;
      button.classList.toggle("measured", colour !== null);
      button.style.backgroundColor = colour ? asText(colour) : "";
      button.style.color = colour ? (isLight(colour) ? "#111" : "#fff") : "";
      const [side, layer, place] = name.split(".");
      button.setAttribute(
        "aria-label",
        `${side}, ${headName(Number(layer), Number(place))}${number ? `, ${worth?.measure} changes by ${number} without it` : ""}`,
      );
      if (head) button.dataset.change = String(head.change);
      else delete button.dataset.change;
    }
    put(this.legend, worth && known.size > 0 ? legend(worth, most) : null);
  }

  /** @param {ModelSummary} model */
  build(model) {
    this.switches.clear();
    put(
      this.tables,
      model.attention.map(({ side, layers, heads }) => this.table(side, layers, heads)),
    );
  }

  /** @param {Side} side @param {number} layers @param {number} heads */
  table(side, layers, heads) {
    const top = h(
      "tr",
      {},
      h("td"),
      Array.from({ length: heads }, (_, head) => h("th", { scope: "col" }, `head ${head + 1}`)),
    );
    const rows = Array.from({ length: layers }, (_, layer) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, `layer ${layer + 1}`),
        Array.from({ length: heads }, (_none, head) =>
          h("td", {}, this.button(`${side}.${layer}.${head}`, layer + head === 0)),
        ),
      ),
    );
    return h(
      "div",
      { class: "head-table" },
      h("h3", {}, SIDES[side]),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, top), h("tbody", {}, rows))),
    );
  }

  /** @param {string} key @param {boolean} first whether the Tab key stops here */
  button(key, first) {
    const facts = { type: "button", role: "switch", class: "head-switch", "data-head": key, tabindex: first ? 0 : -1 };
    const button = h("button", { ...facts, onclick: () => this.turn(key) });
    this.switches.set(key, button);
    return button;
  }
}

/** Arrow keys go from switch to switch. @param {KeyboardEvent} event */
function move(event) {
  const here = /** @type {Element} */ (event.target).closest("td");
  const row = here?.closest("tr");
  const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!here || !row || !by) return;
  const rows = [...(row.parentElement?.children ?? [])];
  const next =
    rows[rows.indexOf(row) + by[0]]?.children[[...row.children].indexOf(here) + by[1]]?.querySelector("button");
  if (!next) return;
  event.preventDefault();
  here.querySelector("button")?.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

/** @param {Worth} worth @param {number} most */
function legend(worth, most) {
  const better = worth.measure === "loss" ? "the loss rises" : "BLEU falls";
  return h(
    "p",
    { class: "note" },
    "better without it ",
    tilesLegend(-most, most, most),
    ` worth something: without it ${better}`,
  );
}
