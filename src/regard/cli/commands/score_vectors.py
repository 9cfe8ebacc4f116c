"""`regard score` for word vectors."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def score_vectors(
    model: str,
    test: str | None,
    data: Path | None,
    against: str | None,
    print_result: Callable[[str, dict[str, Any]], None],
) -> None:
    """Score a file or run of word vectors on the public sets, on one of them, or on a user's file of pairs or
    analogies; with a second one, both on what both know."""
    from regard.data.text.lines import read_lines
    from regard.score.word_vectors import (
        SETS,
        AnalogyScore,
        WordVectorScore,
        available_sets,
        read_analogies,
        read_word_pairs,
        score_analogies,
        score_word_pairs,
        score_word_vectors,
    )
    from regard.task.evaluate import refuse_both
    from regard.task.word_vectors.opening import open_keyed_vectors

    if data is not None:
        refuse_both(test)
    sets = available_sets() if test is None else [test]
    if data is None and test is None and (missing := [name for name in SETS if name not in sets]):
        print(f"Left out, because `regard data get wordsim` does not find them: {', '.join(missing)}.", file=sys.stderr)
    names = [model] if against is None else [model, against]
    opened = [open_keyed_vectors(name) for name in names]
    for number, (name, keyed) in enumerate(zip(names, opened, strict=True)):
        others = [one for place, one in enumerate(opened) if place != number]
        scores: dict[str, WordVectorScore] = {}
        if data is None:
            scores.update(score_word_vectors(keyed, sets, others))
        elif any(line.startswith(":") or len(line.split()) == 4 for line in read_lines(data)):
            scores["given"] = score_analogies(keyed, read_analogies(data), None, others)
        else:
            scores["given"] = score_word_pairs(keyed, read_word_pairs(data), others)
        for test_name, score in scores.items():
            sections = score.describe_sections() if isinstance(score, AnalogyScore) else ""
            text = f"{name} on {test_name}: {score}" + (f"\n{sections}" if sections else "")
            print_result(text, {"model": name, "test": test_name} | score.rounded())
