"""What one pass through a stack of layers shares: where its tokens stand and what they may see.

Layers ask the context instead of carrying masks and flags through their signatures. Whatever they ask for is made
once: all layers with the same pattern get the same mask, all with the same rotary scheme the same angles.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard.attention.cache import Cache
from regard.attention.pattern import Full, Pattern
from regard.attention.patterns import Documents, Lengths, document_starts
from regard.attention.rotary import Rotary, Rotation
from regard.attention.scope import Scope
from regard.errors import UserError

Watch = Callable[[nn.Module, Tensor], None]
"""Called by each attention with itself and its weights.  # (batch, heads, query, key)"""


@runtime_checkable
class Inside(Protocol):
    """A watch that wants to see more than weights: what was compared with what, and what was mixed."""

    def __call__(self, module: nn.Module, weights: Tensor) -> None: ...

    def inside(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> None:
        """Called before it with what attention was given.

        query: # (batch, heads, queries, width); key, value: # (batch, key heads, keys, width)
        """
        ...


class Context:
    """One pass over tokens of some shape (rows, queries).

    `start` is the position of the first token (one number, or one a row while decoding rows of different length) and
    `extent` the number of keys it can see at most; `lengths` says how many tokens of each row are real, those before
    `start` included; `documents` numbers the documents packed in each row (see `Documents`). `memory` says what
    cross-attention may see of the encoder. With a `watch`, every attention goes the readable way and shows its weights.
    """

    def __init__(
        self,
        tokens: Tensor,
        *,
        start: int | Tensor = 0,
        extent: int | None = None,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        memory: Pattern | None = None,
        watch: Watch | None = None,
    ) -> None:
        _check_tokens(tokens)
        self.rows, self.queries = tokens.shape
        self.device = tokens.device
        _check_shape("lengths", lengths, (self.rows,))
        _check_shape("documents", documents, (self.rows, self.queries))
        _check_shape("start", start if isinstance(start, Tensor) else None, (self.rows,))
        self.start, self.lengths, self.documents = start, lengths, documents
        self.extent = self.queries if extent is None else extent
        self.memory = Full() if memory is None else memory
        self.watch = watch
        self.positions = self._positions()  # (queries,), or (rows, queries) where rows differ
        self._own: dict[Pattern, Scope] = {}
        self._over: dict[tuple[Pattern, int], Scope] = {}
        self._other: Scope | None = None
        self._rotations: dict[Rotary, Rotation] = {}

    @classmethod
    def after(
        cls,
        cache: Cache,
        tokens: Tensor,
        counts: Tensor | None = None,
        memory: Pattern | None = None,
        watch: Watch | None = None,
    ) -> "Context":
        """The context of new tokens behind those in a cache; of row r's, the first `counts[r]` are real."""
        _check_tokens(tokens)
        if tokens.shape[0] != cache.rows:
            raise UserError(f"The cache holds {cache.rows} rows and {tokens.shape[0]} rows of tokens were given.")
        _check_shape("counts", counts, (cache.rows,))
        lengths = None if counts is None else cache.lengths + counts
        extent = cache.room_for(tokens.shape[1])
        return cls(tokens, start=cache.start, extent=extent, lengths=lengths, memory=memory, watch=watch)

    def own(self, pattern: Pattern) -> Scope:
        """What tokens may see of each other: through `pattern`, within their document, and no padding."""
        if pattern not in self._own:
            seen = pattern if self.documents is None else Documents(self.documents, pattern)
            if self.lengths is not None and not seen.causal:
                seen = seen & Lengths(self.lengths)  # where causal, padding lies behind every real token
            self._own[pattern] = Scope(seen, self.queries, self.extent, self.rows, self.start, self.device)
        return self._own[pattern]

    def over(self, pattern: Pattern, room: int, places: Callable[["Context"], Tensor]) -> Scope:
        """The same where keys stand at other places: in a buffer with `room` for some, all layers with one alike."""
        if (pattern, room) not in self._over:
            where = places(self)
            self._over[pattern, room] = Scope(
                pattern, self.queries, where.shape[1], self.rows, self.start, self.device, where
            )
        return self._over[pattern, room]

    def other(self, sources: int, keys: int) -> Scope:
        """What tokens may see of the encoder's `keys` positions; rows with the same source stand side by side."""
        if self._other is None:
            queries = self.queries * self.rows // sources
            self._other = Scope(self.memory, queries, keys, sources, 0, self.device)
        return self._other

    def rotation(self, rotary: Rotary) -> Rotation:
        """The angles of this pass's tokens."""
        if rotary not in self._rotations:
            self._rotations[rotary] = rotary.rotation(self.positions, self._reach(rotary))
        return self._rotations[rotary]

    def past_rotation(self, rotary: Rotary) -> Rotation:
        """The angles of everything seen so far, for a scheme whose angles change as the text grows."""
        return rotary.rotation(torch.arange(self.extent, device=self.device), self._reach(rotary))

    def _positions(self) -> Tensor:
        place = torch.arange(self.queries, device=self.device)
        if self.documents is not None:
            return place - document_starts(self.documents)
        return self.start[:, None] + place if isinstance(self.start, Tensor) else place + self.start

    def _reach(self, rotary: Rotary) -> int | Tensor:
        """How long the text is, tokens of this pass included."""
        if self.documents is not None and not rotary.fixed:
            raise UserError(
                "Packed documents cannot be combined with rotary scaling that depends on the length of the text; "
                "give each document its own row."
            )
        if self.lengths is not None:
            return self.lengths
        return self.start + self.queries


def _check_tokens(tokens: Tensor) -> None:
    if tokens.dim() != 2:
        raise UserError(f"Token ids must have the shape (rows, tokens); found {tuple(tokens.shape)}.")


def _check_shape(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is not None and (tensor.shape != shape or tensor.dtype.is_floating_point):
        raise UserError(
            f"{name} must hold whole numbers in the shape {shape}; found {tuple(tensor.shape)} of {tensor.dtype}."
        )
