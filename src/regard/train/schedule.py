"""How the learning rate changes over a run: up in a straight line, then down in one of several ways.

A schedule is a function of the step alone, so a resumed run needs no memory of it. Steps count from 1.
"""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError


class ScheduleConfig(Config):
    """`rate` is the peak, reached after `warmup` steps.

    - inverse-square-root: rate · √(warmup / step) from then on. With rate = (width · warmup)^-½ this is the paper's own
      schedule (Vaswani et al. 2017, eq. 3).
    - cosine: half a cosine down to `floor` · rate at the last of `steps`.
    - linear: a straight line that would reach zero one step after the last of `steps`.
    - constant: stays at the peak.
    """

    kind: Literal["inverse-square-root", "cosine", "linear", "constant"] = "inverse-square-root"
    rate: float = Field(gt=0)
    warmup: int = Field(default=4000, ge=0)
    steps: int | None = Field(default=None, ge=1)
    """How long the run is, for schedules that end with it."""
    floor: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind in ("cosine", "linear"):
            if self.steps is None:
                raise ConfigError("steps", f"a {self.kind} schedule ends with the run; say how many steps that is.")
            if self.warmup >= self.steps:
                raise ConfigError("warmup", f"found {self.warmup}; it must end before the run's {self.steps} steps do.")
        if self.kind != "cosine" and self.floor:
            raise ConfigError("floor", f"only a cosine schedule has one; leave it out for {self.kind}.")
        return self

    def at(self, step: int) -> float:
        """The rate of a step."""
        if step < self.warmup:
            return self.rate * step / self.warmup
        match self.kind:
            case "inverse-square-root":
                return self.rate * math.sqrt(max(self.warmup, 1) / max(step, 1))
            case "cosine":
                done = self._done(step)
                return self.rate * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2)
            case "linear":
                assert self.steps is not None
                return self.rate * max(0.0, (self.steps + 1 - step) / (self.steps + 1 - max(self.warmup, 1)))
            case "constant":
                return self.rate

    def _done(self, step: int) -> float:
        """The share of the way down that lies behind, from 0 to 1."""
        assert self.steps is not None
        return min(1.0, (step - self.warmup) / (self.steps - self.warmup))
