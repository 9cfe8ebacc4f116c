"""The recipe: files of lines and an encoder–decoder."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from regard.config import Config
from regard.cost import Workload
from regard.data.source import DataSource, NonEmpty
from regard.model import EncoderDecoderConfig
from regard.task.base import SPECIAL_IDS, Recipe


class LinesConfig(DataSource):
    """A file of lines."""

    path: NonEmpty

    def lines(self) -> list[str]:
        (path,) = self.resolve(self.path)
        return path.read_text(encoding="utf-8").splitlines()


class ReversalDataConfig(Config):
    """The lines to train, validate and test on."""

    train: tuple[LinesConfig, ...] = Field(strict=False, min_length=1)
    valid: LinesConfig | None = None
    test: dict[str, LinesConfig] = Field(default_factory=dict)


@dataclass(frozen=True)
class ExactMatch:
    """How many lines are reversed without a mistake, in percent."""

    exact: float
    lines: int

    def __str__(self) -> str:
        return f"exact match {self.exact:.1f}"

    def rounded(self) -> dict[str, Any]:
        return asdict(self)


class ReversalRecipe(Recipe):
    """Everything a run depends on."""

    task: Literal["reversal"] = "reversal"
    data: ReversalDataConfig
    model: dict[str, Any] = Field(default_factory=dict)

    usage_example: ClassVar[str] = 'Reverse with it: `regard.load("THIS-FOLDER").reverse("abc")`'
    prepared_files: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    score_type: ClassVar[type[ExactMatch]] = ExactMatch
    model_keys_from_data: ClassVar[tuple[str, ...]] = ("vocab_size", "special_tokens")

    @property
    def expected_model_config(self) -> EncoderDecoderConfig:
        return self.make_model_config(30)

    def make_model_config(self, vocab_size: int) -> EncoderDecoderConfig:
        return self.read_model_config(EncoderDecoderConfig, vocab_size=vocab_size, special_tokens=SPECIAL_IDS)

    def expected_workload(self) -> Workload:
        return Workload(self.train.batch_tokens // 8, 8, 8, steps=self.train.steps)
