"""Absolute positional encodings, which are combined with the token embeddings.

Without them attention is permutation-equivariant. Sinusoidal and learned encodings are the useful ones. Index,
normalized index and binary encodings are those that lectures reject; they have the same interface so that the reasons
can be measured: is an encoding unique, bounded, the same in every sentence, defined for longer ones, deterministic?
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.attention.positions.rotary import Frequencies
from regard.errors import UserError


class Position(nn.Module):
    """Combines a positional encoding with embeddings. The base class adds nothing."""

    max_length: int | None = None
    """The number of positions that can be encoded; None if there is no limit."""

    def check_length(self, length: int) -> None:
        """Refuse a sequence that is longer than there are positions: a GPU would end the process instead."""
        if self.max_length is not None and length > self.max_length:
            raise UserError(
                f"The model has learned positions for {self.max_length} tokens, but {length} are needed; shorten the "
                "text, or train with a larger position.max_length."
            )

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The encoding of each position.  positions: # (…, positions), lengths: # (rows,); (…, positions, features)"""
        raise NotImplementedError

    def combine(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Embeddings combined with their positional encodings.  x: # (batch, positions, token width)"""
        return x


class Added(Position):
    """A positional encoding that is added to the embeddings."""

    def combine(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return x + self.encode(positions, lengths).to(x.dtype)


class Concatenated(Position):
    """A positional encoding that is concatenated to the embeddings instead of added."""

    def __init__(self, encoding: Position) -> None:
        super().__init__()
        self.encoding = encoding
        self.max_length = encoding.max_length

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.encoding.encode(positions, lengths)

    def combine(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        encoding = self.encode(positions, lengths).to(x.dtype)
        return torch.cat((x, encoding.expand(*x.shape[:-1], -1)), dim=-1)


class Sinusoidal(Added):
    """sin and cos of p / 10000^(2i/width), i from 0 (Vaswani et al. 2017, §3.5).

    The layout `interleaved` alternates sine and cosine as in the paper; `halves` puts all sines first, as in Marian.
    Some lecture notes number the pairs from 1, which lowers every frequency by a factor of 10000^(2/width) and no
    longer matches the paper.
    """

    def __init__(self, features: int, theta: float = 10_000.0, layout: str = "interleaved") -> None:
        super().__init__()
        self.features, self.layout = features, layout
        self.frequencies = Frequencies([theta ** (-pair / features) for pair in range(0, features, 2)])

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        angles = positions[..., None].to(torch.float32) * self.frequencies.values  # (…, positions, pairs)
        sine, cosine = angles.sin(), angles.cos()
        if self.layout == "halves":
            return torch.cat((sine, cosine), dim=-1)[..., : self.features]
        return torch.stack((sine, cosine), dim=-1).flatten(-2)[..., : self.features]


class Learned(Added):
    """A learned vector for each of the first `max_length` positions."""

    no_weight_decay: ClassVar = ("weight",)

    def __init__(self, features: int, max_length: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.max_length = max_length
        self.weight = nn.Parameter(
            torch.randn(max_length, features, generator=generator) * 0.02
        )  # (max_length, features)

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is not None:  # padding gets the position of the last token, so that it needs no vector of its own
            positions = torch.minimum(positions, (lengths[:, None] - 1).clamp(min=0))
        try:
            return nn.functional.embedding(positions, self.weight)
        except IndexError:
            self.check_length(int(positions.max()) + 1)
            raise


class Index(Added):
    """The index of the token, from 1: unbounded."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return (positions[..., None] + 1).to(torch.float32).expand(*positions.shape, self.features)


class Normalized(Added):
    """The index of the token divided by the length: bounded, but the distance of neighbors depends on the length."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            length: Tensor | int = positions.shape[-1]
        else:
            length = lengths[:, None]  # (rows, 1)
        position = (positions + 1).to(torch.float32) / length
        return position[..., None].expand(*position.shape, self.features)


class Binary(Added):
    """The lowest bits of the position, highest first: bounded, but repeated every 2^features positions."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        # Positions fit into 63 bits; higher features are 0.
        bits = torch.arange(self.features - 1, -1, -1, device=positions.device)
        return ((positions[..., None] >> bits.clamp(max=62)) & (bits < 63)).to(torch.float32)
