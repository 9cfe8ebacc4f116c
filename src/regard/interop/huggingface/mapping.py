"""The way of weights from one naming to another, as data.

A family of models is described by rules: this tensor of theirs is that tensor of ours (or those), after a change of
layout. A rule is read in both directions: `bring` makes ours from theirs, `send` theirs from ours. Importing already
uses both: what shape a tensor of theirs must have is what `send` makes of the shape that ours has.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, EncoderDecoderConfig, LanguageModelConfig, StackConfig

_FINE = ".correction"
"""How names end of what may be finer than the rest of a model."""


class Change:
    """How a tensor changes on its way in (`bring`) and out (`send`). This one does not change it."""

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        return (theirs,)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0]


class Transposed(Change):
    """They store (in, out), as GPT-2's "Conv1D" does; a linear layer stores (out, in)."""

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        return (theirs.t().contiguous(),)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].t().contiguous()


@dataclass(frozen=True)
class Joined(Change):
    """They store several tensors of equal size in one, side by side along the outputs."""

    parts: int
    transposed: bool = False

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        rows = theirs.t() if self.transposed else theirs
        # Copies: parts of one memory cannot be saved under several names.
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in rows.chunk(self.parts))

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        rows = torch.cat(tuple(ours))
        return rows.t().contiguous() if self.transposed else rows


@dataclass(frozen=True)
class Offset(Change):
    """Their table begins with rows that are never read; going out, those are zero."""

    rows: int

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        return (theirs[self.rows :].clone(),)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat((ours[0].new_zeros(self.rows, *ours[0].shape[1:]), ours[0]))


@dataclass(frozen=True)
class Row(Change):
    """They store a tensor as the only one of a larger: a vector as a matrix of one row."""

    times: int = 1

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        return (theirs[(0,) * self.times].clone(),)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0][(None,) * self.times]


@dataclass(frozen=True)
class Squares(Change):
    """They store the weights of a convolution, (out, channels, side, side); a product with whole patches has them as
    (out, channels · side · side).
    """

    channels: int
    side: int

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        return (theirs.flatten(1),)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].view(-1, self.channels, self.side, self.side)


@dataclass(frozen=True)
class Rule:
    """One tensor of theirs and what it is with us. `{encoder}` or `{decoder}` in a name stands for a layer's number."""

    theirs: str
    ours: tuple[str, ...]
    """Where it is empty there is nothing to bring: it is a tensor without numbers that their library asks for."""
    change: Change = field(default_factory=Change)
    each: int | None = None
    """Where given, theirs are so many tensors, and ours has them stacked. `{each}` in their name stands for which."""

    @property
    def names(self) -> list[str]:
        """The names that their files have."""
        return [self.theirs.replace("{each}", str(number)) for number in range(1 if self.each is None else self.each)]

    def send(self, ours: Sequence[Tensor]) -> dict[str, Tensor]:
        """Their tensors, made from ours, by their names."""
        sent = self.change.send(ours)
        return {self.theirs: sent} if self.each is None else dict(zip(self.names, sent.unbind(), strict=True))

    def bring(self, theirs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Our tensors, made from theirs, by our names."""
        whole = theirs[0] if self.each is None else torch.stack(tuple(theirs))
        return dict(zip(self.ours, self.change.bring(whole), strict=True))

    def at(self, stack: str, layer: int) -> "Rule":
        mark, number = f"{{{stack}}}", str(layer)
        ours = tuple(name.replace(mark, number) for name in self.ours)
        return replace(self, theirs=self.theirs.replace(mark, number), ours=ours)


def part(theirs: str, ours: str, weight: Change | None = None) -> tuple[Rule, Rule]:
    """The rules of a linear layer or a norm: its weight and its bias (left out where our model has none)."""
    return (
        Rule(f"{theirs}.weight", (f"{ours}.weight",), weight or Change()),
        Rule(f"{theirs}.bias", (f"{ours}.bias",)),
    )


def parts(*groups: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Groups of rules in one table."""
    return tuple(rule for group in groups for rule in group)


def stacks_of(config: AnyModelConfig) -> dict[str, StackConfig]:
    """The stacks of a model, by their names."""
    stacks = {}
    if isinstance(config, EncoderDecoderConfig | LanguageModelConfig):
        stacks["decoder"] = config.decoder
    if not isinstance(config, LanguageModelConfig):
        stacks["encoder"] = config.encoder
    return stacks


def for_layers(rules: Iterable[Rule], config: AnyModelConfig) -> list[Rule]:
    """The rules of a whole model: those of a layer repeated for each one the config has."""
    stacks = {name: stack.layers for name, stack in stacks_of(config).items()}
    every = []
    for rule in rules:
        stack = next((name for name in stacks if f"{{{name}}}" in rule.theirs), None)
        every += [rule] if stack is None else [rule.at(stack, layer) for layer in range(stacks[stack])]
    return every


def bring_over(rules: Iterable[Rule], weights: Weights, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All the tensors of our model, made from theirs. Every tensor on either side must have found its other half.

    `wanted` has our model's names and shapes. Rules for what it does not have (a bias, an untied output) are left out.
    """
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    for rule in rules:
        if not rule.ours or rule.ours[0] not in wanted:
            continue
        expected = rule.send([torch.empty_like(wanted[name], device="meta") for name in rule.ours])
        theirs = [_of_shape(weights, name, tensor.shape) for name, tensor in expected.items()]
        ours |= rule.bring(theirs)
        used |= expected.keys()
    unknown = sorted(set(weights.names) - used)
    if unknown:
        raise UserError(
            f"{weights.place(unknown[0])} holds the tensor {weights.spell(unknown[0])}, which has no place in the "
            "model that config.json describes; import the unchanged model, or the config.json that belongs to it."
        )
    return _of_one_type(ours)


def _of_shape(weights: Weights, name: str, shape: torch.Size) -> Tensor:
    found = weights.tensor(name)
    if found.shape != shape:
        raise UserError(
            f"{weights.place(name)}: {weights.spell(name)} has the shape {tuple(found.shape)}, "
            f"but config.json calls for {tuple(shape)}; one of the two files is not this model's."
        )
    return found


def _of_one_type(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model is of one type of number; a mixed file is widened, so that nothing is rounded.

    By what experts are chosen is finer than the rest in every file, and stays so without widening the rest.
    """
    kinds = [tensor.dtype for name, tensor in tensors.items() if not name.endswith(_FINE)]
    kind = reduce(torch.promote_types, kinds)
    return {name: tensor if name.endswith(_FINE) else tensor.to(kind) for name, tensor in tensors.items()}
