"""Batches of labeled texts and tagged sentences.

Both become items of a token store with two sides, the tokens and the labels, so they are batched by tokens in few
shapes, like sentence pairs. In the store a label is its number plus one, because 0 means that a position has no label,
or one that is not among the known ones; in batches labels count from 0, and -1 means none.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch

from regard.data.batching.epochs import MappedBatches
from regard.data.batching.row_batch import RowBatch, count_targets
from regard.data.batching.token_batches import Batch, TokenBatches, TokenizedItems
from regard.data.labels.labeled_texts import LabeledText
from regard.data.labels.tagged_sentences import TaggedSentence
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError, listed

LABEL_SIDES = ("text", "label")
TAG_SIDES = ("text", "tags")

_MANY_EXAMPLES = 50
"""With so many examples, labels are expected to repeat."""
_CHUNK = 2000
"""Sentences tokenized at once, on all threads."""


class LabeledBatches(MappedBatches[TokenBatches, RowBatch]):
    """Labeled or tagged sentences in batches of at most `batch_tokens` tokens; see `TokenBatches` for the settings.

    `targets` has one label per row for labeled texts, and one per token for tagged sentences.
    """

    def __init__(
        self,
        items: TokenizedItems,
        batch_tokens: int,
        *,
        seed: int = 0,
        pad_id: int = 0,
        length_buckets: int = 32,
        pad_to_multiple: int = 1,
        max_length: int | None = None,
    ) -> None:
        if items.sides not in (LABEL_SIDES, TAG_SIDES):
            raise UserError(f"Expected the sides {LABEL_SIDES} or {TAG_SIDES}, found {items.sides}.")
        source = TokenBatches(
            items,
            batch_tokens,
            seed=seed,
            pad_id=(pad_id, 0),
            length_buckets=length_buckets,
            pad_to_multiple=pad_to_multiple,
            max_length=max_length,
        )
        super().__init__(source, _with_labels if items.sides == LABEL_SIDES else _with_tags)


def label_set(sentences: Iterable[LabeledText | TaggedSentence]) -> tuple[str, ...]:
    """All labels or tags in the data, sorted: the index of a label is its number. Fewer than two are an error, and so
    are about as many as there are examples, since then something else was read as the label."""
    found: set[str] = set()
    count = 0
    for sentence in sentences:
        labels = (sentence.label,) if isinstance(sentence, LabeledText) else sentence.tags
        found.update(labels)
        count += len(labels)
    if len(found) < 2:
        raise UserError(f"Classification needs at least two labels; found {listed(sorted(found))}.")
    if count >= _MANY_EXAMPLES and 2 * len(found) > count:
        raise UserError(
            f"Found {len(found):,} different labels for {count:,} examples, such as {min(found)[:40]!r}; if the "
            "labels are in another column of the file, name it with --set 'data.train.0.columns=[2, 1]' (text, label)."
        )
    return tuple(sorted(found))


def label_items(
    sentences: Iterable[LabeledText],
    tokenizer: TextTokenizer,
    labels: Sequence[str],
    *,
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
    max_length: int | None = None,
) -> Iterator[tuple[list[int], list[int]]]:
    """Items of a store with `LABEL_SIDES`: vocabularies of the tokenizer's size and of the number of labels plus one.

    The ids of `prefix` and `suffix` are added to each text, which is truncated to `max_length` tokens in all.
    """
    ids_of = _label_ids(labels)
    room = None if max_length is None else max(max_length - len(prefix) - len(suffix), 0)
    for chunk in _chunks(sentences):
        for sentence, ids in zip(chunk, tokenizer.encode_batch([one.text for one in chunk]), strict=True):
            yield [*prefix, *ids[:room], *suffix], [ids_of.get(sentence.label, 0)]


def tag_items(
    sentences: Iterable[TaggedSentence],
    tokenizer: TextTokenizer,
    tags: Sequence[str],
    *,
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
) -> Iterator[tuple[list[int], list[int]]]:
    """Items of a store with `TAG_SIDES`: vocabularies of the tokenizer's size and of the number of tags plus one.

    A word's tag belongs to its first token. The other tokens, `prefix` and `suffix` have no label.
    """
    ids_of = _label_ids(tags)
    for chunk in _chunks(sentences):
        rows = encode_words([one.words for one in chunk], tokenizer)
        for sentence, (ids, firsts) in zip(chunk, rows, strict=True):
            labels = [0] * len(ids)
            for position, tag in zip(firsts, sentence.tags, strict=True):
                labels[position] = ids_of.get(tag, 0)
            yield [*prefix, *ids, *suffix], [*[0] * len(prefix), *labels, *[0] * len(suffix)]


def encode_words(sentences: Sequence[Sequence[str]], tokenizer: TextTokenizer) -> list[tuple[list[int], list[int]]]:
    """The ids of sentences given as words, and the position of each word's first token.

    The ids are those of the words joined by single spaces, as our tokenizers encode them: a space belongs to the word
    after it.
    """
    spaced = [word if number == 0 else f" {word}" for words in sentences for number, word in enumerate(words)]
    encoded = iter(tokenizer.encode_batch(spaced))
    rows = []
    for words in sentences:
        ids: list[int] = []
        firsts = []
        for word, tokens in zip(words, islice(encoded, len(words)), strict=True):
            if not tokens:
                raise UserError(f"The tokenizer gives no token for the word {word!r}; remove the word or change it.")
            firsts.append(len(ids))
            ids += tokens
        rows.append((ids, firsts))
    return rows


def _with_labels(batch: Batch) -> RowBatch:
    return _with_targets(batch, batch.target[:, 0] - 1)


def _with_tags(batch: Batch) -> RowBatch:
    return _with_targets(batch, batch.target - 1)


def _with_targets(batch: Batch, targets: torch.Tensor) -> RowBatch:
    lengths = batch.source_lengths
    return RowBatch(batch.source, targets, lengths, None, count_targets(targets, lengths), batch.epoch, batch.index)


def _label_ids(labels: Sequence[str]) -> dict[str, int]:
    """The id of each label in a store, where 0 means none."""
    return {label: number for number, label in enumerate(labels, start=1)}


_Sentence = TypeVar("_Sentence", LabeledText, TaggedSentence)


def _chunks(sentences: Iterable[_Sentence]) -> Iterator[list[_Sentence]]:
    stream = iter(sentences)
    while chunk := list(islice(stream, _CHUNK)):
        yield chunk
