"""Sentences are split into words as in treebanks."""

import pytest

from regard.data.text.treebank_tokenizer import treebank_tokenize


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat ate the mouse.", "The cat ate the mouse ."),
        ("I don't think it's O'Neill's.", "I do n't think it 's O'Neill 's ."),
        ("They can’t, won't, and they'll see.", "They ca n’t , wo n't , and they 'll see ."),
        (
            "Mr. Smith paid $1,000.50 (10%) to the U.S. co-op...",
            "Mr. Smith paid $1,000.50 ( 10% ) to the U.S. co-op ...",
        ),
        ("“Hi,” she said -- twice!", "“ Hi , ” she said -- twice !"),
        ("already split , was it n't ?", "already split , was it n't ?"),
        ("  ", ""),
        ("Kedi fareyi yedi.", "Kedi fareyi yedi ."),
        ("東京 is big", "東京 is big"),
    ],
)
def test_words_are_split_as_in_treebanks(text: str, words: str) -> None:
    assert treebank_tokenize(text) == words.split()


@pytest.mark.parametrize("text", ["it's", "a-b/c'd", "x's's", "'''", "n't", "9:30pm...U.S.A.'s"])
def test_no_character_is_lost(text: str) -> None:
    assert "".join(treebank_tokenize(text)) == text
