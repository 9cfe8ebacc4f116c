"""The parts that closed forms are composed of: FLOPs, parameters and sizes of layers that several families share.

    m, n    tokens of the source and of the target        d    the width of the model
    h       the width of its hidden layers                k    the tokens that a window or a convolution sees
    f       the hidden width of a feed-forward            L    the most tokens that have a position
    |T|     the size of the vocabulary                    |S|  that of the source, where it is another one

The number of layers is written out as a coefficient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from regard.cost.expression import Expression, Size, symbol
from regard.model.before.base import SequenceConfig

m, n, d, h, k, f, L, S, T = map(symbol, ("m", "n", "d", "h", "k", "f", "L", "|S|", "|T|"))
HALF = Fraction(1, 2)
GATES = {"lstm": 4, "gru": 3}
STATES = {"lstm": 2, "gru": 1}
"""The vectors in a layer's state: h, and c of an LSTM."""
FLOAT, INTEGER = 4, 8
"""Bytes of a value of the decoding state in float32, and of a position."""

_ZERO = Expression()


@dataclass(frozen=True)
class Formula:
    """What a model costs as a function of its sizes: FLOPs of the forward pass and bytes of the state, of one row."""

    target: Expression
    """The FLOPs of the target; in an encoder–decoder they may depend on the source's length as well."""
    parameters: Expression
    state: Expression = _ZERO
    """The bytes of the decoding state in float32, after a source of m and a target of n tokens."""
    source: Expression = _ZERO
    """The FLOPs of the source, the keys and values that a decoder projects from it among them."""
    layer: Expression = _ZERO
    """The FLOPs of one layer of what predicts the target: its order is a row of Table 1 of Vaswani et al. (2017)."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The values of all symbols but the lengths."""
    columns: "Columns | None" = None
    """ByteNet's c: how many columns a source of m tokens has."""

    def values(self, source_length: int, target_length: int) -> dict[str, int]:
        """The values of all symbols for texts of these lengths."""
        columns = {} if self.columns is None else {"c": self.columns(source_length)}
        return {"m": source_length, "n": target_length, **columns, **self.sizes}

    def flops(self, source_length: int, target_length: int) -> tuple[int, int]:
        """Of one row, source and target."""
        values = self.values(source_length, target_length)
        return self.source(values), self.target(values)

    def parameter_count(self) -> int:
        return self.parameters(self.sizes)

    def state_bytes(self, source_length: int, target_length: int) -> int:
        return self.state(self.values(source_length, target_length))

    @property
    def order(self) -> str:
        """How a layer's cost grows, all lengths being n and all widths d: O(n²·d + n·d²) for self-attention."""
        return self.layer.renamed({"m": "n", "c": "n", "h": "d", "f": "d", "e": "d", "a": "d"}).order


@dataclass(frozen=True)
class Columns:
    """⌈ratio · m⌉ + offset."""

    count: Callable[[int], int]
    text: str

    def __call__(self, tokens: int) -> int:
        return self.count(tokens)


# FLOPs


def linear(tokens: Size, inputs: Size, outputs: Size) -> Expression:
    """A multiply-add is two."""
    return Expression.of(2) * tokens * inputs * outputs


def attention(queries: Size, keys: Size, width: Size) -> Expression:
    """QKᵀ and weights × V."""
    return linear(queries, keys, width) * 2


# Parameters


def linear_parameters(inputs: Size, outputs: Size, *, bias: bool = True) -> Expression:
    return Expression.of(outputs) * (Expression.of(inputs) + int(bias))


def embedding_parameters(
    config: SequenceConfig, width: Expression, *, head: Expression | None = None, tied: bool | None = None
) -> Expression:
    """Token embeddings, an output projection of vectors of width `head` where it is not tied, and its bias."""
    source = getattr(config, "source_vocab_size", None)
    tied = getattr(config, "tie_weights", False) if tied is None else tied
    untied = Expression() if tied else T * (width if head is None else head)
    return T * width + untied + T + (Expression() if source is None else S * width)


def vocabularies(config: SequenceConfig) -> dict[str, int]:
    """The values of |T| and, if there is one, |S|."""
    source = getattr(config, "source_vocab_size", None)
    return {"|T|": config.vocab_size} | ({} if source is None else {"|S|": source})
