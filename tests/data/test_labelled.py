"""Labelled and tagged sentences: read with their labels, tags on first pieces, batches that ask for just those."""

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.labelled import (
    LABEL_SIDES,
    TAG_SIDES,
    Labelled,
    LabelledBatches,
    LabelledConfig,
    Tagged,
    check_tagged,
    encode_words,
    label_items,
    label_set,
    read_labelled,
    tag_items,
)
from regard.data.rows import RowBatch
from regard.data.store import TokenStore, write
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import TokenizerConfig, train_tokenizer
from regard.train.task import Batches

TEXTS = [Labelled("a fine film", "good"), Labelled("dull", "bad"), Labelled("it is fine, and fun", "good")]
SENTENCES = [
    Tagged(["The", "cat", "did", "n't", "eat"], ["DT", "NN", "VBD", "RB", "VB"]),
    Tagged(["(", "Kedi", ")"], ["-LRB-", "NN", "-RRB-"]),
]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_tokenizer(TokenizerConfig(kind="bpe", vocabulary=280), ["the cat ate the mouse"] * 9)


# Reading.


def file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def read(path: str, known: Sequence[str] | None = None, **settings: Any) -> list[Labelled]:
    return list(read_labelled(LabelledConfig(path=path, **settings), known))


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.tsv.gz"])
def test_a_table_has_texts_and_labels_in_columns(tmp_path: Path, name: str) -> None:
    path = file(tmp_path, name, "a fine film\tgood\ndull\tbad\nit is fine, and fun\tgood\n")
    assert read(path) == TEXTS


def test_columns_may_be_others_and_have_names(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "label\tid\tsentence\n1\t7\tyes\n0\t8\tno\n")
    assert read(path, columns=[3, 1], header=True) == [Labelled("yes", "1"), Labelled("no", "0")]


def test_json_lines_have_them_at_keys(tmp_path: Path) -> None:
    lines = [json.dumps({"sentence": "yes", "label": 1}), "", json.dumps({"sentence": "no", "label": "0"})]
    path = file(tmp_path, "a.jsonl", "\n".join(lines))
    assert read(path, keys=["sentence", "label"]) == [Labelled("yes", "1"), Labelled("no", "0")]


def test_a_folder_has_a_folder_for_each_label(tmp_path: Path) -> None:
    for label, name, text in (("good", "2.txt", "two\nlines\n"), ("good", "1.txt", "one"), ("bad", "1.txt.gz", "x")):
        (tmp_path / label).mkdir(exist_ok=True)
        file(tmp_path / label, name, text)
    assert read(str(tmp_path)) == [Labelled("x", "bad"), Labelled("one", "good"), Labelled("two\nlines", "good")]


def test_labels_are_sorted(tokenizer: TextTokenizer) -> None:
    assert label_set(TEXTS) == ("bad", "good")
    assert label_set(SENTENCES) == ("-LRB-", "-RRB-", "DT", "NN", "RB", "VB", "VBD")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "a\tb\nonly text\n", r"a\.tsv, line 2: found 1 column between tabs; columns 1 and 2 are wanted"),
        ("a.tsv", "a\tb\n \tb\n", r"a\.tsv, line 2: there is no text beside the label 'b'"),
        ("a.tsv", "a\t \n", r"a\.tsv, line 1: there is no label beside the text"),
        ("a.tsv", "a\tgod\n", r"a\.tsv, line 1: the label 'god' is unknown; known are 'good', 'b'"),
        ("a.tsv", "", r"a\.tsv: there are no labelled texts in it"),
        ("a.csv", "a,b", r"a\.csv: the name does not say what is inside"),
        ("a.jsonl", '{"text": "a", "label": 1', r"a\.jsonl, line 1: not a JSON object \(.*column 25\)"),
        ("a.jsonl", "[1]", r"a\.jsonl, line 1: expected an object with the key 'text', found \[1\]"),
        ("a.jsonl", '{"txt": "a"}', r"a\.jsonl, line 1: there is no key 'text'; the keys here are 'txt'"),
        ("a.jsonl", '{"text": 5, "label": 1}', r"line 1: expected text at the key 'text', found 5"),
        ("a.jsonl", '{"text": "a", "label": 1.5}', r"line 1: expected text or a whole number at .* found 1\.5"),
        ("a.jsonl", '{"text": "a", "label": true}', r"line 1: expected text or a whole number at .* found True"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(file(tmp_path, name, text), ["good", "b"])


def test_a_folder_without_folders_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no folders; expected one for each label"):
        read(str(tmp_path))
    with pytest.raises(UserError, match="nowhere: there is no such file"):
        read(str(tmp_path / "nowhere"))


def test_one_label_tells_nothing_apart() -> None:
    with pytest.raises(UserError, match="at least two labels to tell apart; found 'good'"):
        label_set(TEXTS[:1])


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        (["a", "b"], ["X"], r"^train, sentence 2: found 2 words and 1 tags; each word needs one"),
        ([], [], r"^train, sentence 2: found 0 words and 0 tags"),
        (["a", " "], ["X", "X"], r"^train, sentence 2: a word beside the tag 'X' is empty"),
        (["a"], ["Y"], r"^train, sentence 2: the tag 'Y' of 'a' is unknown; known are 'X'"),
    ],
)
def test_a_wrong_sentence_is_named(words: list[str], tags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(check_tagged([(["a"], ["X"]), (words, tags)], ["X"], "train, sentence"))


def test_right_sentences_come_as_they_are() -> None:
    assert list(check_tagged(iter(SENTENCES))) == SENTENCES


# Alignment.

WORDS = st.lists(st.text(st.sampled_from("aeTt.'-$5é中"), min_size=1, max_size=6), min_size=1, max_size=6)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte", "word"])
@given(words=WORDS)
def test_words_have_the_ids_of_their_text(kind: Any, words: list[str]) -> None:
    made = TOKENIZERS.setdefault(kind, train_tokenizer(TokenizerConfig(kind=kind), ["the tea at ate 55 $ t'e é"] * 9))
    ((ids, firsts),) = encode_words([words], made)
    assert ids == made.encode(" ".join(words))
    assert len(firsts) == len(words)
    if kind != "word":  # which loses what it does not know
        ends = [*firsts[1:], len(ids)]
        pieces = [made.decode(ids[first:last]) for first, last in zip(firsts, ends, strict=True)]
        assert [piece.removeprefix(" ") for piece in pieces] == words


TOKENIZERS: dict[str, TextTokenizer] = {}


def test_a_tag_stands_at_the_first_piece_of_its_word(tokenizer: TextTokenizer) -> None:
    tags = label_set(SENTENCES)
    for sentence, (ids, wanted) in zip(
        SENTENCES, tag_items(SENTENCES, tokenizer, tags, before=[1], after=[2]), strict=True
    ):
        ((pieces, firsts),) = encode_words([sentence.words], tokenizer)
        assert ids == [1, *pieces, 2]
        assert len(wanted) == len(ids)
        found = {place: tags[number - 1] for place, number in enumerate(wanted) if number}
        assert found == {first + 1: tag for first, tag in zip(firsts, sentence.tags, strict=True)}
        assert len(pieces) > len(firsts)


def test_a_word_without_tokens_is_refused() -> None:
    made = train_tokenizer(TokenizerConfig(kind="word"), ["a b"])
    with pytest.raises(UserError, match="makes nothing of the word"):
        encode_words([["a", "\u2003"]], made)


def test_a_text_is_cut_so_that_all_of_it_fits(tokenizer: TextTokenizer) -> None:
    ((ids, label),) = label_items(TEXTS[2:], tokenizer, ("bad", "good"), before=[1], after=[2], longest=6)
    assert ids == [1, *tokenizer.encode(TEXTS[2].text)[:4], 2]
    assert label == [2]


def test_an_unknown_label_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(UserError, match="The label 'good' is unknown; known are 'bad', 'fair'"):
        list(label_items(TEXTS, tokenizer, ("bad", "fair")))


# Batches.


def labels(folder: Path, tokenizer: TextTokenizer, many: int = 40) -> TokenStore:
    texts = [
        Labelled(f"the cat {'ate ' * (number % 9)}", ("bad", "good", "mixed")[number % 3]) for number in range(many)
    ]
    made = label_items(texts, tokenizer, ("bad", "good", "mixed"))
    return write(folder / "labels", made, LABEL_SIDES, "key", {"text": tokenizer.vocabulary, "label": 4})


def tags(folder: Path, tokenizer: TextTokenizer) -> TokenStore:
    known = label_set(SENTENCES)
    made = tag_items(SENTENCES * 10, tokenizer, known, before=[1])
    return write(folder / "tags", made, TAG_SIDES, "key", {"text": tokenizer.vocabulary, "tags": len(known) + 1})


def test_batches_ask_for_the_label_of_each_row(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    store = labels(tmp_path, tokenizer)
    batches: Batches[RowBatch] = LabelledBatches(store, 64, seed=1, padding=0)
    taken = list(LabelledBatches(store, 64, seed=1).epoch())
    seen = []
    for batch in taken:
        assert batch.wanted.shape == (len(batch.lengths),)
        assert ((batch.wanted >= 0) == (batch.lengths > 0)).all()
        assert batch.count == int((batch.lengths > 0).sum())
        for tokens, length, wanted in zip(batch.tokens, batch.lengths, batch.wanted, strict=True):
            if length:
                seen.append((tokens[:length].tolist(), int(wanted)))
    assert sorted(seen) == sorted((text.tolist(), int(label[0]) - 1) for text, label in store)
    assert batches.fewest_rows >= 1
    assert sum(part.count for batch in taken for part in batch.split(2)) == 40


def test_batches_ask_for_the_tag_of_each_first_piece(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    store = tags(tmp_path, tokenizer)
    seen = 0
    for batch in LabelledBatches(store, 96, seed=1).epoch():
        assert batch.wanted.shape == batch.tokens.shape
        assert (batch.wanted[torch.arange(batch.tokens.shape[1]) >= batch.lengths[:, None]] == -1).all()
        assert (batch.wanted[:, 0] == -1).all()
        assert batch.count == int((batch.wanted >= 0).sum())
        assert sum(part.count for part in batch.split(3)) == batch.count
        seen += batch.count
    assert seen == 10 * sum(len(sentence.words) for sentence in SENTENCES)


def test_labelled_batches_are_taken_up_where_they_stopped(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    store = labels(tmp_path, tokenizer)
    whole = list(itertools.islice(LabelledBatches(store, 64, seed=1).epochs(), 20))
    for taken in (0, 3, 12):
        stopped, resumed = (LabelledBatches(store, 64, seed=1) for _ in range(2))
        list(itertools.islice(stopped.epochs(), taken))
        resumed.restore(json.loads(json.dumps(stopped.state())))
        for batch, wanted in zip(resumed.epochs(), whole[taken:], strict=False):
            assert torch.equal(batch.tokens, wanted.tokens)
            assert torch.equal(batch.wanted, wanted.wanted)


def test_a_store_of_other_sides_is_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [([1], [1])], ["source", "target"], "key", 5)
    with pytest.raises(UserError, match=r"Expected the sides .*, found \('source', 'target'\)"):
        LabelledBatches(store, 64)
