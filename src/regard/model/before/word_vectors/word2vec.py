"""word2vec: vectors that predict which words occur near each other (Mikolov et al. 2013).

Every word has two vectors: an input vector, which is its embedding, and an output vector for when it is predicted.
Skip-gram embeds a word and predicts each word of its context; continuous bag of words (CBOW) averages the embeddings of
the context and predicts the word. `cross_entropy` is that definition over the whole vocabulary; the other two losses
take its place where a vocabulary is large. They are written here to be read; `train/word_vectors` is what is fast.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.model.before.word_vectors.config import (
    CbowConfig,
    HierarchicalSoftmaxConfig,
    SkipGramConfig,
)
from regard.model.before.word_vectors.keyed_vectors import Vector
from regard.model.before.word_vectors.static_vectors import StaticVectors
from regard.model.before.word_vectors.subwords import rows_of_words, subword_rows

NO_WORD = -1
"""Stands in a context where the sentence has no word."""


class Word2Vec(StaticVectors):
    """Skip-gram or CBOW: a table of input vectors and one of output vectors.

    Input vectors are those of words and, behind them, those of character n-grams. Output vectors are those of words or,
    for the hierarchical softmax, of the inner nodes of its tree. The former are drawn from ±1 / width, as in fastText
    and gensim (word2vec.c: half of that, which is slightly worse after few epochs), the latter are 0.
    """

    config: SkipGramConfig | CbowConfig

    def __init__(self, config: SkipGramConfig | CbowConfig) -> None:
        super().__init__(config)
        buckets = 0 if config.subwords is None else config.subwords.buckets
        is_tree = isinstance(config.loss, HierarchicalSoftmaxConfig)
        outputs = max(config.vocab_size - 1, 1) if is_tree else config.vocab_size
        rows = torch.empty(config.vocab_size + buckets, config.width)
        self.input_vectors = nn.Parameter(rows.uniform_(-1 / config.width, 1 / config.width))
        self.output_vectors = nn.Parameter(torch.zeros(outputs, config.width))

    def forward(self, ids: Tensor) -> Tensor:
        return self.input_vectors[ids]

    def hidden(self, words: Tensor, contexts: Tensor) -> Tensor:
        """What predictions are made from: the embedding of each word, or the mean of those of its context.

        words: # (words,); contexts: # (words, context), with NO_WORD where there is none → # (words, width)
        """
        if isinstance(self.config, SkipGramConfig):
            return self.input_vectors[words]
        known = (contexts != NO_WORD).unsqueeze(-1)
        return (self.input_vectors[contexts.clamp(min=0)] * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)

    def cross_entropy(self, words: Tensor, contexts: Tensor) -> Tensor:
        """The cross-entropy at each word with the softmax over the vocabulary, and 0 at one without a context.

        With skip-gram it is the mean over the context, and so are the gradients.  # (words,)
        """
        logits = self.hidden(words, contexts) @ self.output_vectors.T  # (words, vocabulary)
        if isinstance(self.config, SkipGramConfig):
            known = contexts != NO_WORD
            losses = -logits.log_softmax(dim=-1).gather(1, contexts.clamp(min=0))  # (words, context)
            return (losses * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)
        return F.cross_entropy(logits, words, reduction="none") * (contexts != NO_WORD).any(dim=1)

    @torch.no_grad()
    def word_vectors(self, words: Sequence[str]) -> Vector:
        subwords = self.config.subwords
        if subwords is None:
            vectors = self.input_vectors.detach().cpu()
        else:
            offsets, rows = rows_of_words(words, subwords)
            table = self.input_vectors.detach().cpu()
            vectors = F.embedding_bag(torch.from_numpy(rows).long(), table, torch.from_numpy(offsets[:-1]), mode="mean")
        found: Vector = vectors.numpy()
        return found

    @torch.no_grad()
    def compose(self, word: str) -> Vector | None:
        """The mean of the vectors of its character n-grams."""
        subwords = self.config.subwords
        rows = [] if subwords is None else subword_rows(word, subwords, self.config.vocab_size)
        if not rows:
            return None
        found: Vector = self.input_vectors[rows].mean(dim=0).float().cpu().numpy()
        return found


def contexts_of(sentence: Tensor, window: int) -> Tensor:
    """The ids of the `window` words before and after each word of a sentence, NO_WORD beyond its ends.

    sentence: # (words,) → # (words, 2 · window)
    """
    padded = F.pad(sentence, (window, window), value=NO_WORD)
    windows = padded.unfold(0, 2 * window + 1, 1)  # (words, 2 · window + 1)
    return torch.cat((windows[:, :window], windows[:, window + 1 :]), dim=1)


def negative_sampling_loss(hidden: Tensor, outputs: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
    """−log σ(h·u) of the true word − Σ log σ(−h·u) over random words, those that are the true word left out.

    hidden: # (predictions, width); outputs: # (words, width); targets: # (predictions,)
    negatives: # (predictions, negatives) → # (predictions,); Mikolov et al. 2013, eq. 4
    """
    score = partial(torch.einsum, "pw,p...w->p...", hidden)
    loss = -F.logsigmoid(score(outputs[targets]))
    return loss - (F.logsigmoid(-score(outputs[negatives])) * (negatives != targets[:, None])).sum(dim=1)


def hierarchical_softmax_loss(hidden: Tensor, nodes: Tensor, codes: Tensor) -> Tensor:
    """−log p of a word: of the ways taken at the inner nodes on its path, 0 with probability σ(h·u), else 1.

    hidden: # (width,); nodes: # (path, width), the output vectors of the inner nodes; codes: # (path,) → # ()
    """
    return -F.logsigmoid((nodes @ hidden) * (1 - 2 * codes)).sum()
