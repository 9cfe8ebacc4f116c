"""Batches of labeled texts and tagged sentences: labels are targets of texts, tags of the first token of each word."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.batching.row_batch import RowBatch
from regard.data.labels.batches import (
    LABEL_SIDES,
    TAG_SIDES,
    LabeledBatches,
    encode_words,
    label_items,
    label_set,
    tag_items,
)
from regard.data.labels.labeled_texts import LabeledText
from regard.data.labels.tagged_sentences import TaggedSentence
from regard.data.store.token_store import TokenStore, write_store
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.train.task import Batches

TEXTS = [LabeledText("a fine film", "good"), LabeledText("dull", "bad"), LabeledText("it is fine, and fun", "good")]
SENTENCES = [
    TaggedSentence(["The", "cat", "did", "n't", "eat"], ["DT", "NN", "VBD", "RB", "VB"]),
    TaggedSentence(["(", "Kedi", ")"], ["-LRB-", "NN", "-RRB-"]),
]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=280), ["the cat ate the mouse"] * 9)


def test_text_in_the_column_of_labels_is_refused() -> None:
    texts = [LabeledText("good", f"text {number}") for number in range(60)]
    with pytest.raises(UserError, match=r"60 different labels for 60 examples, such as 'text 0'.*columns"):
        label_set(texts)
    assert len(label_set([*texts[:20], *texts[:20], *texts[:20]])) == 20


def test_label_set_is_sorted(tokenizer: TextTokenizer) -> None:
    assert label_set(TEXTS) == ("bad", "good")
    assert label_set(SENTENCES) == ("-LRB-", "-RRB-", "DT", "NN", "RB", "VB", "VBD")


def test_single_label_is_refused() -> None:
    with pytest.raises(UserError, match="at least two labels; found 'good'"):
        label_set(TEXTS[:1])


# Words and tokens

WORDS = st.lists(st.text(st.sampled_from("aeTt.'-$5é中"), min_size=1, max_size=6), min_size=1, max_size=6)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte", "word"])
@given(words=WORDS)
def test_ids_of_words_are_those_of_their_text(kind: Any, words: list[str]) -> None:
    tokenizer = TOKENIZERS.setdefault(
        kind, train_tokenizer(TokenizerConfig(kind=kind), ["the tea at ate 55 $ t'e é"] * 9)
    )
    ((ids, firsts),) = encode_words([words], tokenizer)
    assert ids == tokenizer.encode(" ".join(words))
    assert len(firsts) == len(words)
    if kind != "word":  # a word tokenizer loses unknown words
        ends = [*firsts[1:], len(ids)]
        pieces = [tokenizer.decode(ids[first:last]) for first, last in zip(firsts, ends, strict=True)]
        assert [piece.removeprefix(" ") for piece in pieces] == words


TOKENIZERS: dict[str, TextTokenizer] = {}


def test_tag_belongs_to_the_first_token_of_its_word(tokenizer: TextTokenizer) -> None:
    tags = label_set(SENTENCES)
    items = tag_items(SENTENCES, tokenizer, tags, prefix=[1], suffix=[2])
    for sentence, (ids, labels) in zip(SENTENCES, items, strict=True):
        ((pieces, firsts),) = encode_words([sentence.words], tokenizer)
        assert ids == [1, *pieces, 2]
        assert len(labels) == len(ids)
        found = {position: tags[label - 1] for position, label in enumerate(labels) if label}
        assert found == {first + 1: tag for first, tag in zip(firsts, sentence.tags, strict=True)}
        assert len(pieces) > len(firsts)


def test_word_without_tokens_is_refused() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), ["a b"])
    with pytest.raises(UserError, match="gives no token for the word"):
        encode_words([["a", "\u2003"]], tokenizer)


def test_text_is_truncated(tokenizer: TextTokenizer) -> None:
    ((ids, label),) = label_items(TEXTS[2:], tokenizer, ("bad", "good"), prefix=[1], suffix=[2], max_length=6)
    assert ids == [1, *tokenizer.encode(TEXTS[2].text)[:4], 2]
    assert label == [2]


def test_unknown_label_is_no_target(tokenizer: TextTokenizer) -> None:
    labels = [label for _, (label,) in label_items(TEXTS, tokenizer, ("bad", "fair"))]
    assert labels == [1 if text.label == "bad" else 0 for text in TEXTS]
    ((_, tags),) = tag_items([TaggedSentence(["cat", "sat"], ["NN", "VB"])], tokenizer, ("DT", "VB"))
    assert sorted(set(tags)) == [0, 2]


# Batches


def label_store(folder: Path, tokenizer: TextTokenizer, count: int = 40) -> TokenStore:
    texts = [
        LabeledText(f"the cat {'ate ' * (number % 9)}", ("bad", "good", "mixed")[number % 3]) for number in range(count)
    ]
    items = label_items(texts, tokenizer, ("bad", "good", "mixed"))
    return write_store(folder / "labels", items, LABEL_SIDES, "key", {"text": tokenizer.vocab_size, "label": 4})


def tag_store(folder: Path, tokenizer: TextTokenizer) -> TokenStore:
    known = label_set(SENTENCES)
    items = tag_items(SENTENCES * 10, tokenizer, known, prefix=[1])
    return write_store(folder / "tags", items, TAG_SIDES, "key", {"text": tokenizer.vocab_size, "tags": len(known) + 1})


def test_labels_are_targets_of_their_texts(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    store = label_store(tmp_path, tokenizer)
    batches: Batches[RowBatch] = LabeledBatches(store, 64, seed=1, pad_id=0)
    taken = list(LabeledBatches(store, 64, seed=1).epoch())
    found = []
    for batch in taken:
        assert batch.targets.shape == (len(batch.lengths),)
        assert ((batch.targets >= 0) == (batch.lengths > 0)).all()
        assert batch.count == int((batch.lengths > 0).sum())
        for tokens, length, label in zip(batch.tokens, batch.lengths, batch.targets, strict=True):
            if length:
                found.append((tokens[:length].tolist(), int(label)))
    assert sorted(found) == sorted((text.tolist(), int(label[0]) - 1) for text, label in store)
    assert batches.min_rows >= 1
    assert sum(part.count for batch in taken for part in batch.split(2)) == 40


def test_tags_are_targets_of_first_tokens(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    store = tag_store(tmp_path, tokenizer)
    count = 0
    for batch in LabeledBatches(store, 96, seed=1).epoch():
        assert batch.targets.shape == batch.tokens.shape
        assert (batch.targets[torch.arange(batch.tokens.shape[1]) >= batch.lengths[:, None]] == -1).all()
        assert (batch.targets[:, 0] == -1).all()
        assert batch.count == int((batch.targets >= 0).sum())
        assert sum(part.count for part in batch.split(3)) == batch.count
        count += batch.count
    assert count == 10 * sum(len(sentence.words) for sentence in SENTENCES)


def test_store_with_other_sides_is_refused(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [([1], [1])], ["source", "target"], "key", 5)
    with pytest.raises(UserError, match=r"Expected the sides .*, found \('source', 'target'\)"):
        LabeledBatches(store, 64)
