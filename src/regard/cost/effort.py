"""The units in which costs are counted: arithmetic, and numbers kept for backward."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal

Precision = Literal["fp32", "bf16"]
Device = Literal["cuda", "cpu"]
"""Which rules of keeping hold: those of a GPU, or those of a CPU."""


@dataclass(frozen=True)
class Effort:
    """Part of a forward pass. Only `flops` and `attention` are FLOPs; the rest counts numbers kept for backward."""

    flops: int = 0
    attention: int = 0
    """Of the FLOPs, those that compare queries with keys and mix values."""
    kept: int = 0
    """In the precision of the model."""
    masks: int = 0
    """Of dropout, one for each number that it may drop."""
    sums: int = 0
    """In float32 whatever the precision; an id of a token counts twice."""

    copies: int = 0
    """In float32, made only where the model itself is in another precision."""
    stacked: int = 0
    """Weights laid below each other, made only in float32: copies in another precision lie so already."""

    def __add__(self, other: "Effort") -> "Effort":
        return Effort(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> "Effort":
        return Effort(*(times * mine for mine in astuple(self)))

    @property
    def products(self) -> "Effort":
        """The same where nothing is kept."""
        return Effort(self.flops, self.attention)

    def bytes(self, precision: Precision, device: Device) -> int:
        size = number_size(precision)
        exact = self.sums + (0 if precision == "fp32" else self.copies)
        kept = self.kept + (self.stacked if precision == "fp32" else 0)
        return size * kept + (size if device == "cpu" else 1) * self.masks + 4 * exact


@dataclass(frozen=True)
class Part:
    """One side of a pass, all rows together."""

    layers: Effort = Effort()
    """What all its layers take."""
    outside: Effort = Effort()
    """Everything else: word vectors, the last norm, keys and values of the source."""
    lasting: Effort = Effort()
    """Where layers are computed again: what is kept all the same."""
    inside: Effort = Effort()
    """And what the last of the layers has on the way back beside that."""
    earlier: tuple[Effort, ...] = ()
    """The same of each layer before it, less what is gone by then."""

    @property
    def insides(self) -> tuple[Effort, ...]:
        """Of all layers, from the first to the last."""
        return (*self.earlier, self.inside)

    def holding(self, more: Effort) -> "Part":
        """The same where every layer that is computed again has more inside."""
        return replace(self, inside=self.inside + more, earlier=tuple(each + more for each in self.earlier))

    @property
    def whole(self) -> Effort:
        return self.layers + self.outside


def part_of(layers: Sequence[Effort], outside: Effort, entering: int) -> Part:
    """A stack of layers; `entering` is how many numbers enter each of them.

    Computed again, the inside of one layer at a time is there, and what entered those behind it is gone.
    """
    kept = Effort(kept=entering)
    *earlier, last = (layer + kept * (number - len(layers)) for number, layer in enumerate(layers))
    return Part(sum(layers, Effort()), outside, outside + kept * len(layers), last, tuple(earlier))


def number_size(precision: Precision) -> int:
    """Bytes of a number."""
    return 4 if precision == "fp32" else 2


def normalise(tokens: int, width: int, kind: Literal["layer", "rms"], device: Device) -> Effort:
    """A norm: what enters and leaves it, and mean and deviation of each token, or its root mean square alone.

    A CPU has no fused root-mean-square norm: what is not yet scaled is kept too.
    """
    copies = 1 if kind == "rms" and device == "cpu" else 0
    return Effort(kept=(2 + copies) * tokens * width, sums=tokens * (1 if kind == "rms" else 2))
