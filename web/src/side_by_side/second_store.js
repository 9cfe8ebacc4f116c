/**
 * The page's state as the second pane sees it. View, layer, head, step and all settings are shared with the first pane,
 * so that both stay in step. Tokens and positions are translated by the alignment of both runs: “tired” is pinned where
 * “wide” is. What the first run does not have is kept in the address as the second pane's own (`Own` in `second_run.js`).
 */

/** @import { AttentionType, ModelSummary, State, Store, Token, Trace } from "../contract" */
/** @import { Own } from "./second_run.js" */

import { tokenLabel } from "../page/tokens.js";
import { align } from "../views/shared/align.js";
import { parseSecond } from "./second_run.js";

/** @typedef {{ source: Counterparts, target: Counterparts }} Alignment the counterparts of the first run's tokens */
/** @typedef {{ toSecond: Map<number, number>, toFirst: Map<number, number> }} Counterparts */

/** @param {Trace} first @param {Trace} second @returns {Alignment} */
export function alignTraces(first, second) {
  return { source: counterparts(first.source, second.source), target: counterparts(first.target, second.target) };
}

/** Tokens that are the same or stand in each other's place. @param {Token[]} first @param {Token[]} second @returns {Counterparts} */
function counterparts(first, second) {
  const items = (/** @type {Token[]} */ tokens) => tokens.map((token, position) => ({ text: tokenLabel(token), position }));
  const pairs = align(items(first), items(second)).flatMap(({ before, after }) =>
    before === null || after === null ? [] : [/** @type {[number, number]} */ ([before.position, after.position])],
  );
  return { toSecond: new Map(pairs), toFirst: new Map(pairs.map(([one, other]) => [other, one])) };
}

/**
 * @param {Store} shared
 * @param {() => { first: Trace, second: Trace, alignment: Alignment } | null} traces
 * @param {() => ModelSummary | null} model of the second run
 * @param {(trace: string) => void} show make a trace the second run
 * @returns {Store}
 */
export function createSecondStore(shared, traces, model, show) {
  const own = () => /** @type {Own} */ (parseSecond(shared.get().second)?.own ?? {});

  /** The counterpart of a position. @param {keyof Alignment} side @param {keyof Counterparts} direction @param {number} position */
  const counterpart = (side, direction, position) => traces()?.alignment[side][direction].get(position) ?? -1;

  /** @param {State} state @returns {State} */
  function translate(state) {
    const at = headKey(state);
    const selected = own().head?.at === at ? { ...state, ...ownHead(own()) } : state;
    const head = clampHead(selected, model());
    const side = tokenSide(head.attention_type, state.token_role);
    const both = traces();
    const sameModel = both !== null && both.first.model.id === both.second.model.id;
    return {
      ...selected,
      ...head,
      ...(sameModel ? {} : { neighbors_of: "", contrast: state.contrast.startsWith("#") ? "" : state.contrast }),
      model: model()?.id ?? state.model,
      text: both?.second.request.text ?? state.text,
      trace: both?.second.id ?? "",
      run: "",
      token: state.token >= 0 ? counterpart(side, "toSecond", state.token) : (own().token ?? -1),
      position: state.position >= 0 ? counterpart("target", "toSecond", state.position) : (own().position ?? -1),
      node: own().node ?? -1,
    };
  }

  /** @param {Partial<State>} change @returns {Partial<State>} the change of the shared state */
  function translateBack(change) {
    const state = translate(shared.get());
    const { trace: _trace, model: _model, text: _text, run: _run, node, token, position, ...rest } = change;
    const next = { ...state, ...change };
    /** @type {Own} */
    const kept = { ...own() };
    /** @type {Partial<State>} */
    const common = { ...rest };
    if (node !== undefined) kept.node = node;
    if (token !== undefined) {
      const side = tokenSide(next.attention_type, next.token_role);
      common.token = token < 0 ? -1 : counterpart(side, "toFirst", token);
      kept.token = common.token < 0 ? token : undefined;
    }
    if (position !== undefined) {
      common.position = position < 0 ? -1 : counterpart("target", "toFirst", position);
      kept.position = common.position < 0 ? position : undefined;
    }
    if ("attention_type" in change || "layer" in change || "head" in change) {
      const { attention_type, layer, head } = next;
      const first = traces()?.first.model;
      const isShared = first === undefined || hasHead(first, attention_type, layer, head);
      kept.head = isShared ? undefined : { attention_type, layer, head, at: headKey(shared.get()) };
      for (const name of /** @type {const} */ (["attention_type", "layer", "head"])) delete common[name];
      if (isShared) Object.assign(common, { attention_type, layer, head });
    }
    const { own: _own, ...second } = parseSecond(shared.get().second) ?? {};
    const remaining = Object.entries(kept).filter(([, value]) => value !== undefined && value !== -1);
    const all = remaining.length === 0 ? second : { ...second, own: Object.fromEntries(remaining) };
    return { ...common, second: JSON.stringify(all) };
  }

  return {
    get: () => translate(shared.get()),
    set(change) {
      if (change.trace) show(change.trace);
      shared.set(translateBack(change));
    },
    subscribe: (listener) => shared.subscribe((state, before) => listener(translate(state), translate(before))),
  };
}

/** Whose token a pinned position means: in cross-attention, a query is a step of the decoder, and a key a source token. @param {AttentionType} type @param {"query" | "key"} role @returns {keyof Alignment} */
function tokenSide(type, role) {
  return type === "encoder" || (type === "cross" && role === "key") ? "source" : "target";
}

/** The nearest head that a model has. @param {State} state @param {ModelSummary | null} model */
function clampHead({ attention_type, layer, head }, model) {
  const spec = model?.attention.find((each) => each.attention_type === attention_type) ?? model?.attention[0];
  if (spec === undefined) return { attention_type, layer, head };
  return {
    attention_type: spec.attention_type,
    layer: Math.min(layer, spec.layers - 1),
    head: Math.min(head, spec.heads - 1),
  };
}

/** @param {ModelSummary} model @param {AttentionType} type @param {number} layer @param {number} head */
function hasHead(model, type, layer, head) {
  return model.attention.some((spec) => spec.attention_type === type && layer < spec.layers && head < spec.heads);
}

/** @param {Own} own */
function ownHead({ head }) {
  return head === undefined ? {} : { attention_type: head.attention_type, layer: head.layer, head: head.head };
}

/** @param {State} state */
function headKey({ attention_type, layer, head }) {
  return `${attention_type}.${layer}.${head}`;
}
