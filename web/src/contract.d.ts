/**
 * What goes between Python and the page, and between the page and its views. Nothing else does.
 *
 * JSON for what is said, binary for what is measured. Every number comes from a model at work; the page only draws.
 * In Python these shapes are the pydantic models of `regard/look/wire.py`; a test holds both against each other.
 */

/** What a model is for; it decides which controls the box has. */
export type TaskKind = "translation" | "language" | "parsing" | "pictures" | "filling" | "labelling" | "tagging";

/** Which attention of a model: of the encoder (texts and pictures), of the decoder to itself, of the decoder to the source. */
export type Side = "encoder" | "decoder" | "cross";

/** A model that the page can look into: `GET api/models`. */
export interface ModelSummary {
  id: string;
  name: string;
  task: TaskKind;
  parameters: number;
  /** A text worth trying; for pictures, nothing. */
  example: string;
  /** Attention that there is, in the order it is computed. */
  attention: { side: Side; layers: number; heads: number }[];
  /** Decoding settings as they are when nothing is asked for. */
  decoding: DecodingSettings;
}

/** One box of the drawn stack, with the boxes inside it: `GET api/models/{id}/parts`. */
export interface Part {
  /** Its path among the modules, such as "decoder.blocks.0.sublayers.1.function"; unique. */
  path: string;
  label: string;
  kind: "model" | "input" | "stack" | "block" | "attention" | "feed-forward" | "norm" | "residual" | "output" | "other";
  /** Every parameter with its shape. */
  parameters: { name: string; shape: number[] }[];
  /** How many numbers are trained in it and in all inside it. Shared ones count once, where they come first. */
  count: number;
  /** What goes in and comes out, such as "(rows, words, 256)". */
  shape: string;
  /** Where it is an attention, which. A click opens it in the view of heads. */
  attention?: { side: Side; layer: number };
  /** A sentence for who has never seen one. */
  about: string;
  parts: Part[];
}

export interface DecodingSettings {
  method: "beam" | "greedy" | "sample";
  beams: number;
  longest: number;
  temperature: number;
  top_k: number;
  top_p: number;
  seed: number;
}

/** Heads that are switched off. */
export interface Switched {
  side: Side;
  layer: number;
  head: number;
  /** Its output is set to zero, or to its mean over the words of the text. */
  how: "zero" | "mean";
}

/** `POST api/models/{id}/traces`: run a model and keep what was seen. The answer is a stream of lines of JSON, each a `RunEvent`. */
export interface RunRequest {
  text: string;
  /** A picture in place of a text, as a data: address. */
  picture?: string;
  decoding?: Partial<DecodingSettings>;
  /** The tokens of the source, in place of those that the text would give: for a token that was edited. */
  source_tokens?: string[];
  off?: Switched[];
}

export type RunEvent =
  | { event: "token"; text: string; token: string; probability: number; step: number }
  | { event: "done"; trace: string }
  | { event: "failed"; reason: string };

/** A token as people see it, with its place among words. */
export interface Token {
  id: number;
  /** As the tokenizer writes it. */
  piece: string;
  /** As it reads: without the signs of a tokenizer. */
  text: string;
  /** The number of the word that it is a part of; -1 for what is no word (start, end, padding, mask …). */
  word: number;
  special: boolean;
}

/** A candidate for a token, with its probability. */
export interface Alternative {
  token: Token;
  probability: number;
}

/** A token that was written, by the hypothesis that won. */
export interface Written {
  token: Token;
  /** Of the model at this step, before any rule or penalty of the search. */
  probability: number;
  alternatives: Alternative[];
}

/** One line of a search: what was there when a step chose. */
export interface BeamNode {
  id: number;
  /** The node it goes on from; -1 for those of the first step. */
  parent: number;
  /** Counted from 1. */
  step: number;
  token: Token;
  /** log-probability of this token, and of all so far. */
  log_probability: number;
  total: number;
  /** kept: went on; ended: a finished hypothesis; pruned: was not taken; won: part of the answer. */
  state: "kept" | "ended" | "pruned";
  won: boolean;
  /** The row of the cache that it is computed in, and that it took over; copied: another row's was copied for it. -1 for pruned. */
  row: number;
  copied: boolean;
  /** Its number among the arrays of attention, "beam/decoder" and "beam/cross"; -1 where it has to be asked for. */
  attention: number;
}

/** `GET api/traces/{id}`: all of a trace but its arrays; also the header of a saved trace. */
export interface Trace {
  format: "regard trace";
  version: 1;
  /** "" in a file. */
  id: string;
  model: ModelSummary;
  request: RunRequest;
  /** Tokens of what was read; of a picture its class token and patches ("0,0" is the upper left). */
  source: Token[];
  /** For pictures: rows and columns of patches, and the picture itself as a data: address. */
  grid?: { rows: number; columns: number; picture: string };
  /** What was written, start and end included where the model has them. Positions of "decoder" are these. */
  target: Token[];
  /** One for each of `target` that was predicted; the first token has none. */
  written: Written[];
  /** The answer as a text (a translation, a tree, labels …). */
  output: string;
  /** Labels with probabilities (pictures, texts), or for each gap its fillers. */
  labels: { of: string; choices: { label: string; probability: number }[] }[];
  /** log-probability of the answer. */
  total: number;
  nodes: BeamNode[];
  /** What the search was told, in words, step by step is in `nodes`. */
  arrays: ArrayFacts[];
  seconds: number;
}

/**
 * Arrays of a trace, by name:
 *   "attention/encoder", "attention/decoder", "attention/cross": (layers, heads, queries, keys), teacher-forced over the answer
 *   "beam/decoder", "beam/cross": (nodes that were kept, layers, heads, keys), each node's own row; 0 where there is nothing
 */
export interface ArrayFacts {
  name: string;
  dtype: "float16" | "float32";
  shape: number[];
}

/**
 * `GET api/traces/{id}/attention/{side}/{layer}/{head}?pool=N`: weights as little-endian float16, row by row.
 * The headers X-Rows and X-Columns say how many; X-Pooled how many tokens stand behind one, along each side (1: none are
 * pooled; the value is then the largest of the block). `layer` and `head` may be "all": (layers,) heads × rows × columns.
 * `head` may be "mean": the mean of the layer's heads. `pool=N` asks for N tokens behind one; left out, it is the smallest
 * that leaves no more than 1,024 along each side. `row=Q` gives one row alone, never pooled.
 */
export interface Matrix {
  rows: number;
  columns: number;
  /** How many tokens stand behind one row or column. */
  pooled: number;
  values: Float32Array;
}

/**
 * `POST api/traces/{id}/nodes/{node}`: the attention of any node, kept or pruned, computed from its prefix where it has to be.
 * Node -1 is what was there before the first step (the start, or the prompt). All is computed for the node's own token as
 * the query, so that `next` are the candidates of the step after it.
 */
export interface NodeAttention {
  node: number;
  /** Tokens before it, its own last. */
  prefix: Token[];
  /** decoder: [layer][head][key], over the tokens it was computed from; cross: over the source. Missing sides are empty. */
  decoder: number[][][];
  cross: number[][][];
  /** The choice behind it: the decoder's last vector, how long it is, logits and probabilities of the best next tokens. */
  vector: number[];
  vector_length: number;
  next: { token: Token; logit: number; probability: number }[];
}

/** `POST api/traces/{id}/cell`: one attention opened. */
export interface CellRequest {
  side: Side;
  layer: number;
  head: number;
  /** The token whose row is opened. */
  query: number;
}
export interface Cell {
  request: CellRequest;
  /** What multiplies a score: 1/√d for most. */
  scale: number;
  similarity: string;
  query: number[];
  /** One for each token that could be looked at. */
  keys: number[][];
  values: number[][];
  /** query · key; times scale; after the mask (null: may not be seen); after softmax. */
  products: number[];
  scaled: number[];
  masked: (number | null)[];
  weights: number[];
  /** Σ weight · value. */
  result: number[];
  /** Scores, masked scores and weights of all queries, up to 64 × 64 around the query. */
  square: { first_query: number; first_key: number; scores: number[][]; masked: (number | null)[][]; weights: number[][] };
}

/** `POST api/models/{id}/worth`: what each head is worth; answered by a `Job`. */
export interface WorthRequest {
  how: "zero" | "mean";
  measure: "loss" | "bleu";
  /** Sentences of a development set, or pairs with a tab between; none: those that the model's recipe names, or that ship. */
  lines?: string[];
}
/** `GET api/jobs/{id}`; `DELETE` stops it. */
export interface Job {
  id: string;
  model: string;
  done: number;
  of: number;
  state: "running" | "done" | "failed" | "stopped";
  reason: string;
  result?: Worth;
}
export interface Worth {
  measure: "loss" | "bleu";
  /** With all heads. */
  whole: number;
  sentences: number;
  /** With one head switched off: the value, and its change; filled as it goes. */
  heads: { side: Side; layer: number; head: number; value: number; change: number }[];
}

/** `GET api/positions?length=64&width=64`: how schemes tell positions apart. */
export interface Positions {
  length: number;
  width: number;
  schemes: {
    name: string;
    about: string;
    /** (length, width), empty where a scheme adds nothing to the input. */
    encoding: number[][];
    /** (length, length): how alike two positions are, or what is added to the score of two. */
    similarity: number[][];
    similarity_of: string;
    /** The five requirements of seed 001, with what was computed to judge each. */
    requirements: { name: string; holds: boolean; found: string }[];
  }[];
}

/** `GET api/runs`: runs on disk; `GET api/runs/{id}?after=LINE`: new lines of one. */
export interface RunSummary {
  id: string;
  folder: string;
  recipe: string;
  steps: number;
  step: number;
  /** Whether lines were added within the last minute and the run is not over. */
  live: boolean;
}
export interface RunLines {
  /** Lines read so far, to be given as `after` next time. */
  next: number;
  lines: Record<string, number | null>[];
}

/** What a standalone file carries, in its element #embedded; `arrays` are float16, little-endian, as base64, by their names. */
export interface Embedded {
  trace: Trace;
  parts: Part;
  arrays: Record<string, string>;
  /** What was asked of the model while the file was made; all else a file refuses with a sentence. */
  cells: Cell[];
  nodes: NodeAttention[];
  positions?: Positions[];
}

/** All errors of the API: a status from 400 on and this. */
export interface Problem {
  detail: string;
}

// ---------------------------------------------------------------------------------------------------------------------
// Between the page and its views.

/** All that the page shows is decided by this; it stands in the address, so that a link shows the same. */
export interface State {
  view: string;
  model: string;
  text: string;
  trace: string;
  side: Side;
  layer: number;
  head: number;
  /** Heads laid over each other, as "layer.head". */
  heads: string[];
  /** The token that is looked at, and on which side it stands. */
  token: number;
  token_side: "query" | "key";
  step: number;
  node: number;
  off: string[]; // "side.layer.head"
  off_how: "zero" | "mean";
  merged: boolean;
  averaged: boolean;
  special: boolean;
  threshold: number;
  method: DecodingSettings["method"];
  beams: number;
  /** 0: as the model's own settings have it. */
  longest: number;
  temperature: number;
  top_k: number;
  top_p: number;
  seed: number;
  /** The measuring of heads that is looked at. */
  job: string;
  /** Positions: for how many words, and how many numbers each gets. */
  words: number;
  numbers: number;
  /** Runs: what curves lie along, how they are drawn, and which; none named: those that train, or the first. */
  axis: "step" | "time";
  scale: "linear" | "log";
  smoothing: number;
  runs: string[];
  theme: "auto" | "light" | "dark";
}

export interface Store {
  get(): State;
  /** Change some of it; all views hear of it, and the address changes. */
  set(change: Partial<State>): void;
  /** Called after each change with the new state and what it was; gives back how to stop. */
  listen(hear: (state: State, before: State) => void): () => void;
}

/** Where data comes from: a server, or what a standalone file carries. Both answer alike; what a file cannot do is refused with a sentence. */
export interface Source {
  live: boolean;
  models(): Promise<ModelSummary[]>;
  parts(model: string): Promise<Part>;
  run(model: string, request: RunRequest, hear: (event: RunEvent) => void, stop?: AbortSignal): Promise<string>;
  trace(id: string): Promise<Trace>;
  /** One head, or the mean of all heads of a layer for head "mean"; kept once fetched. */
  matrix(trace: string, side: Side, layer: number, head: number | "mean", pool?: number): Promise<Matrix>;
  /** One row of a head, never pooled: 1 × columns. */
  row(trace: string, side: Side, layer: number, head: number | "mean", query: number): Promise<Matrix>;
  /** All heads of a layer, small: no more than `size` along each side. */
  thumbnails(trace: string, side: Side, layer: number, size: number): Promise<Matrix[]>;
  node(trace: string, node: number): Promise<NodeAttention>;
  cell(trace: string, request: CellRequest): Promise<Cell>;
  worth(model: string, request: WorthRequest): Promise<Job>;
  job(id: string): Promise<Job>;
  stop(id: string): Promise<void>;
  positions(length: number, width: number): Promise<Positions>;
  runs(): Promise<RunSummary[]>;
  runLines(id: string, after: number): Promise<RunLines>;
}

/** What a view is given. */
export interface ViewContext {
  store: Store;
  source: Source;
  /** The trace that is looked at, or null before the first. */
  trace(): Trace | null;
  /** The model that was chosen, or null before the server has named any. */
  model(): ModelSummary | null;
  /** Say something to the person: a sentence that goes away, or stays where it is an error. */
  say(sentence: string, kind?: "note" | "error"): void;
  /** A colour for a head, the same everywhere. */
  colour(layer: number, head: number): string;
  /** Run the model of the state, and look at what comes out from then on. Problems are said to the person. */
  run(request: RunRequest): Promise<void>;
  /** What is being written at this moment, or null; `listen` hears of every token, and gives back how to stop. */
  running(): Running | null;
  listen(hear: (running: Running | null) => void): () => void;
}

/** A model at work: what it has written so far. */
export interface Running {
  request: RunRequest;
  tokens: { text: string; token: string; probability: number; step: number }[];
  stop(): void;
}

/** What a view can be saved as. */
export interface Exports {
  svg?: () => SVGSVGElement | string;
  canvas?: () => HTMLCanvasElement;
  csv?: () => { name: string; rows: (string | number)[][] };
}

export interface Mounted {
  /** Called after every change of state or trace; draws only what has changed. */
  update(state: State, trace: Trace | null): void;
  destroy(): void;
  exports?: Exports;
  /** What is drawn, as plain data: `window.regard.read(name)` gives it to whoever wants to check. */
  read?(): unknown;
}

/** A view is a file under web/src/views that exports one of these as `view`. */
export interface View {
  name: string;
  title: string;
  /** Whether it can show something for this model or trace. */
  fits(model: ModelSummary | null): boolean;
  mount(element: HTMLElement, context: ViewContext): Mounted;
}
