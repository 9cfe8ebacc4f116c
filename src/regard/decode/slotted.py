"""What choosers have in common that keep everything in tensors with a place for each slot."""

import copy
from collections.abc import Hashable, Sequence
from typing import Any, Self

from torch import Tensor

from regard.decode.rules import Rule, put_rules
from regard.decode.search import Chooser, Hypothesis
from regard.decode.slots import grow_slots, keep_slots, put_slots, set_tensors, tensors_of


class Slotted(Chooser):
    """A chooser whose tensors are named in `fields`; those in `texts` have a dimension for tokens, `dimension`."""

    fields: tuple[str, ...]
    texts: tuple[str, ...]
    dimension: int
    limits: Tensor  # (slots,)
    lengths: Tensor  # (slots,)
    end: int
    count: int
    """How many alternatives of each token are noted."""
    rules: Sequence[Rule] = ()
    reach = 0

    @property
    def longest(self) -> int:
        return int(self.limits.max())

    def keep(self, slots: Tensor) -> None:
        self.slots = slots.shape[0]
        keep_slots(self, self.fields, slots)
        for rule in self.rules:
            rule.keep(slots)

    def put(self, slots: Tensor, other: Self) -> None:
        put_slots(self, self.fields, slots, other)
        put_rules(self.rules, other.rules, slots)
        self.slots, self.reach = self.limits.shape[0], int(self.lengths.max())

    def clear(self, slots: Tensor) -> None:
        self.lengths[slots] = 0

    @property
    def room(self) -> int:
        """How many tokens can be written before more room is needed."""
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        return self.reach == self.room

    def grow(self) -> None:
        grow_slots(self, self.texts, self.dimension)

    def held(self) -> list[Tensor]:
        rules = [tensor for rule in self.rules for tensor in tensors_of(rule, rule.fields)]
        return [*tensors_of(self, self.fields), *rules]

    def hold(self, tensors: Sequence[Tensor]) -> None:
        left = iter(tensors)
        set_tensors(self, self.fields, left)
        for rule in self.rules:
            set_tensors(rule, rule.fields, left)

    def all_results(self) -> list[list[Hypothesis]]:
        """What was found for every slot, best first. Waits for the device once."""
        found = self.copied()
        found.hold([tensor.cpu() for tensor in self.held()])
        return [found.results(slot) for slot in range(self.slots)]

    def copied(self) -> Self:
        other = copy.copy(self)
        other.rules = [copy.copy(rule) for rule in self.rules]
        return other

    def recorded_as(self) -> Hashable | None:
        return type(self), self.end, self.count, self.watched, *self.settings(), *(rule.key for rule in self.rules)

    def settings(self) -> tuple[Any, ...]:
        """What else a step depends on that stands in no tensor."""
        return ()
