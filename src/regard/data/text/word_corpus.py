"""A text as ids of words on disk, in sentences, and the blocks that word vectors are trained on."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.batching.word_blocks import MAX_SENTENCE, WordBlock
from regard.data.registry import cache_folder
from regard.data.store.token_store import cached_store
from regard.data.text.documents import TextConfig, text_fingerprint
from regard.data.text.vocabulary import Vocabulary
from regard.data.text.words import WordsConfig, read_sentences
from regard.errors import UserError


@dataclass(frozen=True, eq=False)
class WordCorpus:
    """Sentences one behind the other, memory-mapped. Words that are not in the vocabulary are left out."""

    ids: NDArray[np.integer]
    offsets: NDArray[np.int64]
    """Where each sentence begins, and the end of the last one."""

    @property
    def words(self) -> int:
        return int(self.offsets[-1])

    def block_count(self, size: int) -> int:
        """How many blocks of this size there are."""
        start, count = 0, 0
        while start < len(self.offsets) - 1:
            start, count = self._end_of_block(size, start), count + 1
        return count

    def blocks(self, size: int, start: int = 0) -> Iterator[tuple[int, WordBlock]]:
        """Blocks of whole sentences with at least `size` words, from the sentence `start` on, each with the number of
        the sentence after it."""
        sentences = len(self.offsets) - 1
        while start < sentences:
            end = self._end_of_block(size, start)
            first, last = int(self.offsets[start]), int(self.offsets[end])
            offsets = np.asarray(self.offsets[start : end + 1]) - first
            yield end, WordBlock(self.ids[first:last].astype(np.int32), offsets)
            start = end

    def _end_of_block(self, size: int, start: int) -> int:
        """The number of the sentence after a block."""
        end = int(np.searchsorted(self.offsets, self.offsets[start] + size))
        return min(max(end, start + 1), len(self.offsets) - 1)


def corpus_fingerprint(sources: Sequence[TextConfig], config: WordsConfig) -> str:
    """What the ids depend on: the texts and how they are split, but not the vocabulary."""
    parts = [*map(text_fingerprint, sources), config.kind, config.lowercase]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def cached_corpus(
    sources: Sequence[TextConfig], config: WordsConfig, vocabulary: Vocabulary, log: Callable[[str], None]
) -> WordCorpus:
    """The text in ids: read once, then found in the cache."""
    ids = vocabulary.ids

    def items() -> Iterator[tuple[list[int]]]:
        for words in read_sentences(sources, config):
            known = [ids[word] for word in words if word in ids]
            for start in range(0, len(known), MAX_SENTENCE):  # a text may be a single line
                yield (known[start : start + MAX_SENTENCE],)

    digest = hashlib.sha256(vocabulary.text.encode()).hexdigest()
    key = json.dumps(["words", corpus_fingerprint(sources, config), digest])
    store = cached_store(cache_folder() / "tokens", key, items, ("text",), {"text": len(vocabulary)}, log)
    tokens, offsets = store.stream("text")
    if not len(tokens):
        locations = ", ".join(source.location for source in sources)
        raise UserError(f"{locations}: the text has none of the words of the vocabulary.")
    return WordCorpus(tokens, offsets)
