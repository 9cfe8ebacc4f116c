"""A text as ids in blocks: sentences stay whole, and a text of one line does not become one block."""

from pathlib import Path

import numpy as np
import pytest

from regard.data.batching.word_blocks import MAX_SENTENCE
from regard.data.text.documents import TextConfig
from regard.data.text.vocabulary import Vocabulary
from regard.data.text.word_corpus import WordCorpus, cached_corpus
from regard.data.text.words import WordsConfig


def test_a_single_line_is_cut_into_sentences_of_limited_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("a b " * MAX_SENTENCE + "unknown a", encoding="utf-8")
    vocabulary = Vocabulary(["a", "b"], np.array([MAX_SENTENCE + 1, MAX_SENTENCE]))
    source = TextConfig(path=str(tmp_path / "text.txt"))
    corpus = cached_corpus([source], WordsConfig(min_count=1), vocabulary, lambda message: None)
    assert corpus.offsets.tolist() == [0, MAX_SENTENCE, 2 * MAX_SENTENCE, 2 * MAX_SENTENCE + 1]


@pytest.mark.parametrize("size", [1, 4, 5, 100])
def test_blocks_are_all_of_the_text_in_whole_sentences(size: int) -> None:
    corpus = WordCorpus(np.arange(20, dtype=np.uint16), np.array([0, 3, 4, 9, 9, 20]))
    blocks = list(corpus.blocks(size))
    assert np.concatenate([block.ids for _, block in blocks]).tolist() == list(range(20))
    assert corpus.block_count(size) == len(blocks)
    assert all(len(block.ids) >= size for _, block in blocks[:-1] if size > 1)
    for (start, _), (_, block) in zip([(0, None), *blocks[:-1]], blocks, strict=True):
        assert next(corpus.blocks(size, start))[1].ids.tolist() == block.ids.tolist()
