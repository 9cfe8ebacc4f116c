"""The pipeline of word vectors: a trained run, and its vectors by word."""

from functools import cached_property

from regard.data.text.vocabulary import VOCABULARY, Vocabulary
from regard.errors import UserError
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors, Vector
from regard.model.before.word_vectors.static_vectors import StaticVectors
from regard.run import LoadedModel
from regard.task.pipeline import Pipeline


class WordVectors(Pipeline):
    """Word vectors that regard has trained: `regard.load("runs/novels")`."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded)
        assert loaded.path is not None
        self.vocabulary = Vocabulary.load(loaded.path / VOCABULARY)
        if len(self.vocabulary) != self.config.vocab_size:
            raise UserError(
                f"{loaded.path / VOCABULARY} has {len(self.vocabulary):,} words, but the model has "
                f"{self.config.vocab_size:,}; restore it from a copy."
            )

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        if not isinstance(loaded.model, StaticVectors):
            return "These are no word vectors."
        if loaded.path is None or not (loaded.path / VOCABULARY).is_file():
            return f"These word vectors have no words: there is no {VOCABULARY}; restore it from a copy."
        return None

    @cached_property
    def keyed(self) -> KeyedVectors:
        """The vectors by word; with subwords also of words that were never seen."""
        name = "" if self.path is None else str(self.path)
        model: StaticVectors = self.model
        return model.keyed_vectors(self.vocabulary.words, counts=self.vocabulary.counts, name=name)

    def __getitem__(self, word: str) -> Vector:
        """The vector of a word."""
        return self.keyed[word]
