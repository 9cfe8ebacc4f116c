"""GLEU of a single sentence: the minimum of precision and recall of its n-grams (Wu et al. 2016, §4.3).

BLEU is defined for a corpus and is 0 for most single sentences, so it is no reward for one. GLEU has no such defect,
lies between 0 and 1, and is 1 only if both sentences have the same n-grams.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

MAX_ORDER = 4


def sentence_gleu(output: Sequence[Hashable], reference: Sequence[Hashable], max_order: int = MAX_ORDER) -> float:
    """The n-grams of up to `max_order` tokens that both have, relative to those of the sentence that has more."""
    ours, theirs = _ngrams(output, max_order), _ngrams(reference, max_order)
    most = max(ours.total(), theirs.total())
    return (ours & theirs).total() / most if most else 1.0


def _ngrams(tokens: Sequence[Hashable], max_order: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(
        tuple(tokens[first : first + order])
        for order in range(1, max_order + 1)
        for first in range(len(tokens) - order + 1)
    )
