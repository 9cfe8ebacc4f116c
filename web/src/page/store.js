/**
 * The one store. Its state stands in the address behind the #, so that a link shows the same and going back works.
 *
 * What a person would call another place (another view, trace, head …) makes an entry of the history; what is moved
 * along the way (a threshold, a pinned token) changes the entry that is there.
 */

/** @import { State, Store } from "../contract" */

/** @type {State} */
export const START = {
  view: "box",
  model: "",
  text: "",
  trace: "",
  side: "encoder",
  layer: 0,
  head: 0,
  heads: [],
  token: -1,
  token_side: "query",
  step: 1,
  node: -1,
  off: [],
  off_how: "zero",
  merged: false,
  averaged: false,
  special: true,
  threshold: 0.05,
  method: "beam",
  beams: 0,
  longest: 0,
  temperature: 0,
  top_k: 0,
  top_p: 0,
  seed: 0,
  job: "",
  words: 64,
  numbers: 64,
  axis: "step",
  scale: "linear",
  smoothing: 0,
  runs: [],
  theme: "auto",
};

/** Fields whose change is a step that going back takes back. */
const PLACES = /** @type {(keyof State)[]} */ (["view", "model", "trace", "side", "layer", "head", "node"]);

/** What a field may be, where not every word will do. */
const CHOICES = /** @type {Partial<Record<keyof State, string[]>>} */ ({
  side: ["encoder", "decoder", "cross"],
  token_side: ["query", "key"],
  off_how: ["zero", "mean"],
  method: ["beam", "greedy", "sample"],
  axis: ["step", "time"],
  scale: ["linear", "log"],
  theme: ["auto", "light", "dark"],
});

/**
 * @param {State} state
 * @param {State} [plain] what need not be said
 * @returns {string} "#view=heads&layer=2"
 */
export function address(state, plain = START) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const usual = plain[/** @type {keyof State} */ (name)];
    const written = Array.isArray(value) ? value.join(",") : String(value);
    // How to search is always said: what is usual differs from model to model.
    if (written !== String(usual) || name === "method") words.set(name, written);
  }
  return `#${words}`;
}

/**
 * What an address says. Words that make no sense are left out, so that a bent link shows something.
 * @param {string} hash
 * @param {State} [plain]
 * @returns {State}
 */
export function understand(hash, plain = START) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {Record<string, unknown>} */
  const state = { ...plain };
  for (const [name, usual] of Object.entries(plain)) {
    const word = words.get(name);
    if (word === null) continue;
    const choices = CHOICES[/** @type {keyof State} */ (name)];
    if (Array.isArray(usual)) state[name] = word === "" ? [] : word.split(",");
    else if (typeof usual === "boolean") state[name] = word === "true";
    else if (typeof usual === "number") state[name] = Number.isFinite(Number(word)) ? Number(word) : usual;
    else if (choices === undefined || choices.includes(word)) state[name] = word;
  }
  return /** @type {State} */ (/** @type {unknown} */ (state));
}

/**
 * @param {Window} [page]
 * @returns {Store}
 */
export function openStore(page = window) {
  let state = understand(page.location.hash);
  /** @type {Set<(state: State, before: State) => void>} */
  const listeners = new Set();

  /** @param {State} next */
  function become(next) {
    const before = state;
    state = next;
    for (const hear of [...listeners]) hear(state, before);
  }

  const follow = () => {
    const next = understand(page.location.hash);
    if (address(next) !== address(state)) become(next);
  };
  page.addEventListener("popstate", follow);
  page.addEventListener("hashchange", follow);

  return {
    get: () => state,
    set(change) {
      const next = { ...state, ...change };
      if (address(next) === address(state)) return;
      const moved = PLACES.some((name) => next[name] !== state[name]);
      // The first trace of a place is the place itself, not a step away from it.
      write(page, address(next), moved && !(state.trace === "" && next.trace !== "" && next.view === state.view));
      become(next);
    },
    listen(hear) {
      listeners.add(hear);
      return () => listeners.delete(hear);
    },
  };
}

/**
 * @param {Window} page
 * @param {string} hash
 * @param {boolean} step whether going back leads to what was before
 */
function write(page, hash, step) {
  try {
    if (step) page.history.pushState(null, "", hash);
    else page.history.replaceState(null, "", hash);
  } catch {
    // A page inside a notebook's frame has no address of its own. Then the state is only kept here.
  }
}
