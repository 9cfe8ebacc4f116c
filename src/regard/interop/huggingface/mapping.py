"""The mapping of weights between Hugging Face and regard, as data.

An architecture is described by rules: a Hugging Face tensor is one or several of ours, after a transform of its layout.
A rule works in both directions: `from_hf` makes ours from theirs, `to_hf` theirs from ours. Importing uses both: the
shape expected of a file's tensor is what `to_hf` makes of our shape.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, EncoderDecoderConfig, LanguageModelConfig, SequenceConfig, StackConfig


class Transform:
    """How the layout of a tensor changes on import (`from_hf`) and export (`to_hf`). This one leaves it as it is."""

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        return (hf,)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0]


class Transpose(Transform):
    """Hugging Face stores (in, out), as GPT-2's Conv1D does; a linear layer stores (out, in)."""

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        return (hf.t().contiguous(),)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].t().contiguous()


@dataclass(frozen=True)
class Concatenated(Transform):
    """Hugging Face stores several tensors of equal size as one, concatenated along the outputs."""

    count: int
    transposed: bool = False

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        rows = hf.t() if self.transposed else hf
        # Clones: safetensors does not save several names that share storage.
        return tuple(chunk.clone(memory_format=torch.contiguous_format) for chunk in rows.chunk(self.count))

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        rows = torch.cat(tuple(ours))
        return rows.t().contiguous() if self.transposed else rows


@dataclass(frozen=True)
class SkipRows(Transform):
    """The Hugging Face table begins with rows that are never read; exported, they are zero."""

    rows: int

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        return (hf[self.rows :].clone(),)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat((ours[0].new_zeros(self.rows, *ours[0].shape[1:]), ours[0]))


@dataclass(frozen=True)
class Unsqueeze(Transform):
    """Hugging Face stores the tensor with leading dimensions of size 1: a vector as a matrix of one row."""

    times: int = 1

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        return (hf[(0,) * self.times].clone(),)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0][(None,) * self.times]


@dataclass(frozen=True)
class ConvPatches(Transform):
    """Hugging Face stores the weights of a convolution, (out, channels, side, side); our linear patch embedding has
    (out, channels · side · side).
    """

    channels: int
    side: int

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        return (hf.flatten(1),)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].view(-1, self.channels, self.side, self.side)


@dataclass(frozen=True)
class Rule:
    """One Hugging Face tensor and what it is here. `{encoder}` or `{decoder}` in a name stands for a layer's number."""

    hf: str
    ours: tuple[str, ...]
    """Empty for a tensor that is not imported: one without elements that transformers expects to find."""
    transform: Transform = field(default_factory=Transform)
    each: int | None = None
    """If given, Hugging Face has so many tensors where ours stacks them. `{each}` in the name stands for the index."""
    keep_dtype: bool = False
    """Whether it keeps its dtype, which may be finer than that of the rest of the model."""

    @property
    def names(self) -> list[str]:
        """The names in Hugging Face files."""
        return [self.hf.replace("{each}", str(number)) for number in range(1 if self.each is None else self.each)]

    def to_hf(self, ours: Sequence[Tensor]) -> dict[str, Tensor]:
        """Hugging Face tensors from ours, by name."""
        tensor = self.transform.to_hf(ours)
        return {self.hf: tensor} if self.each is None else dict(zip(self.names, tensor.unbind(), strict=True))

    def from_hf(self, hf: Sequence[Tensor]) -> dict[str, Tensor]:
        """Our tensors from Hugging Face ones, by name."""
        tensor = hf[0] if self.each is None else torch.stack(tuple(hf))
        return dict(zip(self.ours, self.transform.from_hf(tensor), strict=True))

    def at(self, stack: str, layer: int) -> "Rule":
        mark, number = f"{{{stack}}}", str(layer)
        ours = tuple(name.replace(mark, number) for name in self.ours)
        return replace(self, hf=self.hf.replace(mark, number), ours=ours)


def module_rules(hf: str, ours: str, weight: Transform | None = None) -> tuple[Rule, Rule]:
    """The rules of a linear layer or a norm: its weight and its bias (ignored where our model has none)."""
    return (
        Rule(f"{hf}.weight", (f"{ours}.weight",), weight or Transform()),
        Rule(f"{hf}.bias", (f"{ours}.bias",)),
    )


def join_rules(*groups: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Several groups of rules as one."""
    return tuple(rule for group in groups for rule in group)


def stack_configs(config: AnyModelConfig) -> dict[str, StackConfig]:
    """The stacks of a model by name."""
    stacks = {}
    if isinstance(config, EncoderDecoderConfig | LanguageModelConfig):
        stacks["decoder"] = config.decoder
    if not isinstance(config, LanguageModelConfig | SequenceConfig):
        stacks["encoder"] = config.encoder
    return stacks


def expand_layers(rules: Iterable[Rule], config: AnyModelConfig) -> list[Rule]:
    """The rules of a whole model: those of a layer repeated for every layer of the config."""
    stacks = {name: stack.layers for name, stack in stack_configs(config).items()}
    every = []
    for rule in rules:
        stack = next((name for name in stacks if f"{{{name}}}" in rule.hf), None)
        every += [rule] if stack is None else [rule.at(stack, layer) for layer in range(stacks[stack])]
    return every


def convert_weights(
    rules: Iterable[Rule], weights: Weights, expected_tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """All tensors of our model, converted from Hugging Face. Every tensor on either side must have its counterpart.

    `expected_tensors` has our model's names and shapes. Rules for what it lacks (a bias, an untied output) are ignored.
    """
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    own_dtype: set[str] = set()
    for rule in rules:
        if not rule.ours or rule.ours[0] not in expected_tensors:
            continue
        expected = rule.to_hf([torch.empty_like(expected_tensors[name], device="meta") for name in rule.ours])
        hf = [_checked(weights, name, tensor.shape) for name, tensor in expected.items()]
        ours |= rule.from_hf(hf)
        used |= expected.keys()
        own_dtype |= set(rule.ours) if rule.keep_dtype else set()
    unknown = sorted(set(weights.names) - used)
    if unknown:
        raise UserError(
            f"{weights.file_of(unknown[0])} holds the tensor {weights.original_name(unknown[0])}, which has no "
            "counterpart in the model that config.json describes; import the unchanged model, or the config.json that "
            "belongs to it."
        )
    return _promoted(ours, own_dtype)


def _checked(weights: Weights, name: str, shape: torch.Size) -> Tensor:
    found = weights.tensor(name)
    if found.shape != shape:
        raise UserError(
            f"{weights.file_of(name)}: {weights.original_name(name)} has the shape {tuple(found.shape)}, "
            f"but config.json calls for {tuple(shape)}; one of the two files is not this model's."
        )
    return found


def _promoted(tensors: dict[str, Tensor], own_dtype: set[str]) -> dict[str, Tensor]:
    """A model has one dtype; the tensors of a mixed file are promoted, so that nothing is rounded.

    Those in `own_dtype` (the experts' bias) keep theirs without promoting the rest.
    """
    dtypes = [tensor.dtype for name, tensor in tensors.items() if name not in own_dtype]
    dtype = reduce(torch.promote_types, dtypes)
    return {name: tensor if name in own_dtype else tensor.to(dtype) for name, tensor in tensors.items()}
