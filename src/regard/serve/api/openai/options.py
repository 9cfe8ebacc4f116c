"""What requests for completions and for chats have in common.

Fields that are not known are ignored, because clients send some that mean nothing here. Known ones that would change
the result, and cannot be honored, are refused by name.
"""

import secrets
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from regard.decode import Constraints, DecodeConfig
from regard.errors import UserError
from regard.serve.api.schema import BoundedBody
from regard.serve.limits import LimitError, Limits

Token = Annotated[int, Field(strict=True, ge=0)]
MAX_STOPS = 16


class StreamOptions(BaseModel):
    include_usage: bool = Field(False, description="Whether a last chunk tells the usage.")


class SamplingBody(BoundedBody):
    """The fields of completions and chats."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = Field(None, description="A model of this server. Default: the first that generates text.")
    temperature: float | None = Field(None, ge=0, le=1000, description="0 takes the most likely token. Default: 1.")
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, description="How many outputs; each has its own seed: seed, seed + 1, …")
    stop: str | list[str] | None = Field(None, description="The text ends before the first of these strings.")
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63, description="Default: a random one for each request.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = Field(None, ge=-1, le=10_000_000, description="Not in OpenAI's protocol, as the next two.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=1000)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None

    def refuse(self, *fields: str, hint: str = "leave it out") -> None:
        """Refuse fields that are set to something."""
        for field in fields:
            if getattr(self, field):
                raise UserError(f"{field}: this server does not support it; {hint}.")

    def options(self, limits: Limits, max_tokens: int | None, logprobs: int | None) -> "OutputOptions":
        """How the outputs are decoded. `max_tokens` without a number is as many as the server and the model allow."""
        self.refuse("presence_penalty", "frequency_penalty", "logit_bias", hint="leave it out, or set it to 0")
        n, stops = self.n or 1, [self.stop] if isinstance(self.stop, str) else self.stop or []
        if n > limits.items:
            raise LimitError(f"n: found {n}, and this server generates at most {limits.items} outputs for a request.")
        if len(stops) > MAX_STOPS:
            raise UserError(f"stop: found {len(stops)} strings; give at most {MAX_STOPS}.")
        if max_tokens is not None:
            limits.check_new_tokens("max_tokens", max_tokens)
        greedy = self.temperature == 0
        search = DecodeConfig(beam_size=1, sample=not greedy, min_length=0)
        if not greedy:
            given = {name: getattr(self, name) for name in ("temperature", "top_p", "min_p", "repetition_penalty")}
            given["top_k"] = max(0, self.top_k or 0)
            search = search.updated({name: value for name, value in given.items() if value is not None})
        seed = secrets.randbits(48) if self.seed is None else self.seed
        return OutputOptions(n, max_tokens, limits.new_tokens, tuple(filter(None, stops)), seed, logprobs, search)


@dataclass(frozen=True)
class OutputOptions:
    """How the outputs of a request are decoded."""

    n: int
    """Outputs for each prompt."""
    max_tokens: int | None
    """Tokens of an output, if the request limits them."""
    server_max_tokens: int
    stops: tuple[str, ...]
    seed: int
    logprobs: int | None
    """How many alternatives are told for each token; None for no log-probabilities at all."""
    search: DecodeConfig

    @property
    def new_tokens(self) -> int:
        return self.max_tokens or self.server_max_tokens

    def with_max_tokens(self, max_tokens: int) -> "OutputOptions":
        """With a limit for requests that have none."""
        return self if self.max_tokens is not None else replace(self, max_tokens=max_tokens)

    def constraints(self, number: int) -> Constraints:
        """Those of an output, which has its own seed."""
        return Constraints(seed=self.seed + number)
