"""What a variation changes: the settings of a recipe, and the overrides that change them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

Factor = int | Fraction
STACKS = ("encoder", "decoder")

Direction = Literal["higher", "lower", "same"]
"""Where a number goes against the base; "same": no difference."""


class NotApplicableError(Exception):
    """This recipe has nothing that the variation could change; the message is the end of "skipped, because …"."""


@dataclass(frozen=True)
class Settings:
    """The settings of a recipe, with every default filled in."""

    values: Mapping[str, Any]
    short_words: int | None = None
    """The words of a short sentence: training on at most so many leaves sentences twice as long to test on."""

    @property
    def model(self) -> Mapping[str, Any]:
        return self.values["model"]  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        return int(self.model["width"])

    @property
    def is_translation(self) -> bool:
        return bool(self.values["task"] == "translation")

    def stacks(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The name of each stack of layers, as part of a key, and its settings."""
        return ((f"model.{name}", self.model[name]) for name in STACKS if name in self.model)

    def attention(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The key of each stack's attention, and its settings; multi-head attention only."""
        for key, stack in self.stacks():
            if stack["attention"]["kind"] != "multi_head":
                raise NotApplicableError(f"{key}.attention is of kind {stack['attention']['kind']!r}, not multi_head")
            yield f"{key}.attention", stack["attention"]

    def max_positions(self) -> int:
        """The number of positions that a model with learned ones needs."""
        data = self.values["data"]
        if not self.is_translation:
            return int(data["context_length"])
        # Both sides have their end token within max_length; a language model reads them as one sequence.
        return int(data["max_length"]) * (1 if "encoder" in self.model else 2) + 2

    def position(self, kind: str) -> dict[str, Any]:
        """The settings of another scheme of positions."""
        return {"kind": kind} | ({"max_length": self.max_positions()} if kind == "learned" else {})


@dataclass(frozen=True)
class Change:
    """What a variation changes in a recipe."""

    overrides: dict[str, Any]
    setting: str
    """The changed setting as the table shows it, such as "h = 2, d_k = 128"."""
    notes: list[str] = field(default_factory=list)
    """What else had to change, or differs from the paper: sentences."""
    expects: Mapping[str, Direction] = field(default_factory=dict)
    """What is expected of the change in this recipe, where that is not known before (see `Variation.expects`)."""


ChangeFunction = Callable[[Settings], Change]
