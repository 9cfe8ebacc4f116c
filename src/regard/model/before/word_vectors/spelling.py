"""The words of a vocabulary that are spelled most like another, without a comparison with each of a million words.

All spellings at an edit distance of 1 are looked up (a letter left out, added, changed, or two swapped), and only if
none is a word those at a distance of 2 (Norvig 2007, "How to Write a Spelling Corrector").
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

ALPHABET = 32
"""The letters that are tried: the most frequent ones of the vocabulary, and those of the word itself."""
_SAMPLE = 5000
_LONGEST, _LONGEST_TWICE = 64, 16
"""The longest words for which spellings at a distance of 1, and of 2, are looked up: there are too many for others."""


def nearest_spellings(word: str, ids: Mapping[str, int], words: Sequence[str], count: int = 3) -> list[str]:
    """Up to `count` words that are spelled like this one: the same in another letter case, then by edit distance and
    by their row, which puts frequent words first."""
    if not 1 < len(word) <= _LONGEST:
        return []
    cases = dict.fromkeys(one for one in (word.lower(), word.capitalize(), word.upper()) if one != word and one in ids)
    letters = "".join(_alphabet(words) | dict.fromkeys(word.lower()))
    near = {one for form in {word, word.lower()} for one in _edits(form, letters) if one in ids}
    if not near and not cases and 4 <= len(word) <= _LONGEST_TWICE:
        edits = set(_edits(word.lower(), letters))
        near = {one for edit in edits for one in _edits(edit, letters) if one in ids}
    near -= {word, *cases}
    return [*cases, *sorted(near, key=ids.__getitem__)][:count]


def _alphabet(words: Sequence[str]) -> dict[str, None]:
    """The most frequent letters of the first words."""
    counts = Counter(letter for word in words[:_SAMPLE] for letter in word.lower())
    return dict.fromkeys(letter for letter, _ in counts.most_common(ALPHABET))


def _edits(word: str, letters: str) -> Iterator[str]:
    """All spellings at an edit distance of 1."""
    for place in range(len(word) + 1):
        before, after = word[:place], word[place:]
        if after:
            yield before + after[1:]
            for letter in letters:
                yield before + letter + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        for letter in letters:
            yield before + letter + after
