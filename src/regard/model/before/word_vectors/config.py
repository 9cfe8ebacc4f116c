"""What models of static word vectors are trained to predict, and the sizes of their tables.

How windows are taken from a text is a matter of the data ([data] in a recipe), not of the model.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError


class SoftmaxConfig(Config):
    """Cross-entropy over the whole vocabulary: the definition, whose cost grows with the vocabulary."""

    kind: Literal["softmax"] = "softmax"


class NegativeSamplingConfig(Config):
    """Tell the true word from random ones by logistic regression (Mikolov et al. 2013)."""

    kind: Literal["negative-sampling"] = "negative-sampling"
    negatives: int = Field(default=5, ge=1, le=1000)
    """The number of random words for each true one."""
    power: float = Field(default=0.75, ge=-10, le=10)
    """Random words are drawn in proportion to their counts to this power."""


class HierarchicalSoftmaxConfig(Config):
    """Predict the path to the word in a Huffman tree of the vocabulary, one binary decision at a time."""

    kind: Literal["hierarchical-softmax"] = "hierarchical-softmax"


WordLossConfig = Annotated[
    SoftmaxConfig | NegativeSamplingConfig | HierarchicalSoftmaxConfig, Field(discriminator="kind")
]


class SubwordsConfig(Config):
    """Character n-grams, as in fastText: a word's vector is the mean of its own and theirs (Bojanowski et al. 2017)."""

    min_length: int = Field(default=3, ge=1, le=100)
    """The length of the shortest n-grams, counted in characters of the word between < and >."""
    max_length: int = Field(default=6, ge=1, le=100)
    """The length of the longest n-grams."""
    buckets: int = Field(default=2_000_000, ge=1, le=100_000_000)
    """The number of vectors for n-grams. n-grams with the same hash share one."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.min_length > self.max_length:
            raise ConfigError("max_length", f"found {self.max_length}, but the shortest have {self.min_length}.")
        return self


class StaticVectorsConfig(Config):
    """What the configs of all static word vectors have."""

    vocab_size: int = Field(ge=1, le=10_000_000)
    """The number of words."""
    width: int = Field(default=100, ge=1, le=100_000)
    """The dimension of the vectors."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The name of the model."""

    def build(self) -> Any:
        """The model, with initial weights."""
        raise NotImplementedError


class _Word2VecConfig(StaticVectorsConfig):
    """What skip-gram and CBOW have in common."""

    loss: WordLossConfig = NegativeSamplingConfig()
    """How words are predicted."""
    subwords: SubwordsConfig | None = None
    """Character n-grams, so that words that were never seen have a vector too; none if not given."""

    @model_validator(mode="after")
    def _softmax_has_no_subwords(self) -> Self:
        if self.subwords is not None and self.loss.kind == "softmax":
            raise ConfigError("subwords", 'loss.kind = "softmax" has none; choose another loss, or leave them out.')
        return self

    def build(self) -> Any:
        from regard.model.before.word_vectors.word2vec import Word2Vec

        assert isinstance(self, SkipGramConfig | CbowConfig)
        return Word2Vec(self)


class SkipGramConfig(_Word2VecConfig):
    """Skip-gram: predict each word of the context from a word."""

    kind: Literal["skip-gram"] = "skip-gram"


class CbowConfig(_Word2VecConfig):
    """Continuous bag of words (CBOW): predict a word from the mean of the words around it."""

    kind: Literal["cbow"] = "cbow"


Word2VecConfig = SkipGramConfig | CbowConfig


class GloveConfig(StaticVectorsConfig):
    """GloVe: word vectors whose dot products are the logarithms of co-occurrence counts."""

    kind: Literal["glove"] = "glove"
    x_max: float = Field(default=100.0, ge=0, le=1e12)
    """Pairs that occur together less often than this count less in the loss; at 0 all pairs count alike."""
    power: float = Field(default=0.75, ge=0, le=10)
    """A pair with count x below `x_max` has the weight (x / x_max) to this power."""

    def build(self) -> Any:
        from regard.model.before.word_vectors.glove import Glove

        return Glove(self)
