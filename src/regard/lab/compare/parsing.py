"""Measurements of a trained parser: its score by the length of sentences, and some of its trees."""

from collections.abc import Sequence
from typing import Any

from regard.data.trees.tree import Tree
from regard.lab.compare.ladder import Ladder
from regard.score import score_brackets

LENGTHS = (10, 20, 30, 40)
"""The upper limits of the buckets of sentence lengths, in words; the last bucket has none."""
_FEWEST_SENTENCES = 10
"""A bucket with fewer sentences has no score of its own."""
_SAMPLES = 4
_SAMPLE_WORDS = 15
"""Samples are sentences of at most so many words, so that their trees can be read."""


def measure_parsing(recipe: Any, parser: Any, ladder: Ladder) -> dict[str, Any]:
    """What a report says about a parser."""
    gold: list[Tree] = list(recipe.test_sources()[ladder.test].trees())
    sentences = [tree.words() for tree in gold]
    predicted = [each.tree for each in parser.parse_words(sentences, parser.decode)]
    short = [index for index, words in enumerate(sentences) if len(words) <= _SAMPLE_WORDS]
    step = max(1, len(short) // _SAMPLES)
    return {
        "scores": {ladder.test: score_brackets(predicted, gold).rounded()},
        "by_length": f1_by_length(predicted, gold),
        "samples": [
            {"source": " ".join(sentences[index]), "reference": str(gold[index]), "output": str(predicted[index])}
            for index in short[step // 2 :: step][:_SAMPLES]
        ],
        "prompt": parser.tokenizer.encode(" ".join(sentences[0])),
    }


def f1_by_length(predicted: Sequence[Tree], gold: Sequence[Tree]) -> list[dict[str, Any]]:
    """F1 of the sentences of each length, in words."""
    rows, low = [], 1
    for high in (*LENGTHS, None):
        chosen = [
            (ours, theirs)
            for ours, theirs in zip(predicted, gold, strict=True)
            if low <= len(theirs.words()) and (high is None or len(theirs.words()) <= high)
        ]
        row: dict[str, Any] = {"from": low, "to": high, "sentences": len(chosen), "f1": None}
        if len(chosen) >= _FEWEST_SENTENCES:
            row["f1"] = round(score_brackets(*zip(*chosen, strict=True)).f1, 2)
        if chosen:
            rows.append(row)
        low = (high or low) + 1
    return rows
