"""Recall of a planted word against its distance: does a model still know what it read k words ago?

A state of fixed size must forget, and a long sentence is where one sees it. Sentences that occur in nature mix many
difficulties, so here only the distance varies. For translation, a sentence with a rare word, whose translation is known
from the training data, is followed by other sentences, cut to exactly k words; the word counts as recalled if its
translation is in the output. For a language model, a sequence of random tokens is followed by k tokens of real text and
then by itself; a token counts as recalled if the model ranks it first. Small models hardly ever do that, so what they
remember is also measured by how much less a token surprises them than it does after another random sequence.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import UserError

PROBES = 40
"""The number of probes for each distance."""
_COPIED = 8
"""Tokens of the sequence that a language model should copy."""
_MAX_TRAINING_PAIRS = 50_000
_WORD = re.compile(r"\w+")


class Planted(NamedTuple):
    """A source text with a word at a known distance before its end, and the word's translation."""

    source: str
    translation: str


def word_pairs(pairs: Sequence[tuple[str, str]], *, least: int = 5, most: int = 200) -> dict[str, str]:
    """Rare source words with their translations: words that almost always occur together (Dice coefficient ≥ 0.8)."""
    sources: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    both: Counter[tuple[str, str]] = Counter()
    sides = [(_words(source), _words(target)) for source, target in pairs[:_MAX_TRAINING_PAIRS]]
    for source, target in sides:
        sources.update(source)
        targets.update(target)
    rare = {word for word, count in sources.items() if least <= count <= most and len(word) > 2}
    likely = {word for word, count in targets.items() if least <= count <= 2 * most and len(word) > 2}
    for source, target in sides:
        both.update((one, other) for one in source & rare for other in target & likely)
    found: dict[str, tuple[float, str]] = {}
    for (one, other), count in both.items():
        coefficient = 2 * count / (sources[one] + targets[other])
        if coefficient >= 0.8 and (coefficient, other) > found.get(one, (0.0, "")):
            found[one] = coefficient, other
    return {word: translation for word, (_, translation) in sorted(found.items())}


def plant(
    pairs: Sequence[tuple[str, str]], lexicon: dict[str, str], distance: int, count: int = PROBES
) -> list[Planted]:
    """Texts with a word of the lexicon exactly `distance` words before the end. The same for every model."""
    generator = random.Random(distance)
    fillers = [source.split() for source, _ in pairs if len(source.split()) > 1]
    carriers = [
        (words, index, lexicon[word])
        for source, target in pairs
        for words in [source.split()]
        for index, word in enumerate(map(_bare, words))
        if index < 10 and word in lexicon and lexicon[word] in _words(target)
    ]
    generator.shuffle(carriers)
    planted = []
    for words, index, translation in carriers[:count] if fillers else ():
        text = list(words)
        while len(text) < index + 1 + distance:
            filler = generator.choice(fillers)
            if not any(lexicon.get(_bare(word)) == translation for word in filler):
                text += filler
        planted.append(Planted(" ".join(text[: index + 1 + distance]), translation))
    return planted


def translation_recall(
    translate: Callable[[list[str]], list[str]],
    training: Sequence[tuple[str, str]],
    test: Sequence[tuple[str, str]],
    distances: Sequence[int],
) -> list[dict[str, Any]]:
    """For each distance, how many planted words were translated; a distance that a model cannot read has no number."""
    lexicon = word_pairs(training)
    rows: list[dict[str, Any]] = []
    for distance in distances:
        probes = plant(test, lexicon, distance)
        try:
            outputs = translate([probe.source for probe in probes]) if probes else []
        except UserError as error:
            rows.append({"distance": distance, "total": len(probes), "recalled": None, "problem": str(error)})
            continue
        recalled = sum(probe.translation in _words(output) for probe, output in zip(probes, outputs, strict=True))
        rows.append({"distance": distance, "total": len(probes), "recalled": recalled})
    return rows


@torch.no_grad()
def copy_recall(
    forward: Callable[[Tensor], Tensor],
    text: Sequence[int],
    vocab_size: int,
    distances: Sequence[int],
    max_length: int | None = None,
    device: torch.device | str = "cpu",
) -> list[dict[str, Any]]:
    """For each distance, how many tokens of a repeated random sequence were ranked first, and the nats that it saves.

    The nats are the mean difference between the loss of the sequence after another random sequence and its loss after
    itself, with the same text in between: 0 for a model that has forgotten what it read.

    forward: tokens to logits, # (rows, tokens) → (rows, tokens, vocabulary); text: ids of real text between the two.
    """
    rows: list[dict[str, Any]] = []
    for distance in distances:
        length = 2 * _COPIED + distance
        if (max_length is not None and length > max_length) or len(text) <= distance:
            rows.append({"distance": distance, "total": 0, "recalled": None, "problem": "longer than the model reads"})
            continue
        generator = random.Random(distance)
        same, other = [], []
        for _ in range(PROBES):
            planted, different = ([generator.randrange(vocab_size) for _ in range(_COPIED)] for _ in range(2))
            start = generator.randrange(len(text) - distance)
            same.append([*planted, *text[start : start + distance], *planted])
            other.append([*different, *text[start : start + distance], *planted])
        logits = _last_logits(forward, torch.tensor(same, device=device))  # (rows, copied - 1, vocabulary)
        control = _last_logits(forward, torch.tensor(other, device=device))
        targets = torch.tensor(same, device=device)[:, -(_COPIED - 1) :]  # (rows, copied - 1)
        saved = float(_mean_loss(control, targets) - _mean_loss(logits, targets))
        recalled = int((logits.argmax(dim=-1) == targets).sum())
        rows.append(
            {
                "distance": distance,
                "total": targets.numel(),
                "recalled": recalled,
                "nats_saved": round(saved, 4) if math.isfinite(saved) else None,
            }
        )
    return rows


def _last_logits(forward: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """The logits of the last tokens but for the first of the repeated sequence, which nothing announces."""
    return forward(tokens[:, :-1])[:, -(_COPIED - 1) :].float()


def _mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _bare(word: str) -> str:
    """A word without punctuation, as in `_words`; a word of several parts is none."""
    parts = _WORD.findall(word)
    return parts[0].lower() if len(parts) == 1 else ""
