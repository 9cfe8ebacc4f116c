"""Codes for positions: what is put into a token's embedding to say where it stands.

Attention without positions gives a permuted input's output permuted. Sinusoidal and learned codes are for use; index,
normalised index and binary are the ones a first lecture rejects, kept behind the same interface so that the reasons
can be measured: is a code unique, bounded, the same in every sentence, good for longer ones, deterministic?
"""

import torch
from torch import Tensor, nn

from regard.attention.rotary import Frequencies
from regard.errors import UserError


class Position(nn.Module):
    """Puts positions into embeddings. This one puts in nothing."""

    limit: int | None = None
    """How many positions there are codes for; None if there is no end."""

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The code of each position.  positions: # (…, positions), lengths: # (rows,); (…, positions, features)"""
        raise NotImplementedError

    def join(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Embeddings that know where they stand.  x: # (batch, positions, token width)"""
        return x


class Added(Position):
    """An encoding that is added to the embeddings."""

    def join(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return x + self.encode(positions, lengths).to(x.dtype)


class Concatenated(Position):
    """Any encoding, set beside the embeddings instead of added to them."""

    def __init__(self, encoding: Position) -> None:
        super().__init__()
        self.encoding = encoding
        self.limit = encoding.limit

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.encoding.encode(positions, lengths)

    def join(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        code = self.encode(positions, lengths).to(x.dtype)
        return torch.cat((x, code.expand(*x.shape[:-1], -1)), dim=-1)


class Sinusoidal(Added):
    """sin and cos of p / 10000^(2i/width), i from 0 (Vaswani et al. 2017, §3.5).

    `interleaved` alternates sine and cosine as the paper does; `halves` puts all sines first, as Marian does. Some
    lecture notes number the pairs from 1: then every frequency is lower by a factor 10000^(2/width) and the code of
    one position no longer matches the paper's.
    """

    def __init__(self, features: int, base: float = 10_000.0, layout: str = "interleaved") -> None:
        super().__init__()
        self.features, self.layout = features, layout
        self.frequencies = Frequencies([base ** (-pair / features) for pair in range(0, features, 2)])

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        angles = positions[..., None].to(torch.float32) * self.frequencies.values  # (…, positions, pairs)
        sine, cosine = angles.sin(), angles.cos()
        if self.layout == "halves":
            return torch.cat((sine, cosine), dim=-1)[..., : self.features]
        return torch.stack((sine, cosine), dim=-1).flatten(-2)[..., : self.features]


class Learned(Added):
    """A trained vector for each of the first `limit` positions; there is none for the next."""

    def __init__(self, features: int, limit: int, dice: torch.Generator | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.table = nn.Parameter(torch.randn(limit, features, generator=dice) * 0.02)  # (limit, features)

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is not None:  # padding needs no position of its own: it stands with the last real token
            positions = torch.minimum(positions, (lengths[:, None] - 1).clamp(min=0))
        try:
            return nn.functional.embedding(positions, self.table)
        except IndexError:
            raise UserError(
                f"There are learned positions for {self.limit} tokens and {int(positions.max()) + 1} are needed; "
                "shorten the text, or train with a larger position.limit."
            ) from None


class Index(Added):
    """The number of the word, from 1: grows without bound."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return (positions[..., None] + 1).to(torch.float32).expand(*positions.shape, self.features)


class Normalised(Added):
    """The number of the word over the number of words: bounded, but a step has another size in every sentence."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            length: Tensor | int = positions.shape[-1]
        else:
            length = lengths[:, None]  # (rows, 1)
        place = (positions + 1).to(torch.float32) / length
        return place[..., None].expand(*place.shape, self.features)


class Binary(Added):
    """The position's lowest bits, highest first: bounded, and repeats every 2^features positions."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def encode(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        # Positions fit 63 bits; any higher feature is 0.
        bits = torch.arange(self.features - 1, -1, -1, device=positions.device)
        return ((positions[..., None] >> bits.clamp(max=62)) & (bits < 63)).to(torch.float32)
