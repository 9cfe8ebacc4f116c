"""Tensors with a place for each slot: some left out, some replaced, some added.

What is written has room for some tokens, and for twice as many once those are there: a limit may be far beyond what an
output ever needs. Where two differ in their room, the smaller one gets zeros behind it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

ROOM = 64
"""Tokens there is room for at first."""


def grow_slots(owner: Any, names: Sequence[str], dimension: int) -> None:
    """Twice the room in a dimension."""
    for name in names:
        setattr(owner, name, _doubled(getattr(owner, name), dimension))


def _doubled(value: Any, dimension: int) -> Any:
    if not isinstance(value, Tensor):
        return value._make(_doubled(each, dimension) if each.dim() > dimension else each for each in value)
    shape = [size * 2 if number == dimension else size for number, size in enumerate(value.shape)]
    return _grown(value, shape)


def tensors_of(owner: Any, names: Sequence[str]) -> list[Tensor]:
    """The owner's tensors of these names, one after another."""
    values = (getattr(owner, name) for name in names)
    return [tensor for value in values for tensor in ([value] if isinstance(value, Tensor) else value)]


def set_tensors(owner: Any, names: Sequence[str], tensors: Iterator[Tensor]) -> None:
    """Let the owner have these tensors under these names, as many as there are places."""
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, Tensor):
            setattr(owner, name, next(tensors))
        else:
            setattr(owner, name, value._make(next(tensors) for _ in value))


def keep_slots(owner: Any, names: Sequence[str], slots: Tensor) -> None:
    """Let the owner's tensors of these names have these slots only."""
    for name in names:
        value = getattr(owner, name)
        setattr(owner, name, value[slots] if isinstance(value, Tensor) else value._make(each[slots] for each in value))


def put_slots(owner: Any, names: Sequence[str], slots: Tensor, other: Any) -> None:
    """Let these slots of the owner's tensors be those of another's; slots past the last are added."""
    for name in names:
        mine, theirs = getattr(owner, name), getattr(other, name)
        if isinstance(mine, Tensor):
            setattr(owner, name, _put(mine, slots, theirs))
        else:
            both = zip(mine, theirs, strict=True)
            setattr(owner, name, mine._make(_put(old, slots, new) for old, new in both))


def _put(mine: Tensor, slots: Tensor, theirs: Tensor) -> Tensor:
    shape = [max(sizes) for sizes in zip(mine.shape[1:], theirs.shape[1:], strict=True)]
    count = max(mine.shape[0], int(slots.max()) + 1)
    grown = _grown(mine, (count, *shape)).clone()
    grown[slots] = _grown(theirs, (theirs.shape[0], *shape))
    return grown


def _grown(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    missing = [wanted - size for size, wanted in zip(tensor.shape, shape, strict=True)]
    return pad(tensor, [amount for each in reversed(missing) for amount in (0, each)]) if any(missing) else tensor
