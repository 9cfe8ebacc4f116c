"""Perplexity and bits per byte of a language model on a text.

All of them are one sum, the negative log-likelihood of the text's tokens, divided by different counts. Loss and
perplexity depend on the tokenizer, so they compare only models that share it; bits per byte and per character compare
all models that can produce any text. A tokenizer that loses words makes a text look easier than it is.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from regard.errors import UserError


@dataclass(frozen=True, repr=False)
class PerplexityScore:
    """The score of a text. Only predicted tokens count, not a first token that was only read."""

    loss: float
    """Nats per token: −Σ ln p(token | preceding tokens) / tokens."""
    perplexity: float
    """exp(loss): the number of equally likely tokens the model chooses from, in effect."""
    bits_per_byte: float
    """−Σ log₂ p(token) / bytes of the text in UTF-8."""
    bits_per_character: float
    """−Σ log₂ p(token) / characters (Unicode code points) of the text."""
    nats: float
    """−Σ ln p(token), the sum itself."""
    tokens: int
    bytes: int
    characters: int

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.4f} nats per token, perplexity {self.perplexity:.2f}, "
            f"{self.bits_per_byte:.4f} bits per byte"
        )

    def __repr__(self) -> str:
        return f"PerplexityScore({self})"

    def rounded(self) -> dict[str, Any]:
        """As plain data, to four decimals."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def score_perplexity(nats: float, tokens: int, *, bytes: int, characters: int) -> PerplexityScore:
    """The metrics of a text from its negative log-likelihood and its numbers of tokens, bytes and characters."""
    if not nats >= 0:
        raise UserError(f"A negative log-likelihood must be at least 0; found {nats}.")
    for name, count in (("token", tokens), ("byte", bytes), ("character", characters)):
        if count < 1:
            raise UserError(f"There is nothing to score; at least one {name} is needed, found {count}.")
    loss, bits = nats / tokens, nats / math.log(2)
    return PerplexityScore(
        loss=loss,
        perplexity=math.exp(loss) if loss < _MAX_EXPONENT else math.inf,
        bits_per_byte=bits / bytes,
        bits_per_character=bits / characters,
        nats=nats,
        tokens=tokens,
        bytes=bytes,
        characters=characters,
    )


_MAX_EXPONENT = 709  # exp of more overflows a float
