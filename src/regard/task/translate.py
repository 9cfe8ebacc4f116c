"""Sentences in, sentences out: what a trained encoder–decoder is for.

A line becomes a request to search for its translation, and what was found becomes text again, in the order of the
lines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.data.pairs import Pair
from regard.data.tokenizer import TextTokenizer
from regard.decode import DecodeConfig, Request, Wish, Worker, score_given, search_all, search_batch
from regard.decode.shortlist import Shortlist, search_batch_among
from regard.errors import UserError
from regard.fast.swift import Swift
from regard.score import TranslationScore, score_translations
from regard.task.translation_recipe import ScoreConfig
from regard.task.words import seeded

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""How many source tokens are searched at once, padding included."""
_SHARED = 8
"""Lines from which on cores share them out."""
_SCORED = 64
"""Given translations scored at once."""


@dataclass(frozen=True)
class Translation:
    """One way to say it. `score` is what it was ranked by, `log_probability` the model's own."""

    text: str
    score: float
    log_probability: float
    tokens: tuple[int, ...]
    ended: bool
    """Whether it came to its end, or was cut at the longest length allowed."""
    steps: tuple[float, ...] = ()
    """The log-probability of each token, and of the end where it came to it."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Where asked for, the likeliest tokens of each step with their log-probabilities."""


def translate_lines(
    model: Worker[Any],
    source: TextTokenizer,
    target: TextTokenizer,
    lines: Sequence[str],
    decode: DecodeConfig,
    *,
    wish: Wish | None = None,
    alternatives: int = 0,
    numbers: Sequence[int] | None = None,
    shortlist: Shortlist | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[Translation]]:
    """For each line its best translations, best first, as many as `decode` asks for. A line without words stays one.

    With a `shortlist` they are searched among its tokens only. `progress` hears how many lines are done. Words are
    drawn by a line's number, from 0 on if there are no `numbers`.
    """
    sources = source.encode_batch(lines)
    results: list[list[Translation]] = [[Translation("", 0.0, 0.0, (), ended=True)] for _ in lines]
    wanted = [number for number, line in enumerate(lines) if line.strip()]
    empty = len(lines) - len(wanted)
    requests = [
        Request(
            tuple(sources[number]),
            decode.limit(len(sources[number]) + 1),
            decode,
            seeded(wish, decode.seed + (number if numbers is None else numbers[number])),
            alternatives,
        )
        for number in wanted
    ]
    if target.end is None:
        raise UserError("This model has no token for the end of a sentence, so it cannot be decoded.")
    found = search_all(
        model,
        requests,
        target.end,
        batch_tokens=batch_tokens or BATCH_TOKENS.get(model.device.type, 2048),
        threads=threads_for(model, len(requests)),
        progress=None if progress is None else lambda done: progress(empty + done),
        search=search_batch if shortlist is None else partial(search_batch_among, shortlist=shortlist),
    )
    for number, hypotheses in zip(wanted, found, strict=True):
        texts = target.decode_batch([one.tokens for one in hypotheses])
        results[number] = [
            Translation(text, one.score, one.log_probability, one.tokens, one.ended, one.steps, one.alternatives)
            for text, one in zip(texts, hypotheses, strict=True)
        ]
    return results


def threads_for(model: Worker[Any], count: int) -> int:
    """How many batches to work on at a time: one a core, where steps are so quick that sharing one does not pay."""
    return torch.get_num_threads() if isinstance(model, Swift) and count >= _SHARED else 1


def score_lines(
    model: Worker[Any],
    source: TextTokenizer,
    target: TextTokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
) -> list[tuple[float, ...]]:
    """The log-probability of each token of given translations, and of the end behind them."""
    reads, writes = source.encode_batch(sources), target.encode_batch(targets)
    order = sorted(range(len(reads)), key=lambda number: (len(writes[number]), len(reads[number])))
    found: list[tuple[float, ...]] = [()] * len(order)
    for first in range(0, len(order), _SCORED):
        rows = order[first : first + _SCORED]
        given = [writes[number] for number in rows]
        state, start = model.begin([reads[number] for number in rows], max(map(len, given)) + 1)
        scores = score_given(model, state, start, given, end=target.end)
        for number, each in zip(rows, scores, strict=True):
            found[number] = each
    return found


def score_pairs(
    model: Worker[Any],
    source: TextTokenizer,
    target: TextTokenizer,
    pairs: Sequence[Pair],
    decode: DecodeConfig,
    score: ScoreConfig,
) -> TranslationScore:
    """How good the best translations of pairs' sources are, beside their targets."""
    found = translate_lines(model, source, target, [pair.source for pair in pairs], decode.only_best())
    outputs, references = [best.text for best, *_ in found], [pair.target for pair in pairs]
    return score_translations(outputs, references, tokenised=score.tokenised, lowercase=score.lowercase)
