"""How well a language model foretells a text.

All measures are one sum, the negative logarithms of the probabilities that the model gave to the tokens that came,
divided by different counts. A token is whatever a tokenizer makes it, so loss and perplexity compare models with the
same tokenizer only; bits per byte and per character compare all that can write any text. A tokenizer that loses words
makes its text easier than it is.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from regard.errors import UserError


@dataclass(frozen=True)
class LanguageScore:
    """How a text was foretold. Only what was predicted is counted: not a first token that was only read."""

    loss: float
    """Nats a token: −Σ ln p(token | those before it) / tokens."""
    perplexity: float
    """e to the loss: among how many equally likely tokens such a model would choose."""
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
            f"loss {self.loss:.4f} nats a token, perplexity {self.perplexity:.2f}, "
            f"{self.bits_per_byte:.4f} bits per byte"
        )

    def rounded(self) -> dict[str, Any]:
        """As plain data, to four decimals."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def score_language(nats: float, tokens: int, *, bytes: int, characters: int) -> LanguageScore:
    """The measures of a sum of negative log-likelihoods over a text of so many tokens, bytes and characters."""
    if not nats >= 0:
        raise UserError(f"A sum of negative log-likelihoods is at least 0; found {nats}.")
    for name, count in (("token", tokens), ("byte", bytes), ("character", characters)):
        if count < 1:
            raise UserError(f"There is nothing to score: at least one {name} is needed, found {count}.")
    loss, bits = nats / tokens, nats / math.log(2)
    return LanguageScore(
        loss=loss,
        perplexity=math.exp(loss) if loss < _LARGEST else math.inf,
        bits_per_byte=bits / bytes,
        bits_per_character=bits / characters,
        nats=nats,
        tokens=tokens,
        bytes=bytes,
        characters=characters,
    )


_LARGEST = 709  # beyond this e to the loss is more than a float can hold
