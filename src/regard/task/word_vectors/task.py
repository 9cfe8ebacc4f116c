"""The task of word vectors: a text in ids, a model, and the engine that trains it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from regard.data.batching.word_blocks import WordBlock
from regard.data.text.documents import text_fingerprint
from regard.data.text.vocabulary import VOCABULARY, Vocabulary, count_words
from regard.data.text.word_corpus import WordCorpus, cached_corpus
from regard.data.text.words import read_sentences
from regard.errors import UserError
from regard.model.before.word_vectors.static_vectors import StaticVectors
from regard.model.before.word_vectors.word2vec import Word2Vec
from regard.run import LoadedModel
from regard.task.word_vectors.recipe import WordVectorsRecipe
from regard.train.distributed.process_group import ProcessGroup
from regard.train.task import LogFn, Score
from regard.train.word_vectors.engine import VectorEngine
from regard.train.word_vectors.trainer import Piece, VectorTrainer
from regard.train.word_vectors.word2vec import word2vec_engine


class WordVectorsTask:
    """A recipe with its words, its text and its model."""

    trainer: ClassVar[type[VectorTrainer]] = VectorTrainer
    """What trains it in place of the trainer of networks."""

    def __init__(
        self,
        recipe: WordVectorsRecipe,
        vocabulary: Vocabulary,
        corpus: WordCorpus,
        fingerprint: str,
        model: StaticVectors,
        process_group: ProcessGroup,
    ) -> None:
        self.recipe, self.vocabulary, self.corpus = recipe, vocabulary, corpus
        self.fingerprint, self.model, self.process_group = fingerprint, model, process_group

    @classmethod
    def prepare(cls, recipe: WordVectorsRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        """Count or load the vocabulary, put the text into ids, and build the model with its initial vectors."""
        if process_group.size > 1:
            raise UserError("Word vectors are trained by one process; leave out --processes, and use --threads.")
        data, path = recipe.data, folder / VOCABULARY
        if not path.is_file():
            count_words(read_sentences(data.train, data.words), data.words, log).save(path)
        vocabulary = Vocabulary.load(path)
        corpus = cached_corpus(data.train, data.words, vocabulary, log)
        fingerprint = " ".join(map(text_fingerprint, data.train))
        torch.manual_seed(recipe.train.seed)
        model = recipe.make_model_config(len(vocabulary)).build()
        return cls(recipe, vocabulary, corpus, fingerprint, model, process_group)

    @classmethod
    def for_testing(cls, recipe: WordVectorsRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        raise UserError("Word vectors have no test sets of their own; `regard vectors` asks them questions.")

    def describe_data(self) -> str:
        sentences = len(self.corpus.offsets) - 1
        return f"{self.corpus.words:,} words in {sentences:,} sentences; the vocabulary has {len(self.vocabulary):,}."

    @property
    def epoch_size(self) -> int:
        return self.corpus.words

    @property
    def epoch_steps(self) -> int:
        return self.corpus.block_count(self.recipe.train.batch_tokens)

    def blocks(self, epoch: int, position: int) -> Iterator[Piece[WordBlock]]:
        """The text, a block at a time, in the same order in every epoch."""
        for end, block in self.corpus.blocks(self.recipe.train.batch_tokens, position):
            yield Piece(block, len(block.ids), end)

    def engine(self, device: torch.device, log: LogFn) -> VectorEngine[WordBlock]:
        assert isinstance(self.model, Word2Vec)
        words, counts = self.vocabulary.words, self.vocabulary.counts
        return word2vec_engine(self.model, words, counts, self.recipe.data.context_window, log)

    def test(self, log: LogFn) -> dict[str, Score]:
        return {}

    def metadata(self) -> dict[str, Any]:
        return {"data": {"train": self.fingerprint}}
