"""Room for what a window lets a layer see, whatever the length of the text.

A layer whose pattern bounds how far back it looks (`Pattern.horizon`) needs the keys and values of the last `window`
positions and of the first `kept` only. The first `kept` positions have slots of their own, all others take turns in the
rest: position p stands in slot kept + (p − kept) mod window, and takes the place of the one that has just left the
window. Until the slots are full, slot p holds position p, so room is taken as it is needed.

A chunk of several tokens still needs what its own tokens push out: it looks at what was there and at itself side by
side, and is written behind that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention.cache import KeyValue, Store
from regard.attention.pattern import Horizon, Pattern
from regard.attention.scope import Scope
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.attention.context import Context


class RingStore(Store):
    """One layer's own keys and values, as far as its window reaches."""

    def __init__(self, capacity: int, horizon: Horizon) -> None:
        self.horizon = horizon
        super().__init__(min(capacity, sum(horizon)))

    def append(self, key: Tensor, value: Tensor, context: Context) -> KeyValue:
        if self.tensors is None:
            self.tensors = (self._room(key), self._room(value))
        if context.queries == 1:
            self._write((key, value), context)
            return self.tensors
        seen = (key, value)
        if not _is_first(context):
            seen = (torch.cat((self.tensors[0], key), dim=2), torch.cat((self.tensors[1], value), dim=2))
        self._write((key, value), context)
        return seen

    def scope(self, context: Context, pattern: Pattern) -> Scope:
        if context.queries > 1 and _is_first(context):
            return context.own(pattern)
        return context.over(pattern, self.capacity, self._places)

    def grow(self, capacity: int) -> None:
        super().grow(min(max(capacity, self.capacity), sum(self.horizon)))

    def check_rewound(self, extent: int, lengths: int | Tensor) -> None:
        if extent > sum(self.horizon) and not (isinstance(lengths, int) and lengths >= extent):
            raise UserError(
                f"The cache cannot be rewound: of {extent} positions a window of {self.horizon.window} has let go of "
                "what would be seen again."
            )

    def _places(self, context: Context) -> Tensor:
        """The position in each slot, and behind that of each new token of a chunk; -1 for none.  # (rows or 1, keys)"""
        start = context.start if isinstance(context.start, Tensor) else torch.tensor([context.start])
        start = start.to(context.device)[:, None]
        if context.queries == 1:
            return self._held(start + 1)
        new = start + torch.arange(context.queries, device=context.device)
        return torch.cat((self._held(start), new), dim=1)

    def _held(self, lengths: Tensor) -> Tensor:
        """The position in each slot of rows of these lengths.  lengths: # (rows, 1); gives (rows, slots)"""
        window, kept = self.horizon
        slot = torch.arange(self.capacity, device=lengths.device)
        turn = (lengths - 1 - slot).clamp(min=0) // window * window
        held = torch.where(slot < kept, slot, slot + turn)
        return torch.where(held < lengths, held, -1)

    def _write(self, new: KeyValue, context: Context) -> None:
        """The last new tokens that are real go to their slots."""
        assert self.tensors is not None
        start, count = context.start, context.queries
        if count == 1 and context.lengths is None and isinstance(start, int):
            (slot,) = self._slots(torch.tensor([start])).tolist()
            for mine, tensor in zip(self.tensors, new, strict=True):
                mine[:, :, slot] = tensor[:, :, 0]
            return
        rows = torch.arange(context.rows, device=context.device)[:, None]
        place = torch.arange(count, device=context.device) + (start[:, None] if isinstance(start, Tensor) else start)
        place = place.expand(context.rows, count)
        slots = self._slots(place)
        if count == 1 and context.lengths is None:  # no need to ask the device which are real
            for mine, tensor in zip(self.tensors, new, strict=True):
                mine[rows, :, slots] = tensor.transpose(1, 2)
            return
        end = place[:, -1:] + 1 if context.lengths is None else context.lengths[:, None]
        # Of tokens that share a slot the last real one stays.
        stays = (place < end) & ((place < self.horizon.kept) | (place >= end - self.horizon.window))
        chosen, slots = rows.expand_as(place)[stays], slots[stays]
        for mine, tensor in zip(self.tensors, new, strict=True):
            mine[chosen, :, slots] = tensor.transpose(1, 2)[stays]

    def _slots(self, place: Tensor) -> Tensor:
        window, kept = self.horizon
        return torch.where(place < kept, place, kept + (place - kept) % window)


def _is_first(context: Context) -> bool:
    """Whether a pass begins the text in every row, so that nothing was there before."""
    return isinstance(context.start, int) and context.start == 0
