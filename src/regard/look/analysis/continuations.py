"""The log-probability of given continuations of a translation: *il* or *elle* after the same words."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.decode import score_forced
from regard.errors import UserError
from regard.task.translation.pipeline import Translator


class Continuation(NamedTuple):
    """A text after a prefix, and its log-probability given the prefix and the source."""

    text: str
    logprob: float
    tokens: tuple[int, ...]


@torch.inference_mode()
def score_continuations(translator: Translator, source: str, prefix: str, texts: Sequence[str]) -> list[Continuation]:
    """The log-probability of each text after the prefix of a translation.

    What follows the texts does not count. If prefix and text together are tokenized differently from the prefix alone,
    as when the text continues a word, all tokens count from the first that differs.
    """
    if not texts:
        return []
    tokenizer = translator.target_tokenizer
    prefix_ids = tokenizer.encode(prefix)
    targets = [tokenizer.encode(prefix + text) for text in texts]
    starts = [_common_prefix(prefix_ids, target) for target in targets]
    for text, target, start in zip(texts, targets, starts, strict=True):
        if start == len(target):
            raise UserError(f"{text!r} adds no token to {prefix!r}; give a text that continues it.")
    sources = [tuple(translator.source_tokenizer.encode(source))] * len(texts)
    state, first = translator.decoder_model.prefill(sources, max(map(len, targets)) + 1)
    scores = score_forced(translator.decoder_model, state, first, targets, eos=None)
    return [
        Continuation(text, sum(log_probabilities[start:]), tuple(target[start:]))
        for text, log_probabilities, target, start in zip(texts, scores, targets, starts, strict=True)
    ]


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens that both sequences start with."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
