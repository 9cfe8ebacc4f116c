"""What requests of our own API have in common."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from regard.serve.limits import Limits

Texts = str | list[str]
ModelName = Annotated[
    str | None, Field(description="A model of this server. Default: the first that can do this.", examples=[None])
]

Tokenized = Annotated[bool, Field(description="Whether words are already separated by spaces.")]


class BoundedBody(BaseModel):
    """A request with a bounded number of values."""

    max_values: ClassVar[int] = 5000
    """Values in a request. Each wrong one costs time, as an error of its own."""

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, values: Any) -> Any:
        if count_values(values, cls.max_values) > cls.max_values:
            raise ValueError(f"it has more than {cls.max_values:,} values")
        return values


class Body(BoundedBody):
    """A request of our own API. Unknown fields are refused, so that a misspelled one is not ignored."""

    model_config = ConfigDict(extra="forbid")


class DecodingOptions(Body):
    """The decoding settings that a request sets; the others are those of the model's recipe."""

    beam_size: int | None = Field(None, ge=1, description="Beams; 1 is greedy search.")
    nbest: int | None = Field(None, ge=1, description="How many outputs, best first.")
    length_penalty: float | None = Field(None, ge=0, le=10)
    min_length: int | None = Field(None, ge=0)
    no_repeat_ngram_size: int | None = Field(None, ge=0, le=1000)
    temperature: float | None = Field(None, ge=0, le=1000, description="Sampling: less than 1 favors likely tokens.")
    top_k: int | None = Field(None, ge=0, le=10_000_000)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=1000)
    seed: int | None = Field(None, ge=-(1 << 53), le=1 << 53)

    def changes(self, limits: Limits) -> dict[str, Any]:
        """The settings that are given, as options of `DecodeConfig.with_options`."""
        limits.check_search(self.beam_size, self.nbest)
        given = {name: getattr(self, name) for name in DecodingOptions.model_fields}
        return {name: value for name, value in given.items() if value is not None}


def count_values(values: Any, limit: int) -> int:
    """The values in JSON data, counted until they exceed a limit."""
    count, waiting = 0, [values]
    while waiting and count <= limit:
        value = waiting.pop()
        if isinstance(value, dict | list):
            count += len(value)
            if count <= limit:
                waiting += value.values() if isinstance(value, dict) else value
    return count


def as_list(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def first_or_all(given: Texts, results: Sequence[Any]) -> Any:
    """The results in the form of the input: one for a text, a list for a list."""
    return results[0] if isinstance(given, str) else list(results)
