"""What an epoch of training word vectors consists of: the words of a text, or the pairs of words counted in it."""

from collections.abc import Iterator

import torch

from regard.data.batching.word_blocks import WordBlock
from regard.data.cooccurrence import CooccurrenceConfig, PairBlock, cached_cooccurrences
from regard.data.text.vocabulary import Vocabulary
from regard.data.text.word_corpus import WordCorpus, corpus_fingerprint
from regard.model.before.word_vectors.glove import Glove
from regard.model.before.word_vectors.static_vectors import StaticVectors
from regard.model.before.word_vectors.word2vec import Word2Vec
from regard.task.word_vectors.recipe import WordVectorsRecipe
from regard.train.task import LogFn
from regard.train.word_vectors.engine import VectorEngine
from regard.train.word_vectors.glove import GloveEngine
from regard.train.word_vectors.sampling import block_seed
from regard.train.word_vectors.trainer import Piece
from regard.train.word_vectors.word2vec import word2vec_engine


class TextSource:
    """The text, for skip-gram and CBOW: in the same order in every epoch."""

    def __init__(self, recipe: WordVectorsRecipe, corpus: WordCorpus, vocabulary: Vocabulary) -> None:
        self._recipe, self._corpus, self._vocabulary = recipe, corpus, vocabulary
        self.size = corpus.words
        self.steps = corpus.block_count(recipe.train.batch_tokens)

    def __str__(self) -> str:
        return f"{self._corpus.words:,} words in {len(self._corpus.offsets) - 1:,} sentences"

    def blocks(self, epoch: int, position: int) -> Iterator[Piece[WordBlock]]:
        """Some sentences at a time."""
        for end, block in self._corpus.blocks(self._recipe.train.batch_tokens, position):
            yield Piece(block, len(block.ids), end)

    def engine(self, model: StaticVectors, device: torch.device, log: LogFn) -> VectorEngine[WordBlock]:
        assert isinstance(model, Word2Vec)
        words, counts = self._vocabulary.words, self._vocabulary.counts
        return word2vec_engine(model, words, counts, self._recipe.data.context_window, device, log)


class PairSource:
    """The pairs of words that occur together, for GloVe: in another random order in every epoch."""

    def __init__(self, recipe: WordVectorsRecipe, corpus: WordCorpus, vocabulary: Vocabulary, log: LogFn) -> None:
        data = recipe.data
        config = CooccurrenceConfig(window=data.window, max_bytes=data.max_bytes)
        fingerprint = corpus_fingerprint(data.train, data.words)
        self.counts = cached_cooccurrences(corpus, vocabulary, config, fingerprint, log)
        self._recipe, self._words = recipe, corpus.words
        self.size = len(self.counts)
        self.steps = self.counts.block_count(recipe.train.batch_tokens)

    def __str__(self) -> str:
        return f"{self.size:,} pairs of words counted in {self._words:,} words"

    def blocks(self, epoch: int, position: int) -> Iterator[Piece[PairBlock]]:
        """Some pairs at a time."""
        seed = block_seed(self._recipe.train.seed, epoch)
        for end, block in self.counts.blocks(self._recipe.train.batch_tokens, seed, position):
            yield Piece(block, len(block.rows), end)

    def engine(self, model: StaticVectors, device: torch.device, log: LogFn) -> VectorEngine[PairBlock]:
        assert isinstance(model, Glove)
        if device.type != "cpu":
            log("GloVe is trained on the CPU.")
        return GloveEngine(model, log)
