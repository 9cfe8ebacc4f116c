"""The base class of all messages, and what several of them use."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

AttentionType = Literal["encoder", "decoder", "cross"]
Ablation = Literal["zero", "mean"]
Side = Literal["source", "target"]
Metric = Literal["loss", "bleu"]
Method = Literal["beam", "greedy", "sample"]

MAX_TEXT_LENGTH = 100_000
"""Characters of a text to trace."""
MAX_BEAM_SIZE, MAX_NEW_TOKENS = 32, 4096
MAX_SENTENCES = 64
"""Sentences whose words are compared."""


class Message(BaseModel):
    """Base class of the contract's messages. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, without the fields that are not set."""
        return self.model_dump(exclude_none=True)


Words = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]
