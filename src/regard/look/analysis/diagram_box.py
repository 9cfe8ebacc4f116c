"""A box of the model diagram before it becomes a message: parameters are counted when the whole diagram is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from regard.look.analysis.attention_maps import AttentionKey
from regard.look.schema import AttentionRef, ModuleBox, Parameter


@dataclass
class Box:
    """A module, with the boxes inside it."""

    path: str
    label: str
    kind: Any
    shape: str
    description: str
    parameters: Sequence[tuple[str, nn.Parameter]] = ()
    children: Sequence["Box"] = field(default_factory=list)
    attention: AttentionKey | None = None
    position: Literal["added", "concatenated", "rotary"] | None = None

    def to_message(self, counted: set[int]) -> ModuleBox:
        """The box with its parameter count, without the parameters that were counted before."""
        new = [parameter for _, parameter in self.parameters if id(parameter) not in counted]
        counted.update(map(id, new))
        children = [child.to_message(counted) for child in self.children]
        key = self.attention
        return ModuleBox(
            path=self.path,
            label=self.label,
            kind=self.kind,
            parameters=[Parameter(name=name, shape=list(parameter.shape)) for name, parameter in self.parameters],
            parameter_count=sum(each.numel() for each in new) + sum(child.parameter_count for child in children),
            shape=self.shape,
            attention=None if key is None else AttentionRef(attention_type=key[0], layer=key[1]),
            position=self.position,
            description=self.description,
            children=children,
        )


def all_boxes(box: ModuleBox) -> Iterator[ModuleBox]:
    """A box and all boxes inside it, in the order of the diagram."""
    yield box
    for child in box.children:
        yield from all_boxes(child)
