"""The [expect] table of a recipe: which scores a run should reach, and where these numbers come from."""

from typing import Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError

METRICS = {
    "bleu": ("BLEU", 1),
    "chrf": ("chrF", 1),
    "f1": ("F1", 1),
    "accuracy": ("accuracy", 1),
    "loss": ("loss", 3),
    "bits_per_byte": ("bits per byte", 3),
    "spearman": ("Spearman", 3),
}
"""The display name of each metric, and the decimals it is given with. Of several, the earliest counts most."""


class ExpectedScore(Config):
    """The expected scores on a test set: the mean over seeds, and the standard deviation if there are several."""

    bleu: float | None = Field(default=None, ge=0, le=100)
    """BLEU by sacreBLEU, from 0 to 100."""
    chrf: float | None = Field(default=None, ge=0, le=100)
    """chrF by sacreBLEU, from 0 to 100."""
    loss: float | None = Field(default=None, ge=0, le=1e3)
    """The loss in nats per token, without label smoothing."""
    bits_per_byte: float | None = Field(default=None, ge=0, le=1e3)
    """The loss of a language model in bits per byte of text, which does not depend on the tokenizer."""
    f1: float | None = Field(default=None, ge=0, le=100)
    """Labeled bracket F1 of a parser, in percent."""
    accuracy: float | None = Field(default=None, ge=0, le=100)
    """Accuracy in percent."""
    spearman: float | None = Field(default=None, ge=-1, le=1)
    """The rank correlation of word vectors' cosines with people's judgments of word pairs."""
    std: float | None = Field(default=None, ge=0, le=1e3)
    """The standard deviation over seeds of the first metric that is given."""

    @model_validator(mode="after")
    def _has_a_metric(self) -> Self:
        if not self.metrics:
            raise ConfigError("", f"no score is given; give one of {', '.join(METRICS)}.")
        return self

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that are given, the one that counts most first."""
        return {name: value for name in METRICS if (value := getattr(self, name)) is not None}

    def __str__(self) -> str:
        shown = [f"{METRICS[name][0]} {value:.{METRICS[name][1]}f}" for name, value in self.metrics.items()]
        if self.std is not None:
            shown[0] += f" ± {self.std:.{METRICS[next(iter(self.metrics))][1] + 1}f}"
        return ", ".join(shown)


class ExpectConfig(Config):
    """What to expect of a run: measured with this recipe, or taken from `source`."""

    measured: bool
    """Whether the scores were measured with this recipe. If not, `source` names where they come from."""
    scores: dict[str, ExpectedScore] = Field(default_factory=dict)
    """The expected scores, by the name of the test set."""
    seeds: int | None = Field(default=None, ge=1, le=1_000_000)
    """The number of runs with different seeds whose mean is given."""
    minutes: float | None = Field(default=None, gt=0, le=100_000_000)
    """How long such a run takes on `hardware`."""
    hardware: str | None = None
    """The machine on which it was measured."""
    source: str | None = None
    """The publication that scores come from if they were not measured with this recipe."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.measured and not (self.scores and self.hardware and self.minutes and self.seeds):
            raise ConfigError("measured", "a measured recipe gives scores, seeds, minutes and hardware.")
        if not self.measured and self.scores and self.source is None:
            raise ConfigError("source", "scores that were not measured need a source.")
        return self

    @property
    def time(self) -> str:
        """How long a run takes, and on what."""
        return f"{self.minutes:g} min on {self.hardware}" if self.measured else "not measured"

    @property
    def first_score(self) -> str:
        """The metric that counts most on the first test set, and its source if it was not measured here."""
        first = next((str(score).partition(",")[0] for score in self.scores.values()), "")
        return f"{first} (published: {self.source})" if first and not self.measured else first

    def describe(self, test: str) -> str:
        """The expectation for a test set in parentheses, to stand behind the score; empty if there is none."""
        expected = self.scores.get(test)
        if expected is None:
            return ""
        return f" (expected: {expected}{'' if self.measured else f'; {self.source}'})"
