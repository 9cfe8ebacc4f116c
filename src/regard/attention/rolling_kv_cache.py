"""A rolling KV cache: a buffer of the size of the sliding window, whatever the length of the sequence.

A layer whose pattern bounds how far back it attends (`Pattern.lookback`) needs the keys and values of the last `window`
positions and of the first `sink_tokens` only. The sink tokens have their own slots, all others share the rest: position
p is in slot sink_tokens + (p − sink_tokens) mod window, and replaces the one that has just left the window. Until the
slots are full, slot p holds position p, so memory is allocated as it is needed.

A chunk of several tokens still needs what its own tokens replace: it attends to the old contents concatenated with
itself, and is written afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention.kv_cache import KeyValue, KVBuffer
from regard.attention.mask import Mask
from regard.attention.pattern import Lookback, Pattern
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.attention.context import Context


class RollingKVBuffer(KVBuffer):
    """The self-attention keys and values of one layer within its window."""

    def __init__(self, capacity: int, lookback: Lookback) -> None:
        self.lookback = lookback
        super().__init__(min(capacity, sum(lookback)))

    def append(self, key: Tensor, value: Tensor, context: Context) -> KeyValue:
        if self.tensors is None:
            self.tensors = (self._allocate(key), self._allocate(value))
        if context.queries == 1:
            self._write((key, value), context)
            return self.tensors
        visible = (key, value)
        if not _is_first(context):
            visible = (torch.cat((self.tensors[0], key), dim=2), torch.cat((self.tensors[1], value), dim=2))
        self._write((key, value), context)
        return visible

    def mask(self, context: Context, pattern: Pattern) -> Mask:
        if context.queries > 1 and _is_first(context):
            return context.self_mask(pattern)
        return context.buffer_mask(pattern, self.capacity, self._key_positions)

    def grow(self, capacity: int) -> None:
        super().grow(min(max(capacity, self.capacity), sum(self.lookback)))

    def check_truncate(self, extent: int, lengths: int | Tensor) -> None:
        if extent > sum(self.lookback) and not (isinstance(lengths, int) and lengths >= extent):
            raise UserError(
                f"The cache cannot be truncated: of {extent} positions, those before the window of "
                f"{self.lookback.window} are no longer stored."
            )

    def _key_positions(self, context: Context) -> Tensor:
        """The position in each slot, then of each new token of a chunk; -1 if unused.  # (rows or 1, keys)"""
        start = context.start if isinstance(context.start, Tensor) else torch.tensor([context.start])
        start = start.to(context.device)[:, None]
        if context.queries == 1:
            return self._slot_positions(start + 1)
        new = start + torch.arange(context.queries, device=context.device)
        return torch.cat((self._slot_positions(start), new), dim=1)

    def _slot_positions(self, lengths: Tensor) -> Tensor:
        """The position in each slot of rows of these lengths.  lengths: # (rows, 1); (rows, slots)"""
        window, sink_tokens = self.lookback
        slot = torch.arange(self.capacity, device=lengths.device)
        offset = (lengths - 1 - slot).clamp(min=0) // window * window
        position = torch.where(slot < sink_tokens, slot, slot + offset)
        return torch.where(position < lengths, position, -1)

    def _write(self, new: KeyValue, context: Context) -> None:
        """Write the new tokens, without padding, to their slots."""
        assert self.tensors is not None
        start, count = context.start, context.queries
        if count == 1 and context.lengths is None and isinstance(start, int):
            (slot,) = self._slots(torch.tensor([start])).tolist()
            for buffer, tensor in zip(self.tensors, new, strict=True):
                buffer[:, :, slot] = tensor[:, :, 0]
            return
        rows = torch.arange(context.rows, device=context.device)[:, None]
        position = torch.arange(count, device=context.device) + (start[:, None] if isinstance(start, Tensor) else start)
        position = position.expand(context.rows, count)
        slots = self._slots(position)
        if count == 1 and context.lengths is None:  # without padding there is no need to synchronize
            for buffer, tensor in zip(self.tensors, new, strict=True):
                buffer[rows, :, slots] = tensor.transpose(1, 2)
            return
        end = position[:, -1:] + 1 if context.lengths is None else context.lengths[:, None]
        # Of tokens that share a slot, only the last one that is not padding is written.
        written = (position < end) & ((position < self.lookback.sink_tokens) | (position >= end - self.lookback.window))
        chosen, slots = rows.expand_as(position)[written], slots[written]
        for buffer, tensor in zip(self.tensors, new, strict=True):
            buffer[chosen, :, slots] = tensor.transpose(1, 2)[written]

    def _slots(self, position: Tensor) -> Tensor:
        window, sink_tokens = self.lookback
        return torch.where(position < sink_tokens, position, sink_tokens + (position - sink_tokens) % window)


def _is_first(context: Context) -> bool:
    """Whether a pass starts at position 0 in every row, so that the buffer is empty."""
    return isinstance(context.start, int) and context.start == 0
