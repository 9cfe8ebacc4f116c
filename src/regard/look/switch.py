"""Switching heads off.

What a head has found is handed to the output projection, side by side with what the others have found. A head that is
switched off hands over zeros there, or the same vector at every word: its mean over the words of a text. The model
itself is not changed: while the block runs, what enters the output projection is, and only in the model as it is, not
in the fast forms that were made of it.

The mean is taken once, with all heads at work, and is then a constant. So a word written step by step and the same word
in a pass over the whole text are treated alike.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from regard.attention.heads import Attention
from regard.look.attentions import Place, attention_at, attentions_of
from regard.look.wire import Switched

Means = dict[Place, Tensor]
"""Of each attention what its heads hand over on average, side by side.  # (heads · value width,)"""


@contextmanager
def switched_off(model: nn.Module, heads: Sequence[Switched], means: Means | None = None) -> Iterator[None]:
    """While the block runs these heads are off. Those with `how="mean"` need the `means` that `mean_outputs` gives."""
    by_place: dict[Place, list[Switched]] = {}
    for one in heads:
        attention_at(model, one.side, one.layer, one.head)
        by_place.setdefault((one.side, one.layer), []).append(one)
    with ExitStack() as stack:
        for (side, layer), some in by_place.items():
            attention = attention_at(model, side, layer)
            mean = None if means is None else means.get((side, layer))
            hook = attention.output.register_forward_pre_hook(_replaces(attention, some, mean))
            stack.callback(hook.remove)
        yield


@contextmanager
def mean_outputs(model: nn.Module) -> Iterator[Means]:
    """What is filled when the block ends: the mean of all that heads handed over while it ran, rows of one length."""
    sums: dict[Place, tuple[Tensor, int]] = {}
    found: Means = {}

    def adds(place: Place) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def add(module: nn.Module, given: tuple[Any, ...]) -> None:
            mixed: Tensor = given[0].detach().flatten(0, 1).cpu().double()  # not every device has float64
            total, count = sums.get(place, (mixed.new_zeros(mixed.shape[1]), 0))
            sums[place] = (total + mixed.sum(dim=0), count + mixed.shape[0])

        return add

    with ExitStack() as stack:
        for side, layers in attentions_of(model).items():
            for layer, attention in enumerate(layers):
                stack.callback(attention.output.register_forward_pre_hook(adds((side, layer))).remove)
        yield found
    found.update({place: total / count for place, (total, count) in sums.items()})


def _replaces(
    attention: Attention, heads: Sequence[Switched], mean: Tensor | None
) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Tensor]]:
    width = attention.sizes.value_width

    def replace(module: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor]:
        mixed: Tensor = given[0].clone()
        for one in heads:
            columns = slice(one.head * width, (one.head + 1) * width)
            if one.how == "zero":
                mixed[..., columns] = 0
            else:
                assert mean is not None, "a mean was to stand for a head, and none was given"
                mixed[..., columns] = mean[columns].to(mixed)
        return (mixed,)

    return replace


def needs_means(heads: Sequence[Switched]) -> bool:
    return any(one.how == "mean" for one in heads)


def every_head(model: nn.Module) -> list[tuple[Place, int]]:
    """All heads there are, in the order they are computed."""
    return [
        ((side, layer), head)
        for side, layers in attentions_of(model).items()
        for layer, attention in enumerate(layers)
        for head in range(attention.heads)
    ]
