"""What attention does and keeps for backward: of heads that have keys and values, and of heads that share a latent.

Fused attention keeps queries, keys, values, its result, and the float32 sum of each softmax. A CPU has none with
dropout on its weights, or with values that are not as wide as keys. It then keeps the weights, and with dropout their
mask and what is left of them.

Heads that share a latent (attention/latent.py) make keys and values of it in every layer, of a source too: all that is
made of a source beforehand is latents, and the ways up from them are part of each layer. Behind a cache the order of
products is that which takes fewer of them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from regard.attention import HeadsConfig, LatentConfig
from regard.attention.heads import HeadSizes
from regard.attention.kinds import AnyAttention
from regard.cost.effort import Device, Effort, normalise

AnyConfig = TypeVar("AnyConfig", HeadsConfig, LatentConfig)


def attention_of(config: AnyAttention, width: int, device: Device) -> "Counted[HeadsConfig] | Counted[LatentConfig]":
    """Counts what attention of these settings takes in a model of this width."""
    return Latents(config, width, device) if isinstance(config, LatentConfig) else Heads(config, width, device)


@dataclass(frozen=True)
class Counted(ABC, Generic[AnyConfig]):
    """What one layer's attention takes, for a row. Numbers of products are FLOPs, the rest is kept for backward."""

    config: AnyConfig
    width: int
    device: Device

    @property
    @abstractmethod
    def lends(self) -> bool:
        """Whether layers that share what was made of the source hold it once, all of them together."""

    @abstractmethod
    def own(self, tokens: int, reached: int, rotary: bool) -> Effort:
        """Tokens look at each other; `reached` is how many pairs of them are compared."""

    @abstractmethod
    def other(self, queries: int, keys: int) -> Effort:
        """Tokens look at a source, of which all is made already that layers do not make themselves."""

    @abstractmethod
    def make(self, keys: int) -> Effort:
        """The products by which a source is made into what layers look at, for one of them or for all."""

    @abstractmethod
    def made(self, keys: int) -> Effort:
        """What is kept of a source as it was made, for one layer or for all."""

    @abstractmethod
    def held(self, keys: int) -> Effort:
        """The same as attention reads it."""

    @abstractmethod
    def copied(self, keys: int) -> Effort:
        """What attention holds beside what was made."""

    @abstractmethod
    def step(self, seen: int) -> Effort:
        """The products for one new token that looks at so many in the cache, itself included."""

    @abstractmethod
    def step_other(self, keys: int) -> Effort:
        """The products for one new token that looks at a source."""

    def _is_fused(self, sizes: HeadSizes) -> bool:
        return self.device == "cuda" or (self.config.dropout == 0 and sizes.head_width == sizes.value_width)

    def _weigh(self, sizes: HeadSizes, queries: int, keys: int, reached: int, rotary: bool) -> Effort:
        """Compare queries with keys, mix values, put the heads together: queries, weights and results are kept."""
        asked, mixed = queries * sizes.heads * sizes.head_width, queries * sizes.heads * sizes.value_width
        work = _compare(sizes, reached)
        if self.config.output:
            work += Effort(flops=2 * self.width * mixed)
        if self._is_fused(sizes):
            # Turned queries lie head by head, and so does the result: it is laid out again for the output.
            kept = (2 if rotary and self.config.output else 1) * mixed
            return work + Effort(kept=asked + kept, sums=queries * sizes.heads)
        weights, dropped = sizes.heads * queries * keys, self.config.dropout > 0
        kept = (2 if dropped else 1) * weights + mixed * self.config.output
        return work + Effort(kept=asked + kept, masks=weights * dropped)


class Heads(Counted[HeadsConfig]):
    """Heads with keys and values of their own, or in groups."""

    @property
    def sizes(self) -> HeadSizes:
        return self.config.sizes(self.width)

    @property
    def lends(self) -> bool:
        return self._is_fused(self.sizes)

    def own(self, tokens: int, reached: int, rotary: bool) -> Effort:
        return self.make(tokens) + self.held(tokens) + self._attend(tokens, tokens, reached, rotary)

    def other(self, queries: int, keys: int) -> Effort:
        return self._attend(queries, keys, queries * keys, False)

    def make(self, keys: int) -> Effort:
        return Effort(flops=2 * self.width * keys * self.config.cached(self.width))

    def made(self, keys: int) -> Effort:
        return Effort(kept=keys * self.config.remembered(self.width))

    def held(self, keys: int) -> Effort:
        """Where attention is not fused, a copy for each query head. Cosine keeps keys as made too."""
        sizes = self.sizes
        heads = sizes.key_heads if self._is_fused(sizes) else sizes.heads
        kept = keys * heads * (sizes.head_width + sizes.value_width)
        if self.config.similarity == "cosine":
            return Effort(kept=kept + keys * sizes.key_heads * sizes.head_width, sums=2 * keys * sizes.key_heads)
        return Effort(kept=kept)

    def copied(self, keys: int) -> Effort:
        return self.held(keys) + self.made(keys) * -1 if self.lends else self.held(keys)

    def step(self, seen: int) -> Effort:
        return self.make(1) + self.step_other(seen)

    def step_other(self, keys: int) -> Effort:
        return self._attend(1, keys, keys, False).products

    def _attend(self, queries: int, keys: int, reached: int, rotary: bool) -> Effort:
        sizes = self.sizes
        asked = queries * sizes.heads * sizes.head_width
        made = Effort(flops=2 * self.width * asked)
        if self.config.similarity == "cosine":  # as made and normalised, beside scaled
            made += Effort(kept=2 * asked, sums=2 * queries * sizes.heads)
        return made + self._weigh(sizes, queries, keys, reached, rotary)


class Latents(Counted[LatentConfig]):
    """Heads that make their keys and values of one latent."""

    @property
    def lends(self) -> bool:
        return True

    def own(self, tokens: int, reached: int, rotary: bool) -> Effort:
        turned = Effort(flops=2 * tokens * self.width * self.config.rotary_width)
        there = self.make(tokens) + self.made(tokens) + turned
        return there + self._naive(self._whole, tokens, tokens, reached, rotary)

    def other(self, queries: int, keys: int) -> Effort:
        return self._naive(self._plain, queries, keys, queries * keys, False)

    def make(self, keys: int) -> Effort:
        return Effort(flops=2 * keys * self.width * self.config.latent)

    def made(self, keys: int) -> Effort:
        """Latents, and what their norm keeps."""
        return normalise(keys, self.config.latent, "rms", self.device)

    def held(self, keys: int) -> Effort:
        return self.made(keys)

    def copied(self, keys: int) -> Effort:
        return Effort()

    def step(self, seen: int) -> Effort:
        turned = Effort(flops=2 * self.width * self.config.rotary_width)
        return self.make(1) + turned + self._step(self._whole, seen)

    def step_other(self, keys: int) -> Effort:
        return self._step(self._plain, keys)

    @property
    def _whole(self) -> HeadSizes:
        """Of heads with a part that is turned."""
        return self.config.sizes(self.width)

    @property
    def _plain(self) -> HeadSizes:
        """Of heads without, which look at a source."""
        return replace(self._whole, head_width=self._whole.head_width - self.config.rotary_width)

    def _ask(self, sizes: HeadSizes, queries: int) -> Effort:
        """Make queries, perhaps of a latent of their own."""
        middle, wide = self.config.query_latent, sizes.heads * sizes.head_width
        if middle is None:
            return Effort(flops=2 * queries * self.width * wide)
        narrowed = normalise(queries, middle, "rms", self.device)
        return Effort(flops=2 * queries * middle * (self.width + wide)) + narrowed

    def _naive(self, sizes: HeadSizes, queries: int, keys: int, reached: int, rotary: bool) -> Effort:
        """Make keys and values of all latents first. The turned key is put beside each head's own."""
        held = keys * sizes.heads * (sizes.head_width + sizes.value_width)
        up = 2 * keys * self.config.latent * sizes.heads * (self._plain.head_width + sizes.value_width)
        return (
            Effort(flops=up, kept=held) + self._ask(sizes, queries) + self._weigh(sizes, queries, keys, reached, rotary)
        )

    def _step(self, sizes: HeadSizes, keys: int) -> Effort:
        """One token behind a cache, in the order that takes fewer products; naive if both take as many."""
        latent, made = self.config.latent, self._plain.head_width + sizes.value_width
        alike = replace(sizes, head_width=sizes.head_width - self._plain.head_width + latent, value_width=latent)
        folded = Effort(flops=2 * sizes.heads * latent * made) + _compare(alike, keys)
        output = Effort(flops=2 * self.width * sizes.heads * sizes.value_width)
        absorbed = self._ask(sizes, 1) + folded + output
        naive = self._naive(sizes, 1, keys, keys, False)
        return min(naive.products, absorbed.products, key=lambda way: way.flops)


def _compare(sizes: HeadSizes, pairs: int) -> Effort:
    """Compare pairs of queries and keys, and mix values."""
    compared = 2 * pairs * sizes.heads * (sizes.head_width + sizes.value_width)
    return Effort(flops=compared, attention=compared)
