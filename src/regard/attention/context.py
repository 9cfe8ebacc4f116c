"""The context of a forward pass: the positions of its tokens, their padding and their masks.

Layers request masks and rotations from the context instead of passing them through their signatures. Each is computed
once: all layers with the same pattern share a mask, all with the same rotary scheme share a rotation.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard.attention.kv_cache import KVCache
from regard.attention.mask import Mask
from regard.attention.pattern import Full, Pattern
from regard.attention.patterns import Documents, document_starts
from regard.attention.positions.rotary import Rotary, Rotation
from regard.errors import UserError

AttentionHook = Callable[[nn.Module, Tensor], None]
"""Called by each attention module with itself and its attention weights.  # (batch, heads, query, key)"""


@runtime_checkable
class AttentionInputsHook(Protocol):
    """An attention hook that also receives the inputs of attention."""

    def __call__(self, module: nn.Module, weights: Tensor) -> None: ...

    def on_inputs(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> None:
        """Called before `__call__` with the inputs of `attend`.

        query: # (batch, heads, queries, head_dim); key, value: # (batch, kv_heads, keys, head_dim)
        """
        ...


class Lengths(Pattern):
    """Padding mask: row r has `lengths[r]` keys, the rest is padding.  lengths: # (rows,)"""

    def __init__(self, lengths: Tensor) -> None:
        if lengths.dim() != 1 or lengths.dtype.is_floating_point:
            raise UserError(
                "lengths needs one integer per row: expected the shape (rows,), "
                f"found {tuple(lengths.shape)} of {lengths.dtype}."
            )
        self.lengths = lengths

    @property
    def same_for_all_rows(self) -> bool:
        return False

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        if self.lengths.shape[0] != rows:
            raise UserError(f"lengths has the shape {tuple(self.lengths.shape)}; {rows} rows need one length each.")

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key < self.lengths[row]


class Context:
    """A forward pass over tokens of shape (rows, queries).

    `start` is the position of the first token (one number, or one per row when rows of different lengths are decoded)
    and `extent` the number of keys; `lengths` are the rows' lengths without padding, tokens before `start` included;
    `documents` are the document ids of packed rows (see `Documents`). `memory` is the pattern of cross-attention. With
    an `attention_hook`, every attention module uses the reference backend and reports its weights.
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
        attention_hook: AttentionHook | None = None,
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
        self.attention_hook = attention_hook
        self.positions = self._positions()  # (queries,), or (rows, queries) positions rows differ
        self._self_masks: dict[Pattern, Mask] = {}
        self._buffer_masks: dict[tuple[Pattern, int], Mask] = {}
        self._cross_mask: Mask | None = None
        self._rotations: dict[Rotary, Rotation] = {}

    @classmethod
    def after(
        cls,
        cache: KVCache,
        tokens: Tensor,
        counts: Tensor | None = None,
        memory: Pattern | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> "Context":
        """The context of new tokens after those in a cache; row r has `counts[r]` of them, the rest is padding."""
        _check_tokens(tokens)
        if tokens.shape[0] != cache.rows:
            raise UserError(f"The cache has {cache.rows} rows, but the tokens have {tokens.shape[0]}.")
        _check_shape("counts", counts, (cache.rows,))
        lengths = None if counts is None else cache.lengths + counts
        extent = cache.extent_after(tokens.shape[1])
        return cls(
            tokens, start=cache.start, extent=extent, lengths=lengths, memory=memory, attention_hook=attention_hook
        )

    def self_mask(self, pattern: Pattern) -> Mask:
        """The self-attention mask of a pattern: within documents, without padding."""
        if pattern not in self._self_masks:
            visible = pattern if self.documents is None else Documents(self.documents, pattern)
            if self.lengths is not None and not visible.causal:
                visible = visible & Lengths(
                    self.lengths
                )  # under a causal pattern, padding comes after every token anyway
            self._self_masks[pattern] = Mask(visible, self.queries, self.extent, self.rows, self.start, self.device)
        return self._self_masks[pattern]

    def buffer_mask(self, pattern: Pattern, capacity: int, key_positions: Callable[["Context"], Tensor]) -> Mask:
        """The mask of self-attention over a rolling buffer with keys out of order; layers of one capacity share it."""
        if (pattern, capacity) not in self._buffer_masks:
            positions = key_positions(self)
            self._buffer_masks[pattern, capacity] = Mask(
                pattern, self.queries, positions.shape[1], self.rows, self.start, self.device, positions
            )
        return self._buffer_masks[pattern, capacity]

    def cross_mask(self, sources: int, keys: int) -> Mask:
        """The cross-attention mask over `keys` encoder positions; rows with the same source are adjacent."""
        if self._cross_mask is None:
            queries = self.queries * self.rows // sources
            self._cross_mask = Mask(self.memory, queries, keys, sources, 0, self.device)
        return self._cross_mask

    def rotation(self, rotary: Rotary) -> Rotation:
        """The rotation of this pass's tokens."""
        if rotary not in self._rotations:
            self._rotations[rotary] = rotary.rotation(self.positions, self._sequence_length(rotary))
        return self._rotations[rotary]

    def cache_rotation(self, rotary: Rotary) -> Rotation:
        """The rotation of all cached tokens, for a scaling that changes rotations as the sequence grows."""
        return rotary.rotation(torch.arange(self.extent, device=self.device), self._sequence_length(rotary))

    def _positions(self) -> Tensor:
        offset = torch.arange(self.queries, device=self.device)
        if self.documents is not None:
            return offset - document_starts(self.documents)
        return self.start[:, None] + offset if isinstance(self.start, Tensor) else offset + self.start

    def _sequence_length(self, rotary: Rotary) -> int | Tensor:
        """The length of the sequence, tokens of this pass included."""
        if self.documents is not None and not rotary.is_static:
            raise UserError(
                "Packed documents cannot be combined with a RoPE scaling that depends on the sequence length; "
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
            f"{name} must contain integers of shape {shape}; found {tuple(tensor.shape)} of {tensor.dtype}."
        )
