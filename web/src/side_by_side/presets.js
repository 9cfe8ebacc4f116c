/**
 * Comparisons that one click opens: with heads off, with all heads on, with another model, and a pair of sentences in
 * which one word decides what a pronoun means.
 */

/** @import { ModelSummary, State, Trace } from "../contract" */
/** @import { SecondRun } from "./second_run.js" */

import { headLabel } from "../page/format.js";
import { conditionsToAddress } from "../page/run_conditions.js";
import { selectedHeads } from "../page/selected_heads.js";
import { hasHeads } from "../views/shared/heads.js";

/** Other models that have a button; all are in the list. */
const MAX_MODELS = 3;

/** The animal or the street, as it is in English and in French, where the gender tells (Vaswani et al. 2017, §7; Uszkoreit 2017). @type {Record<string, [string, string]>} */
const WHAT_WAS_IT = {
  en: [
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
  ],
  fr: [
    "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
    "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
  ],
};

/**
 * `first`: the model and the text that the first run changes to; without it, that run stays.
 * @typedef {{ label: string, second: SecondRun, first?: { model: string, text: string } }} Preset
 */

/**
 * @param {State} state
 * @param {Trace | null} trace the first run's
 * @param {ModelSummary | null} model the selected one
 * @param {ModelSummary[]} models
 * @returns {Preset[]}
 */
export function presets(state, trace, model, models) {
  if (model === null) return [];
  return [...(trace === null ? [] : headPresets(state, trace)), ...pronounPreset(model, models), ...modelPresets(model, models)];
}

/** @param {State} state @param {Trace} trace @returns {Preset[]} */
function headPresets(state, trace) {
  if (!hasHeads(trace.model)) return [];
  const { attention_type, ablation } = state;
  const selected = selectedHeads(state, trace.model).flatMap(({ layer, head }) =>
    typeof head !== "number" ? [] : [{ attention_type, layer, head, ablation }],
  );
  const name = selected.length === 1 ? headLabel(selected[0]) : `the ${selected.length} selected heads`;
  const chosen = state.ablated_heads.map((key) => `${key}.${ablation}`);
  const isAblated = (trace.request.ablated_heads ?? []).length > 0;
  return [
    ...(isAblated ? [{ label: "All heads on", second: {} }] : []),
    ...(selected.length > 0 ? [{ label: `Without ${name}`, second: conditionsToAddress({ text: "", ablated_heads: selected }) }] : []),
    ...(chosen.length > 0
      ? [{ label: `Without the heads chosen in “Head ablation” (${chosen.length})`, second: { ablated_heads: chosen } }]
      : []),
  ];
}

/** A translator between English and French, the selected one if it is. @param {ModelSummary} model @param {ModelSummary[]} models @returns {Preset[]} */
function pronounPreset(model, models) {
  const translates = (/** @type {ModelSummary} */ { language, target_language: target }) =>
    [language, target].includes("fr") && language !== undefined && language in WHAT_WAS_IT;
  const found = [model, ...models].find(translates);
  if (found === undefined) return [];
  const [text, other] = WHAT_WAS_IT[/** @type {string} */ (found.language)];
  const words = found.language === "fr" ? "fatigué / large" : "tired / wide";
  const name = found.id === model.id ? "" : ` (${found.name})`;
  return [{ label: `The animal and the street: ${words}${name}`, first: { model: found.id, text }, second: { text: other } }];
}

/** @param {ModelSummary} model @param {ModelSummary[]} models @returns {Preset[]} */
function modelPresets(model, models) {
  return models
    .filter((other) => other.id !== model.id && other.task === model.task && other.language === model.language)
    .slice(0, MAX_MODELS)
    .map((other) => ({ label: `The same with ${other.name}`, second: { model: other.id } }));
}
