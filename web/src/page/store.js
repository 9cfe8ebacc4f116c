/**
 * The page's state. It is kept in the URL's hash, so that a link shows the same and the back button works.
 *
 * Changes that feel like going somewhere else (another view, trace, head …) add an entry to the browser's history;
 * small adjustments (a threshold, a pinned token) replace the current entry.
 */

/** @import { State, Store } from "../contract" */

/** The smallest value of each decoding setting. */
const SMALLEST = { beam_size: 1, max_new_tokens: 1, temperature: 0, top_k: 0, top_p: Number.MIN_VALUE, seed: -(2 ** 53) };
/** No decoding setting is set, so that the model's own are used; null, because 0 is a seed like any other. */
export const NO_SETTINGS = { beam_size: null, max_new_tokens: null, temperature: null, top_k: null, top_p: null, seed: null };

/** @type {State} */
export const INITIAL_STATE = {
  view: "playground",
  model: "",
  text: "",
  passage: "",
  sentence: -1,
  trace: "",
  run: "",
  second: "",
  attention_type: "encoder",
  layer: 0,
  head: 0,
  heads: [],
  token: -1,
  token_role: "query",
  step: 1,
  node: -1,
  ablated_heads: [],
  ablation: "zero",
  merge_subwords: false,
  average_heads: false,
  rollout: false,
  overlay: 0.7,
  tree_head: "",
  show_special: true,
  sort_heads: "",
  head_tag: "",
  threshold: 0.05,
  method: "beam",
  ...NO_SETTINGS,
  job: "",
  position: -1,
  contrast: "",
  length: 64,
  width: 64,
  neighbors_of: "",
  sentences: "",
  word: "",
  map_words: "",
  stage: 0,
  pattern_length: 1024,
  window: 128,
  dilation: 2,
  global_tokens: 16,
  causal: false,
  own_pattern: "",
  color_by: "kind",
  axis: "step",
  scale: "linear",
  smoothing: 0,
  runs: [],
  theme: "auto",
  glossary: "",
  tour: "",
};

/** Fields whose change adds a history entry. */
const NAVIGATION_FIELDS = /** @type {(keyof State)[]} */ ([
  "view",
  "model",
  "trace",
  "second",
  "attention_type",
  "layer",
  "head",
  "node",
  "tour",
]);

/** The values of fields that do not accept any text. */
const CHOICES = /** @type {Partial<Record<keyof State, string[]>>} */ ({
  attention_type: ["encoder", "decoder", "cross"],
  token_role: ["query", "key"],
  ablation: ["zero", "mean"],
  method: ["beam", "greedy", "sample"],
  color_by: ["kind", "parameters", "flops", "bytes", "time", "norm"],
  axis: ["step", "time"],
  scale: ["linear", "log"],
  theme: ["auto", "light", "dark"],
});

/**
 * @param {State} state
 * @param {State} [defaults] values that are left out
 * @returns {string} "#view=heads&layer=2"
 */
export function stateToHash(state, defaults = INITIAL_STATE) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = Array.isArray(value) ? value.join(",") : String(value);
    // The decoding method is always included, because its default depends on the model.
    if (text !== String(defaults[/** @type {keyof State} */ (name)]) || name === "method") parameters.set(name, text);
  }
  return `#${parameters}`;
}

/**
 * The state in a hash. Invalid values are ignored, so that a broken link still shows something.
 * @param {string} hash
 * @param {State} [defaults]
 * @returns {State}
 */
export function hashToState(hash, defaults = INITIAL_STATE) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {Record<string, unknown>} */
  const state = { ...defaults };
  for (const [name, value] of Object.entries(defaults)) {
    const text = parameters.get(name);
    if (text === null) continue;
    const choices = CHOICES[/** @type {keyof State} */ (name)];
    if (name in SMALLEST) state[name] = parseSetting(/** @type {keyof typeof SMALLEST} */ (name), text);
    else if (Array.isArray(value)) state[name] = text === "" ? [] : text.split(",");
    else if (typeof value === "boolean") state[name] = text === "true";
    else if (typeof value === "number") state[name] = Number.isFinite(Number(text)) ? Number(text) : value;
    else if (choices === undefined || choices.includes(text)) state[name] = text;
  }
  return /** @type {State} */ (/** @type {unknown} */ (state));
}

/**
 * A decoding setting; null if it is none, such as the beam size 0 in links from when that was the model's own.
 * @param {keyof typeof SMALLEST} name
 * @param {string} text
 */
function parseSetting(name, text) {
  const number = text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(number) && number >= SMALLEST[name] ? number : null;
}

/**
 * @param {Window} [page]
 * @returns {Store}
 */
export function createStore(page = window) {
  let state = hashToState(page.location.hash);
  /** @type {Set<(state: State, before: State) => void>} */
  const listeners = new Set();

  /** @param {State} next */
  function setState(next) {
    const before = state;
    state = next;
    for (const listener of [...listeners]) listener(state, before);
  }

  const onNavigation = () => {
    const next = hashToState(page.location.hash);
    if (stateToHash(next) !== stateToHash(state)) setState(next);
  };
  page.addEventListener("popstate", onNavigation);
  page.addEventListener("hashchange", onNavigation);

  return {
    get: () => state,
    set(change) {
      const next = { ...state, ...change };
      if (stateToHash(next) === stateToHash(state)) return;
      const navigates = NAVIGATION_FIELDS.some((name) => next[name] !== state[name]);
      // The first trace of a view completes the current entry rather than adding one.
      const isFirstTrace = state.trace === "" && next.trace !== "" && next.view === state.view;
      writeHash(page, stateToHash(next), navigates && !isFirstTrace);
      setState(next);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/**
 * @param {Window} page
 * @param {string} hash
 * @param {boolean} addEntry whether the back button returns to the state before
 */
function writeHash(page, hash, addEntry) {
  try {
    if (addEntry) page.history.pushState(null, "", hash);
    else page.history.replaceState(null, "", hash);
  } catch {
    // A page in a notebook's frame has no URL of its own; the state is kept in memory only.
  }
}
