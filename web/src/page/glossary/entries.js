/**
 * The terms that the page uses: the field's own, each with one plain sentence and the views that show it.
 */

/**
 * @typedef {object} Entry
 * @property {string} term
 * @property {string} text
 * @property {string[]} views by name
 */

/** @type {[string, string, string][]} */
const ENTRIES = [
  ["ablation", "Replacing the output of a part, such as a head, by zeros or by its mean, to see what the part contributes.", "ablation why"],
  ["activation function", "A nonlinear function between linear layers, such as ReLU or GELU.", "model"],
  ["attention", "A weighted sum of the values of tokens; a weight says how well the query of one token matches the key of another.", "heads cell model"],
  ["attention pattern", "A rule that says which keys each query may attend to, such as those in a window around it.", "patterns model"],
  ["attention rollout", "Attention followed through several layers back to the input: the product of the layers’ mean attention, each mixed half and half with the residual connection.", "heads"],
  ["attention weight", "How much of a token’s value enters a head’s output for one query; the weights of a query add up to 1.", "heads cell decoding"],
  ["batch", "Several inputs that are computed at the same time: the first dimension of a shape.", "model"],
  ["beam", "One of the hypotheses that a beam search keeps after a step.", "decoding"],
  ["beam search", "A search that extends several hypotheses at every step and keeps the best.", "decoding playground"],
  ["BLEU", "A score of translations from 0 to 100: how many of their word sequences occur in reference translations.", "ablation"],
  ["BOS", "Beginning of sequence: the special token that a decoder reads before it has generated anything.", "decoding heads"],
  ["cosine similarity", "The cosine of the angle between two vectors: 1 if they point in the same direction, 0 if at right angles.", "embeddings"],
  ["cross-attention", "Attention from the target to the source: queries come from the decoder, keys and values from the encoder’s output.", "heads model decoding"],
  ["decoder", "The stack of layers that generates the output; each token attends to itself and to the tokens before it.", "model decoding"],
  ["direct contribution", "What a part of the decoder adds to the margin through the last hidden state, also called direct logit attribution.", "why"],
  ["embedding", "The vector of a token, from a table that is learned in training.", "embeddings model"],
  ["encoder", "The stack of layers that reads the whole input; each token attends to all others.", "model heads"],
  ["EOS", "End of sequence: the special token that ends a text.", "decoding heads"],
  ["feed-forward network", "Linear layers with an activation function between them, which are applied to each token by itself.", "model why"],
  ["greedy search", "A search that takes the likeliest token at every step.", "playground decoding"],
  ["head", "One of several attentions that a layer computes in parallel, each with its own projections to queries, keys and values.", "heads cell ablation"],
  ["head importance", "How much worse the loss or BLEU on a validation set gets if the head is ablated.", "ablation"],
  ["hidden state", "The vector of a token after a layer; the one after the last layer gives the logits.", "decoding model"],
  ["head role", "What a head attends to on many sentences, such as the previous token, measured against a baseline.", "heads"],
  ["hypothesis", "The tokens that a search has generated so far on one of its paths, with their log-probability.", "decoding"],
  ["key", "The vector of a token that queries are compared with: the better it matches a query, the larger the attention weight.", "cell heads"],
  ["KV cache", "The keys and values of earlier tokens, which are kept so that a decoding step computes those of the newest token only.", "decoding"],
  ["KV head", "A head of keys and values, which several heads of queries may share (grouped-query attention).", "model"],
  ["layer", "One of the blocks of a stack, with attention and a feed-forward network; each reads the output of the one before.", "model heads"],
  ["layer norm", "Normalizing the vector of each token to mean 0 and variance 1, with a learned scale and shift.", "model"],
  ["log-probability", "The natural logarithm of a probability: 0 is certain, −2.3 is 10 %; that of an output is the sum over its tokens.", "decoding playground why"],
  ["length penalty", "What the log-probability of a hypothesis is divided by, so that longer ones are not ranked last just for being long.", "decoding"],
  ["logit", "The number that the model gives each token of its vocabulary, before softmax turns all of them into probabilities.", "decoding"],
  ["logit lens", "Reading the residual stream after any layer through the final norm and the output projection, as if it were the last.", "why"],
  ["loss", "What training minimizes: the mean negative log-probability of the right tokens; lower is better.", "runs ablation"],
  ["margin", "log p(token) − log p(alternative): how much likelier the model finds one token than another.", "why"],
  ["mask", "What hides keys from a query; in decoder self-attention, the tokens that come later.", "cell heads"],
  ["masked token", "A token that was replaced by [MASK]; a masked language model predicts it from the text on both sides.", "playground"],
  ["mixture of experts", "Several feed-forward networks, of which a router chooses a few for each token.", "model"],
  ["multi-head attention", "Attention by several heads, whose outputs are concatenated and projected to the width of the model.", "model heads"],
  ["occlusion", "Hiding a word, here by replacing its embeddings by zeros, to see what changes without it.", "why"],
  ["output projection", "The linear layer that computes the logits of all tokens of the vocabulary from the last hidden state.", "model decoding why"],
  ["overfitting", "Getting better on the training data but worse on data that the model is not trained on.", "runs"],
  ["parameter", "A number that is learned in training, such as an entry of a weight matrix.", "model"],
  ["patch", "A square of an image, which a Vision Transformer treats as a token.", "heads playground"],
  ["PCA", "Principal component analysis: the two directions in which vectors differ most, to draw them on a map.", "embeddings"],
  ["positional encoding", "What tells the model the position of a token, because attention by itself does not know the order.", "positions model"],
  ["prefix", "The tokens before the one that is generated.", "decoding why"],
  ["prompt", "The text that a language model is given to continue.", "playground"],
  ["pruned", "Dropped from a beam search, because other candidates have better scores.", "decoding"],
  ["query", "The vector of a token that is compared with the keys of the tokens that it can attend to.", "cell heads"],
  ["residual connection", "Adding the input of a sublayer to its output.", "model"],
  ["residual stream", "The vector of a token that every layer reads and adds to, by its residual connections.", "why embeddings model"],
  ["sampling", "Drawing each token at random by its probability.", "playground decoding"],
  ["self-attention", "Attention among the tokens of one sequence.", "heads model"],
  ["shape", "The sizes of a tensor; (batch, tokens, width) means inputs, tokens of each input, and numbers for each token.", "model"],
  ["softmax", "Makes numbers positive and add up to 1: e to the power of each, divided by the sum of all.", "cell decoding"],
  ["special token", "A token that is no text, such as ⟨bos⟩, ⟨eos⟩ or [MASK].", "heads"],
  ["subword", "A part of a word; a tokenizer splits rare words into several.", "heads playground"],
  ["temperature", "What the logits are divided by before sampling; below 1, likely tokens get even likelier.", "playground"],
  ["tied weights", "An output projection that uses the embedding table as its matrix.", "model"],
  ["token", "A word, a subword or a special token: what a model reads and generates, one after the other.", "playground heads"],
  ["top k, top p", "Sampling from the k likeliest tokens only, or from the likeliest ones whose probabilities add up to p.", "playground"],
  ["validation set", "Data that the model is not trained on, to measure how good it is; also called dev set.", "runs ablation"],
  ["value", "The vector that a token contributes to the outputs of the tokens that attend to it.", "cell"],
  ["vocabulary", "All tokens that a model can read and generate.", "model why"],
  ["width", "The number of dimensions of a token’s vector, d_model in the paper.", "model positions"],
];

/** The entries by id. @type {Map<string, Entry>} */
export const GLOSSARY = new Map(ENTRIES.map(([term, text, views]) => [termId(term), { term, text, views: views.split(" ") }]));

/** The id of a term, as it is in links. @param {string} term */
export function termId(term) {
  return term.toLowerCase().replace(/[^a-z]+/g, "-");
}
