"""How likely given continuations of an answer are: *il* or *elle*, behind the same words."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.decode import score_given
from regard.errors import UserError
from regard.task.translator import Translator


class Continuation(NamedTuple):
    """A text behind a beginning, and its log-probability given that and the source."""

    text: str
    log_probability: float
    tokens: tuple[int, ...]


@torch.inference_mode()
def continuations(translator: Translator, source: str, beginning: str, texts: Sequence[str]) -> list[Continuation]:
    """The log-probability of each text behind the beginning of a translation, by the model's own numbers.

    What follows the texts does not count. Where the tokens of beginning and text are not those of the two one by one,
    as when a word goes on, all tokens count from the first that differs.
    """
    if not texts:
        return []
    speller = translator.target_text
    first = speller.encode(beginning)
    wholes = [speller.encode(beginning + text) for text in texts]
    begins = [_common(first, whole) for whole in wholes]
    for text, whole, begin in zip(texts, wholes, begins, strict=True):
        if begin == len(whole):
            raise UserError(f"{text!r} adds nothing to {beginning!r}; give a text that goes on.")
    reads = [tuple(translator.source_text.encode(source))] * len(texts)
    state, start = translator.worker.begin(reads, max(map(len, wholes)) + 1)
    scored = score_given(translator.worker, state, start, wholes, end=None)
    return [
        Continuation(text, sum(gains[begin:]), tuple(whole[begin:]))
        for text, gains, whole, begin in zip(texts, scored, wholes, begins, strict=True)
    ]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
