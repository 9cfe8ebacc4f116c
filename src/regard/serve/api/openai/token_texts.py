"""The tokens of an output as texts with log-probabilities.

A token's text depends on those before it: a tokenizer may write a space, or need several tokens for a character. The
texts here are what each token adds, so they join to the text of the output. A token that completes no character adds
nothing, and the one that completes it adds it all.
"""

from collections.abc import Sequence
from typing import NamedTuple

from regard.data.tokenizers.streaming import TextStreamer
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import Hypothesis

_CONTEXT = 8
"""Tokens that determine the text of the next one."""


class TokenLogprob(NamedTuple):
    """A token's text, where it begins in the output's, and its log-probability."""

    text: str
    offset: int
    logprob: float
    top: tuple[tuple[str, float], ...]
    """The most likely tokens at this place, if they are asked for, with their log-probabilities."""


class TokenTexts:
    """Collects the tokens of one output."""

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self._streamer = TextStreamer(tokenizer, (), prompt)
        self._context = list(prompt[-_CONTEXT:])
        self._waiting: list[TokenLogprob] = []

    def add(self, token: int, hypothesis: Hypothesis, position: int) -> None:
        """A token of a hypothesis, and its place there."""
        offset = len(self._streamer.text)
        text = self._streamer.add([token])
        alternatives = hypothesis.alternatives[position] if hypothesis.alternatives else ()
        top = tuple((self._text_after_context(other), logprob) for other, logprob in alternatives)
        self._waiting.append(TokenLogprob(text, offset, hypothesis.token_logprobs[position], top))
        self._context = [*self._context, token][-_CONTEXT:]

    def take(self, end: int | None) -> tuple[TokenLogprob, ...]:
        """The tokens that begin before a character of the output, or all, each only once."""
        count = len(self._waiting)
        if end is not None:
            count = next((index for index, each in enumerate(self._waiting) if each.offset >= end), count)
        elif self._waiting and (rest := self._streamer.finish()):  # what is not a whole character
            self._waiting[-1] = self._waiting[-1]._replace(text=self._waiting[-1].text + rest)
        taken, self._waiting = tuple(self._waiting[:count]), self._waiting[count:]
        return taken

    def _text_after_context(self, token: int) -> str:
        """What a token would add here. Special tokens have their names."""
        if token in self.tokenizer.special_ids:
            return self.tokenizer.tokenizer.id_to_token(token) or ""
        before = self.tokenizer.decode(self._context)
        return self.tokenizer.decode([*self._context, token])[len(before) :]
