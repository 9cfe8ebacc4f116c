/**
 * The data contract between Python and the page, and the interfaces between the page and its views.
 *
 * Metadata travels as JSON, tensors as binary. Every number comes from the running model; the page only draws.
 * In Python these are the pydantic models of `regard/look/schema/`; a test compares the two field by field.
 */

/** Which attention of a model: encoder self-attention (texts and images), decoder self-attention, or cross-attention. */
export type AttentionType = "encoder" | "decoder" | "cross";

/** A model that the page can trace: `GET api/models`. */
export interface ModelSummary {
  id: string;
  name: string;
  /** The task's name, such as "translation". It only chooses wording; a task that the page does not know works too. */
  task: string;
  input: "text" | "image";
  /** Whether the model generates tokens, so that there are decoding settings and a search to step through. */
  generates: boolean;
  parameters: number;
  /** A sample input; empty for images. */
  example: string;
  /** Sample inputs, that one first. Missing in older files. */
  examples?: string[];
  /** The code of the language that it reads, such as "en", if its name tells. */
  language?: string;
  /** Whether a text is split into sentences, which are run one by one, as by the task's own command. Missing in older files. */
  splits_sentences?: boolean;
  /** The code of the language that a translator writes, if its name tells. */
  target_language?: string;
  /**
   * The attention that the model has, in order of computation; empty for a model without any. `weights_only`: it is not
   * the multi-head attention of a Transformer, so its weights can be shown, but its heads cannot be opened or ablated.
   */
  attention: { attention_type: AttentionType; layers: number; heads: number; weights_only?: boolean }[];
  /** The decoding settings used for a request that sets none. */
  decoding: DecodingSettings;
  /** What head importance can be measured by. */
  metrics: ("loss" | "bleu")[];
}

/** One box of the model diagram, with the boxes inside it: `GET api/models/{id}/diagram`. */
export interface ModuleBox {
  /** The module's path, such as "decoder.layers.0.self_attn"; unique. */
  path: string;
  label: string;
  kind:
    | "model"
    | "input"
    | "position"
    | "stack"
    | "block"
    | "attention"
    | "feed-forward"
    | "norm"
    | "residual"
    | "output"
    | "other";
  /** Every parameter with its shape. */
  parameters: { name: string; shape: number[] }[];
  /** The number of parameters in this box and all boxes inside it. A shared parameter counts once, where it comes first. */
  parameter_count: number;
  /** Input and output shapes, such as "(batch, tokens, 256)". */
  shape: string;
  /** For an attention module, which one it is. A click opens it in the heads view. */
  attention?: { attention_type: AttentionType; layer: number };
  /** How a positional encoding joins the embedding; "rotary": this attention rotates queries and keys by their position. */
  position?: "added" | "concatenated" | "rotary";
  /** One sentence for readers who have never seen such a module. */
  description: string;
  children: ModuleBox[];
}

export interface DecodingSettings {
  method: "beam" | "greedy" | "sample";
  beam_size: number;
  max_new_tokens: number;
  temperature: number;
  top_k: number;
  top_p: number;
  seed: number;
}

/** A head to ablate. */
export interface AblatedHead {
  attention_type: AttentionType;
  layer: number;
  head: number;
  /** What replaces the head's output: zero, or its mean over the tokens of the text. */
  ablation: "zero" | "mean";
}

/**
 * `POST api/models/{id}/traces`: run a model and record a trace. The response is a stream of JSON lines, each a `RunEvent`.
 * It starts with status 200 as soon as the run is accepted. A run that fails later ends with the event "failed", whose
 * `status` is the one that the response would have had: 400 if the model refuses the input, 413 if there is not enough
 * memory, 503 if the run was stopped, 500 for an internal error.
 */
export interface RunRequest {
  text: string;
  /** An image instead of a text, as a data: URL. */
  image?: string;
  decoding?: Partial<DecodingSettings>;
  /** The tokens of the source, overriding the text's own: for a token that was edited. */
  source_tokens?: string[];
  ablated_heads?: AblatedHead[];
  /**
   * What if: the ids of the tokens that the output begins with (they keep the probability that the model gives them), words
   * that it contains, and words that it does not contain.
   */
  prefix_tokens?: number[];
  require?: string[];
  forbid?: string[];
}

/** `POST api/models/{id}/sentences`: the sentences that a text is run as; answered by `Sentences`. */
export interface SentencesRequest {
  text: string;
}
export interface Sentences {
  sentences: string[];
  /** What was done besides splitting, in a sentence. */
  note?: string;
}

export type RunEvent =
  | { event: "token"; text: string; token: string; probability: number; step: number }
  | { event: "done"; trace: string }
  | { event: "failed"; error: string; status: number };

/** A token as it is displayed, with the word it belongs to. */
export interface Token {
  id: number;
  /** The tokenizer's own spelling. */
  piece: string;
  /** The readable spelling, without the tokenizer's markers. */
  text: string;
  /** The index of the word that the token is part of; -1 for tokens outside of words (bos, eos, pad, mask …). */
  word: number;
  special: boolean;
}

/** A candidate for a token, with its probability. */
export interface Alternative {
  token: Token;
  probability: number;
}

/** A generated token of the best hypothesis. */
export interface GeneratedToken {
  token: Token;
  /** The model's probability at this step, before any logits processor or penalty. */
  probability: number;
  alternatives: Alternative[];
}

/** One node of the search tree: a candidate of one step. */
export interface BeamNode {
  id: number;
  /** The node that it extends; -1 for those of the first step. */
  parent: number;
  /** Counted from 1. */
  step: number;
  token: Token;
  /** Log-probability of this token, and of the hypothesis up to it. */
  log_probability: number;
  total_log_probability: number;
  /** active: stayed in the beam; finished: a complete hypothesis; pruned: dropped from the beam. */
  state: "active" | "finished" | "pruned";
  /** Whether it is part of the output. */
  in_output: boolean;
  /**
   * The row of the KV cache (or of the state, in a model that is no Transformer) that holds it, and whether that row was
   * copied from another beam's; -1 for pruned nodes.
   */
  cache_row: number;
  cache_copied: boolean;
  /** Its index in the arrays "beam/decoder" and "beam/cross"; -1 where its attention has to be computed on request. */
  attention_index: number;
}

/** The length penalty lp of a search: ((5 + length) / 6)^alpha for gnmt, length^alpha for power, 1 for none. */
export interface LengthPenalty {
  kind: "gnmt" | "power" | "none";
  alpha: number;
}

/** A complete output that a search found. */
export interface Hypothesis {
  /** Its last node; -1 if it has none. */
  node: number;
  text: string;
  /** In tokens, with eos. */
  length: number;
  /** Whether it ended with eos; if not, it was cut at the maximum length. */
  ended: boolean;
  /** Whether it is one of the best that the search kept; the others were displaced by better ones. */
  kept: boolean;
  log_probability: number;
  /** What its log-probability is divided by; 1 for greedy search and sampling. */
  length_penalty: number;
  /** What the coverage penalty adds to its score, in a search that has one. */
  coverage?: number;
  /** What the search ranks it by: log_probability / length_penalty (+ coverage). */
  score: number;
}

/** `GET api/traces/{id}`: all of a trace but its arrays; also the header of a saved trace. */
export interface Trace {
  format: "regard trace";
  version: 1;
  /** "" in a file. */
  id: string;
  model: ModelSummary;
  request: RunRequest;
  /** The input tokens; for an image, its class token and patches ("0,0" is the upper left). */
  source: Token[];
  /** For images: rows and columns of patches, and the image itself as a data: URL. */
  grid?: { rows: number; columns: number; image: string };
  /** The output tokens, with bos and eos where the model has them. Positions of "decoder" refer to these. */
  target: Token[];
  /** One for each token of `target` that was predicted; the first has none. */
  generated: GeneratedToken[];
  /** The output as text (a translation, a tree, labels …). */
  output: string;
  /** For each classified item (text, word, image, or masked token), its likeliest labels. */
  predictions: { item: string; choices: { label: string; probability: number }[] }[];
  /** Log-probability of the output. */
  log_probability: number;
  nodes: BeamNode[];
  /** The complete outputs that the search found, best first; the first is the output. Missing in older files. */
  hypotheses?: Hypothesis[];
  /** Of a beam search. */
  length_penalty?: LengthPenalty;
  /** What was cut from the input or the output, in sentences. */
  cuts?: string[];
  arrays: ArraySpec[];
  seconds: number;
}

/**
 * The arrays of a trace, by name:
 *   "attention/encoder", "attention/decoder", "attention/cross": (layers, heads, queries, keys), teacher-forced over the output
 *   "beam/decoder", "beam/cross": (active nodes, layers, heads, keys), the attention row of each node, padded with 0
 */
export interface ArraySpec {
  name: string;
  dtype: "float16" | "float32";
  shape: number[];
}

/**
 * `GET api/traces/{id}/attention/{attention_type}/{layer}/{head}?pool=N`: weights as little-endian float16, row by row.
 * The headers X-Rows and X-Columns give the shape, X-Pooled the pool size: each value is the maximum of a block of so many
 * tokens along each axis (1: no pooling). `layer` and `head` may be "all": (layers,) heads × rows × columns. `head` may be
 * "mean": the mean over the layer's heads. Without `pool=N`, the smallest pool size is used that leaves at most 1,024 rows
 * and columns. `row=Q` gives a single row, `mean_from=Q` the mean of the rows from Q on; these are never pooled.
 *
 * `head` may also be "rollout": attention rollout up to this layer (Abnar & Zuidema 2020), for self-attention of a
 * Transformer. With R = I at first, each layer makes it R ← (0.5 · mean over the heads + 0.5 · I) · R, where the rows of
 * the factor are renormalized to 1.
 */
export interface Matrix {
  rows: number;
  columns: number;
  /** The number of tokens behind one row or column. */
  pooled: number;
  values: Float32Array;
}

/**
 * `POST api/traces/{id}/nodes/{node}`: the attention of any node, active or pruned, recomputed from its prefix if need be.
 * Node -1 is the state before the first step (bos, or the prompt). The node's own token is the query, so `next_tokens` are
 * the candidates of the step after it.
 */
export interface NodeAttention {
  node: number;
  /** The tokens up to and including its own. */
  prefix: Token[];
  /** decoder: [layer][head][key], over the prefix; cross: over the source. Empty where the model has no such attention. */
  decoder: number[][][];
  cross: number[][][];
  /**
   * The decoder's last hidden state (empty if the model's logits are not the product of one with output embeddings), its
   * size, and the likeliest next tokens with their logits and probabilities.
   */
  hidden_state: number[];
  hidden_size: number;
  next_tokens: { token: Token; logit: number; probability: number }[];
}

/** `POST api/traces/{id}/cell`: the computation behind one attention row. */
export interface CellRequest {
  attention_type: AttentionType;
  layer: number;
  head: number;
  /** The position of the query. */
  query: number;
}
export interface Cell {
  request: CellRequest;
  /** The factor that scales the scores: 1/√d for most models. */
  scale: number;
  similarity: string;
  query: number[];
  /** One for each key position. */
  keys: number[][];
  values: number[][];
  /** query · key; times scale; after the mask (null: masked out); after softmax. */
  scores: number[];
  scaled_scores: number[];
  masked_scores: (number | null)[];
  weights: number[];
  /** Σ weight · value. */
  output: number[];
  /** Scaled scores, masked scores and weights of all queries, up to 64 × 64 around the query. */
  window: {
    first_query: number;
    first_key: number;
    scaled_scores: number[][];
    masked_scores: (number | null)[][];
    weights: number[][];
  };
}

/**
 * What every row of a head is computed from, in a standalone file: its vectors as they are compared, once for all rows. A
 * `Cell` follows from them by dot products, softmax and a weighted sum.
 */
export interface AttentionInputs {
  attention_type: AttentionType;
  layer: number;
  head: number;
  /** As in a cell. */
  scale: number;
  similarity: string;
  /** One for each position. */
  queries: number[][];
  keys: number[][];
  values: number[][];
  /** [query][key]: 1 if the mask allows the pair, else 0. Missing if it allows all. */
  allowed?: number[][];
}

/** `POST api/models/{id}/head-importance`: measure the importance of every head; answered by a `Job`. */
export interface HeadImportanceRequest {
  ablation: "zero" | "mean";
  metric: "loss" | "bleu";
  /** A dev set: sentences, or source⇥target pairs. Without it, the recipe's validation set or the data that ships is used. */
  lines?: string[];
}
/** `GET api/jobs/{id}`; `DELETE` stops it. */
export interface Job {
  id: string;
  model: string;
  done: number;
  total: number;
  state: "running" | "done" | "failed" | "stopped";
  error: string;
  result?: HeadImportance | HeadRoles | Contrast | ModuleTimes;
}
export interface HeadImportance {
  metric: "loss" | "bleu";
  /** The metric without ablation. */
  baseline: number;
  examples: number;
  /** The metric with one head ablated, and its change from the baseline; filled as the job progresses. */
  heads: { attention_type: AttentionType; layer: number; head: number; value: number; change: number }[];
}

/**
 * `POST api/models/{id}/head-roles`: measure what every head attends to; answered by a `Job`. For the same request, the
 * job that is running or done is answered again.
 */
export interface HeadRolesRequest {
  /** A dev set, as for head importance. */
  lines?: string[];
}
export interface HeadRoles {
  /** Examples of the dev set, and sentences of a treebank, so far. */
  examples: number;
  sentences: number;
  /** Sentences: when a head gets a tag; what the word alignment and the treebank are. */
  rule: string;
  notes: string[];
  /** What was measured of each attention type. */
  measures: {
    attention_type: AttentionType;
    name: string;
    label: string;
    /** Its short form, on a thumbnail. */
    tag: string;
    /** What is counted, in sentences. */
    description: string;
    /** The number of queries, or of words. */
    count: number;
    /** Whether it is an error rate, of which less is better. */
    is_error: boolean;
  }[];
  /** Every measure of every head, layer by layer. */
  heads: {
    attention_type: AttentionType;
    layer: number;
    head: number;
    /** The name of the measure. */
    measure: string;
    /** The mean share of attention; or the share of words, or the error rate. */
    value: number;
    /** Where the value is a share of attention: the share of queries whose largest weight lies there. */
    maximum?: number;
    /** The value that a strategy gives that needs no learning, such as uniform attention. */
    baseline: number;
    strategy: string;
    /** Whether the head beats the baseline clearly. */
    tagged: boolean;
  }[];
}

/**
 * `POST api/traces/{id}/contrast`: why one token of the output was written and not another; answered by a `Job` whose
 * result is a `Contrast`.
 */
export interface ContrastRequest {
  /** The position in `target` of the token that was written. */
  position: number;
  /** The id of the token that could stand there instead; or a text, which is compared where it first differs. */
  contrast: string | number;
}
/**
 * The margin log p(token) − log p(contrast), and what it depends on. A change is the margin under a condition less `margin`.
 * All lists but `parts` are filled as the job progresses, the words first. They are empty for a model that is no
 * Transformer.
 */
export interface Contrast {
  /** The position in `target` of the token that was read in this step. */
  position: number;
  read: Token;
  /** The token that was written in this step, the one that it is compared with, and the text that this one begins. */
  token: Token;
  contrast: Token;
  contrast_tokens: Token[];
  probability: number;
  contrast_probability: number;
  margin: number;
  /**
   * The direct contributions, whose sum is the margin: of the embedding, of each head ("decoder" and "cross") and
   * feed-forward network of the decoder, and of all biases of a layer.
   */
  parts: {
    kind: "embedding" | "decoder" | "cross" | "feed-forward" | "bias";
    layer?: number;
    head?: number;
    value: number;
  }[];
  /** Its output replaced by zeros. */
  heads: { attention_type: AttentionType; layer: number; head: number; change: number }[];
  feed_forwards: { stack: "encoder" | "decoder"; layer: number; change: number }[];
  /** Words occluded: the embeddings of their tokens replaced by zeros. `positions` are those of `source` or `target`. */
  words: { side: "source" | "target"; positions: number[]; change: number }[];
}

/**
 * `GET api/traces/{id}/activations`: what leaves each box of the model diagram in one pass over the input and the output,
 * and what the box costs in that pass.
 */
export interface ModuleActivations {
  /** In the order of the diagram. A box that the pass does not call as one module has neither shape nor norm. */
  boxes: {
    path: string;
    /** Of the tensor that leaves the box, such as [1, 12, 256]. */
    shape?: number[];
    /** The mean norm of its vectors over the tokens. */
    norm?: number;
    /** FLOPs of the matmuls, and bytes of activations that training saves for the backward pass; with the boxes inside it. */
    flops?: number;
    bytes?: number;
  }[];
  /** The cost model's estimate for the whole pass, which the boxes add up to. */
  flops: number;
  bytes: number;
  /** Sentences: what is not known of this model. */
  notes: string[];
}

/**
 * `GET api/traces/{id}/activations/values?path=PATH&first=DIMENSION`: what leaves one box, 16 dimensions at a time, of the
 * first 256 tokens.
 */
export interface ModuleValues {
  path: string;
  /** The tokens that the rows belong to, and whose they are; neither if the box has no row for each token. */
  side?: "source" | "target";
  tokens: Token[];
  /** The number of rows in all. */
  rows: number;
  /** The norm of each row, over all dimensions. */
  norms: number[];
  /** The number of dimensions, and the first of `values`. */
  width: number;
  first: number;
  values: number[][];
  /** The largest absolute value in all dimensions of these rows. */
  limit: number;
}

/**
 * `POST api/traces/{id}/module-times`: measure how long each box takes; answered by a `Job`. Times are medians over the
 * passes so far.
 */
export interface ModuleTimes {
  passes: number;
  /** What it was measured on, in words. */
  device: string;
  boxes: { path: string; seconds: number }[];
}

/**
 * `POST api/traces/{id}/lens`: the logit lens. The residual stream after each layer goes through the decoder's final norm
 * and the output projection, as if the layers after it did nothing.
 */
export interface LensRequest {
  /** The position in `target` of the first token that was written; without it, the first that was generated. */
  first?: number;
}
export interface Lens {
  first: number;
  /** For each step, up to 32 of them: the token that was read, and the one that was written. */
  read: Token[];
  written: Token[];
  /** [layer][step], from the embedding (0) to the last layer. */
  layers: LensCell[][];
}
export interface LensCell {
  /** The five likeliest tokens. */
  tokens: Alternative[];
  /** The probability and the rank (1: the likeliest) of the token that was written in the end. */
  probability: number;
  rank: number;
  /** The norm of the residual stream, and its cosine to that of the layer before. */
  norm: number;
  cosine?: number;
}

/**
 * `GET api/traces/{id}/patch-classes`: what the patches of an image say. The last hidden state of each token, after the
 * final norm, goes through the classifier that was trained on the vector of the whole image.
 */
export interface PatchClasses {
  /** What the classifier was trained on: the vector of the class token, or the mean over the patches. */
  pooling: "cls" | "mean";
  /** The class of the image. */
  label: string;
  /** For each token of `source`, its likeliest class, and the probability that it gives to the class of the image. */
  tokens: { label: string; probability: number; image_class_probability: number }[];
}

/** `GET api/positions?length=64&width=64`: positional encodings compared. */
export interface Positions {
  length: number;
  width: number;
  schemes: {
    name: string;
    description: string;
    /** (length, width); empty where a scheme adds nothing to the embeddings. */
    encoding: number[][];
    /** (length, length): the similarity of two positions. */
    similarity: number[][];
    similarity_description: string;
    /** The five requirements of a positional encoding, with the measurement behind each verdict. */
    requirements: { name: string; holds: boolean; evidence: string }[];
  }[];
}

/** The vocabulary that a token belongs to: that of the input, or that of the output. */
export type Side = "source" | "target";

/**
 * `GET api/models/{id}/neighbors?side=source&token=ID`: the ten tokens whose static embeddings have the highest cosine
 * similarity to that of a token. A static embedding is a row of the input embeddings, before positions and layers.
 */
export interface Neighbors {
  side: Side;
  token: Token;
  /** The number of rows of the table, and the dimension of each. */
  vocab_size: number;
  width: number;
  /** The most similar first. */
  neighbors: { token: Token; similarity: number }[];
}

/**
 * `POST api/models/{id}/contextual-vectors`: the words of some sentences in the static embeddings, in the input of the first
 * layer, and after each layer. A word of several tokens has the mean of their vectors.
 */
export interface ContextualVectorsRequest {
  /** A group is a sense of a word, for example; group 0 belongs to none. */
  sentences: { text: string; group: number }[];
  /** The words on the map; without it, all. */
  words?: string[];
  /** The word whose occurrences are compared. Upper and lower case make no difference. */
  word?: string;
}
export interface ContextualVectors {
  words: { sentence: number; text: string }[];
  /** The indices of the words on the map, and of the occurrences that are compared. */
  shown: number[];
  occurrences: number[];
  /** The last includes what follows the layers, such as a final norm. */
  layers: {
    name: string;
    /** [x, y] of each word on the map: the first two principal components of the vectors, normalized to a length of 1. */
    points: number[][];
    /** The fraction of the variance that both axes show. */
    variance: number;
    /** The cosine similarity of every two occurrences. */
    cosines: number[][];
    /** The mean cosine of the pairs within a group, or between two. */
    groups: { first: number; second: number; pairs: number; mean: number }[];
  }[];
}

/**
 * `GET api/traces/{id}/residual-stream`: the vectors of the text that a model reads (a translator's source, a language
 * model's whole text), up to 256 tokens.
 */
export interface ResidualStream {
  tokens: Token[];
  /** [layer][token], from the input of the first layer to the last. */
  norms: number[][];
  /** [layer][token], from the first layer on: the cosine to the vector before the layer. Empty if its width is another. */
  cosines: number[][];
}

/**
 * `GET api/patterns?length=1024&window=128&step=2&tokens=16&causal=false&own=`: attention patterns over a sequence. With
 * `causal`, all are combined with the causal pattern. `own` is another pattern, written as in a recipe.
 */
export interface PatternsRequest {
  /** The number of queries and keys. */
  length: number;
  window: number;
  /** The distance of neighbors in the dilated window. */
  step: number;
  /** Global tokens. */
  tokens: number;
  causal: boolean;
  own: string;
}
export interface Patterns {
  request: PatternsRequest;
  /** The size of FlexAttention's blocks. */
  block: number;
  /** The number of positions behind a row or column of `cells`. */
  cell: number;
  /** All pairs of a query and a key. */
  dense: number;
  patterns: {
    name: string;
    /** As in a recipe. */
    pattern: string;
    description: string;
    /** The pairs that are allowed. */
    pairs: number;
    /** The blocks that FlexAttention computes, those among them that need no mask, and all blocks. */
    blocks: number;
    full_blocks: number;
    all_blocks: number;
    /** The pairs of the sequence in the computed blocks. */
    computed_pairs: number;
    /** The number of allowed pairs in each cell. */
    cells: number[][];
    /** Each block: 0 skipped, 1 computed with the mask, 2 computed without, because all of its pairs are allowed. */
    tiles: number[][];
  }[];
}

/** `GET api/traces/{id}/patterns`: the patterns of a model's attention; none for a model before the Transformer. */
export interface ModelPatterns {
  layers: {
    attention_type: AttentionType;
    layer: number;
    pattern: string;
    /** The pairs of the trace that the pattern allows, and all of them. */
    pairs: number;
    dense: number;
  }[];
}

/** `GET api/runs`: training runs on disk; `GET api/runs/{id}?after=LINE`: new metrics of one. */
export interface RunSummary {
  id: string;
  folder: string;
  recipe: string;
  steps: number;
  step: number;
  /** Whether the run is unfinished and wrote metrics within the last minute. */
  live: boolean;
  /** What is wrong with the run's files, in sentences; empty if nothing is. */
  problem: string;
}
export interface RunMetrics {
  /** The number of lines read so far, to be passed as `after` next time. */
  next_line: number;
  records: Record<string, number | null>[];
}

/**
 * The data in a standalone file. Its element #embedded has two texts, each compressed with deflate and base64-encoded: `json`
 * and `float32`. In the JSON, `{"float32": [start, ...shape]}` stands for an array of numbers: those from `start` on in the
 * little-endian float32 values of the second text, row by row. `arrays` are float16, little-endian, base64-encoded, by name.
 */
export interface Embedded {
  trace: Trace;
  diagram: ModuleBox;
  arrays: Record<string, string>;
  /** Responses computed while the file was written; a standalone file refuses all others with an error message. */
  attention_inputs: AttentionInputs[];
  nodes: NodeAttention[];
  positions?: Positions[];
  neighbors?: Neighbors[];
  patterns?: Patterns[];
  model_patterns?: ModelPatterns;
  /** Attention rollout by attention type: (layers, tokens, tokens), as the other arrays; empty in a file of a long text. */
  rollout?: Record<string, string>;
  patch_classes?: PatchClasses;
  activations?: ModuleActivations;
}

/**
 * The body of every error response (status 400 and above). Status 503 means that too many requests are already waiting;
 * its header Retry-After says after how many seconds to try again.
 */
export interface ErrorResponse {
  detail: string;
}

// ---------------------------------------------------------------------------------------------------------------------
// Between the page and its views.

/** The complete state of the page. It is kept in the URL, so that a link shows the same. */
export interface State {
  view: string;
  model: string;
  text: string;
  /** The text that `text` is a sentence of, and the index of the sentence; -1: the whole text is one input. "": no such text. */
  passage: string;
  sentence: number;
  trace: string;
  /**
   * What made the trace besides the text, to run it again if the server has lost it: JSON with fields of its `RunRequest`
   * (heads as "attention_type.layer.head.ablation"), and `model`, its name, if the server does not have it. "" for a plain
   * run with the decoding settings below.
   */
  run: string;
  /**
   * The second run, beside the first: JSON with what differs from the first (`model`, `text`, and fields of its
   * `RunRequest` as in `run`), and `own`, what is selected in its pane only. "{}": the same run; "": there is one run.
   */
  second: string;
  attention_type: AttentionType;
  layer: number;
  head: number;
  /** Overlaid heads in the order of their selection, as "layer.head". A head's place in it is its color. */
  heads: string[];
  /** The pinned token, and whether it is a query or a key. */
  token: number;
  token_role: "query" | "key";
  step: number;
  node: number;
  ablated_heads: string[]; // "attention_type.layer.head"
  ablation: "zero" | "mean";
  merge_subwords: boolean;
  average_heads: boolean;
  /** Attention rollout up to the layer, instead of single heads. */
  rollout: boolean;
  /** How strongly attention colors an image, from 0 to 1. */
  overlay: number;
  /** The head whose cross-attention is shown under a parse tree: "layer.head" or "layer.mean"; "" for the mean of the last layer. */
  tree_head: string;
  show_special: boolean;
  /** Heads: the measure of what heads do that they are sorted by, and the tag that they have; "*": any tag. */
  sort_heads: string;
  head_tag: string;
  threshold: number;
  method: DecodingSettings["method"];
  /** null, as for the other decoding settings: the model's default. */
  beam_size: number | null;
  max_new_tokens: number | null;
  temperature: number | null;
  top_k: number | null;
  top_p: number | null;
  seed: number | null;
  /** The head-importance job that is shown. */
  job: string;
  /** Why, parse tree: the position of the token that is asked about, and what it is compared with: a text, or "#" and a token's id. */
  position: number;
  contrast: string;
  /** Positions: the number of positions, and the number of dimensions of each encoding. */
  length: number;
  width: number;
  /** Embeddings: the token whose neighbors are shown, as "source.ID"; sentences, one in a line; a word; and the layer. */
  neighbors_of: string;
  sentences: string;
  word: string;
  map_words: string;
  stage: number;
  /** Attention patterns: the length, the window, the step of the dilated window, global tokens, and one's own pattern. */
  pattern_length: number;
  window: number;
  dilation: number;
  global_tokens: number;
  causal: boolean;
  own_pattern: string;
  /** Model: what the boxes of the diagram are colored by. */
  color_by: "kind" | "parameters" | "flops" | "bytes" | "time" | "norm";
  /** Runs: the x axis, the y scale, smoothing, and which runs; empty: those in training, or else the first. */
  axis: "step" | "time";
  scale: "linear" | "log";
  smoothing: number;
  runs: string[];
  theme: "auto" | "light" | "dark";
  /** The open entry of the glossary, "all" for the whole glossary, or "". */
  glossary: string;
  /** The open page of the tour, or "". */
  tour: string;
}

export interface Store {
  get(): State;
  /** Change part of the state; all subscribers are notified, and the URL changes. */
  set(change: Partial<State>): void;
  /** Called after each change with the new and the old state; returns the function that unsubscribes. */
  subscribe(listener: (state: State, before: State) => void): () => void;
}

/** A head, the mean over the heads of its layer, or attention rollout up to its layer. */
export type HeadChoice = number | "mean" | "rollout";

/** Where data comes from: a server, or a standalone file. Both answer alike; a file rejects what needs the model. */
export interface Source {
  live: boolean;
  models(): Promise<ModelSummary[]>;
  diagram(model: string): Promise<ModuleBox>;
  sentences(model: string, text: string): Promise<Sentences>;
  run(model: string, request: RunRequest, onEvent: (event: RunEvent) => void, signal?: AbortSignal): Promise<string>;
  trace(id: string): Promise<Trace>;
  /** One head, or what stands for all of a layer; cached. */
  matrix(trace: string, type: AttentionType, layer: number, head: HeadChoice, pool?: number): Promise<Matrix>;
  /** One row of a head, or the mean of its rows from one on, never pooled: 1 × columns. */
  row(trace: string, type: AttentionType, layer: number, head: HeadChoice, query: number | { from: number }): Promise<Matrix>;
  /** All heads of a layer, pooled to at most `size` rows and columns. */
  thumbnails(trace: string, type: AttentionType, layer: number, size: number): Promise<Matrix[]>;
  patchClasses(trace: string): Promise<PatchClasses>;
  node(trace: string, node: number): Promise<NodeAttention>;
  cell(trace: string, request: CellRequest): Promise<Cell>;
  measureHeads(model: string, request: HeadImportanceRequest): Promise<Job>;
  measureRoles(model: string, request: HeadRolesRequest): Promise<Job>;
  explainChoice(trace: string, request: ContrastRequest): Promise<Job>;
  lens(trace: string, request: LensRequest): Promise<Lens>;
  activations(trace: string): Promise<ModuleActivations>;
  moduleValues(trace: string, path: string, first: number): Promise<ModuleValues>;
  measureTimes(trace: string): Promise<Job>;
  job(id: string): Promise<Job>;
  stopJob(id: string): Promise<void>;
  positions(length: number, width: number): Promise<Positions>;
  neighbors(model: string, side: Side, token: number): Promise<Neighbors>;
  contextualVectors(model: string, request: ContextualVectorsRequest): Promise<ContextualVectors>;
  residualStream(trace: string): Promise<ResidualStream>;
  patterns(request: PatternsRequest): Promise<Patterns>;
  modelPatterns(trace: string): Promise<ModelPatterns>;
  runs(): Promise<RunSummary[]>;
  runMetrics(id: string, after: number): Promise<RunMetrics>;
}

/** What a view is given. */
export interface ViewContext {
  store: Store;
  source: Source;
  /** The current trace, or null before the first. */
  trace(): Trace | null;
  /** The selected model, or null before the server has listed any. */
  model(): ModelSummary | null;
  /** Show a message: a note that disappears by itself, or an error that stays. */
  notify(message: string, kind?: "note" | "error"): void;
  /** Run the selected model and make the result the current trace, with a change of the state. Errors are shown as messages. */
  run(request: RunRequest, change?: Partial<State>): Promise<void>;
  /** The run in progress, or null; `onRunning` subscribes to its tokens and returns the function that unsubscribes. */
  running(): Running | null;
  onRunning(listener: (running: Running | null) => void): () => void;
}

/** A run in progress, with the tokens generated so far. */
export interface Running {
  request: RunRequest;
  tokens: { text: string; token: string; probability: number; step: number }[];
  stop(): void;
}

/** The formats in which a view can be saved. */
export interface Exports {
  svg?: () => SVGSVGElement;
  csv?: () => { name: string; rows: (string | number)[][] };
  /** What the files say of the run that they show; by default what the current trace was made with. */
  caption?: () => string;
}

export interface Mounted {
  /** Called after every change of the state or the trace; redraws only what has changed. */
  update(state: State, trace: Trace | null): void;
  destroy(): void;
  exports?: Exports;
  /** What is drawn, as plain data; `window.regard.read(name)` returns it for checks. */
  read?(): unknown;
}

/** A view is a file under web/src/views that exports one of these as `view`. */
export interface View {
  name: string;
  title: string;
  /** Whether the view applies to this model. */
  fits(model: ModelSummary | null): boolean;
  mount(element: HTMLElement, context: ViewContext): Mounted;
  /** Why a second pane beside the first would show nothing new for these two models; "" if it would. */
  single?(first: ModelSummary, second: ModelSummary): string;
  /** What differs between two runs, above both panes. Its `update` gets the state and the trace of the first run. */
  mountDifference?(element: HTMLElement, first: ViewContext, second: ViewContext): Mounted;
}
