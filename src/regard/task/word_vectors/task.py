"""The task of word vectors: a text in ids, a model, and the engine that trains it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from regard.cost import device_memory
from regard.data.text.documents import text_fingerprint
from regard.data.text.vocabulary import VOCABULARY, Vocabulary, count_words
from regard.data.text.word_corpus import cached_corpus
from regard.data.text.words import read_sentences
from regard.errors import UserError
from regard.model.before.word_vectors.glove import Glove
from regard.model.before.word_vectors.static_vectors import StaticVectors
from regard.run import LoadedModel
from regard.task.word_vectors.memory import check_tables_fit
from regard.task.word_vectors.recipe import WordVectorsRecipe
from regard.task.word_vectors.sources import PairSource, TextSource
from regard.train.distributed.process_group import ProcessGroup
from regard.train.task import LogFn, Score
from regard.train.word_vectors.engine import VectorEngine
from regard.train.word_vectors.trainer import Piece, VectorTrainer


class WordVectorsTask:
    """A recipe with its words, its text and its model."""

    trainer: ClassVar[type[VectorTrainer]] = VectorTrainer
    """What trains it in place of the trainer of networks."""

    def __init__(
        self,
        recipe: WordVectorsRecipe,
        vocabulary: Vocabulary,
        source: TextSource | PairSource,
        fingerprint: str,
        model: StaticVectors,
        process_group: ProcessGroup,
    ) -> None:
        self.recipe, self.vocabulary, self.source = recipe, vocabulary, source
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
        config = recipe.make_model_config(len(vocabulary))
        check_tables_fit(config, device_memory(torch.device("cpu")))
        corpus = cached_corpus(data.train, data.words, vocabulary, log)
        fingerprint = " ".join(map(text_fingerprint, data.train))
        torch.manual_seed(recipe.train.seed)
        model = config.build()
        source: TextSource | PairSource = TextSource(recipe, corpus, vocabulary)
        if isinstance(model, Glove):
            source = PairSource(recipe, corpus, vocabulary, log)
        return cls(recipe, vocabulary, source, fingerprint, model, process_group)

    @classmethod
    def for_testing(cls, recipe: WordVectorsRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        raise UserError("Word vectors have no test sets of their own; `regard vectors` asks them questions.")

    def describe_data(self) -> str:
        return f"{self.source}; the vocabulary has {len(self.vocabulary):,}."

    @property
    def epoch_size(self) -> int:
        return self.source.size

    @property
    def epoch_steps(self) -> int:
        return self.source.steps

    def blocks(self, epoch: int, position: int) -> Iterator[Piece[Any]]:
        return self.source.blocks(epoch, position)

    def engine(self, device: torch.device, log: LogFn) -> VectorEngine[Any]:
        return self.source.engine(self.model, device, log)

    def test(self, log: LogFn) -> dict[str, Score]:
        return {}

    def metadata(self) -> dict[str, Any]:
        return {"data": {"train": self.fingerprint}}
