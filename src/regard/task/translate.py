"""Sentences in, sentences out: what a trained encoder–decoder is for.

Sentences are sorted by length, put into batches of a bounded number of tokens, searched, and given back in the order
they came in.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from regard.data.pairs import Pair
from regard.data.tokenizer import TextTokenizer
from regard.decode import DecodeConfig, Hypothesis, make_chooser, search
from regard.model import EncoderDecoder
from regard.score import TranslationScore, score_translations
from regard.task.recipe import ScoreConfig

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""How many source tokens are searched at once, padding included."""


@dataclass(frozen=True)
class Translation:
    """One way to say it. `score` is what it was ranked by, `log_probability` the model's own."""

    text: str
    score: float
    log_probability: float
    tokens: tuple[int, ...]
    ended: bool
    """Whether it came to its end, or was cut at the longest length allowed."""


def translate_lines(
    model: EncoderDecoder,
    source: TextTokenizer,
    target: TextTokenizer,
    lines: Sequence[str],
    decode: DecodeConfig,
    *,
    batch_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[Translation]]:
    """For each line its `beams` best translations, best first. A line without words stays one.

    `progress` hears how many lines are done.
    """
    sources = source.encode_batch(lines)
    results: list[list[Translation]] = [[Translation("", 0.0, 0.0, (), ended=True)] for _ in lines]
    wanted = [number for number, line in enumerate(lines) if line.strip()]
    done = len(lines) - len(wanted)
    device = model.vocabulary.weight.device
    budget = batch_tokens or BATCH_TOKENS.get(device.type, 2048)
    for group in _groups([(len(sources[number]) + 1, number) for number in wanted], budget):
        found = search_rows(model, [sources[number] for number in group], decode)
        for number, hypotheses in zip(group, found, strict=True):
            texts = target.decode_batch([one.tokens for one in hypotheses])
            results[number] = [
                Translation(text, one.score, one.log_probability, one.tokens, one.ended)
                for text, one in zip(texts, hypotheses, strict=True)
            ]
        done += len(group)
        if progress is not None:
            progress(done)
    return results


def score_pairs(
    model: EncoderDecoder,
    source: TextTokenizer,
    target: TextTokenizer,
    pairs: Sequence[Pair],
    decode: DecodeConfig,
    score: ScoreConfig,
) -> TranslationScore:
    """How good the best translations of pairs' sources are, beside their targets."""
    found = translate_lines(model, source, target, [pair.source for pair in pairs], decode)
    outputs, references = [best.text for best, *_ in found], [pair.target for pair in pairs]
    return score_translations(outputs, references, tokenised=score.tokenised, lowercase=score.lowercase)


def search_rows(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], decode: DecodeConfig
) -> list[list[Hypothesis]]:
    """The best outputs for some rows of source ids (without their end), searched together."""
    limits = [decode.limit(len(row) + 1) for row in sources]
    state, start = model.begin(sources, max(limits))
    end = model.config.tokens.end
    assert end is not None
    return search(model, state, start, make_chooser(decode, limits, end, device=start.device))


def _groups(lengths: list[tuple[int, int]], budget: int) -> Iterator[list[int]]:
    """Numbers of rows of about equal length, longest first, as many as the budget holds."""
    group: list[int] = []
    longest = 0
    for length, number in sorted(lengths, key=lambda one: (-one[0], one[1])):
        if group and longest * (len(group) + 1) > budget:
            yield group
            group = []
        if not group:
            longest = length
        group.append(number)
    if group:
        yield group
