"""What is held out of the training data: a fixed part of it that is never trained on, whatever the task."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.text.documents import TextConfig, read_texts
from regard.task.held_out import HELD_OUT, choose_held_out, hold_out_texts, split_held_out
from tests.task.small import sentences

Example = tuple[str, str]  # text, label


def split(items: list[Example], dev_size: int = 1000) -> tuple[list[Example], list[Example], str]:
    messages: list[str] = []
    numbers = split_held_out(
        items, dev_size, "text", messages.append, text=lambda one: one[0], labels=lambda one: (one[1],)
    )
    train, held_out = ([items[number] for number in part] for part in numbers)
    return train, held_out, " ".join(messages)


def examples(count: int, labels: str = "ab") -> list[Example]:
    return [(text, labels[number % len(labels)]) for number, text in enumerate(sentences(count))]


@pytest.mark.parametrize(
    ("count", "dev_size", "expected", "message"),
    [
        (100, 1000, 5, "5 of 100 texts are held out for validation (data.dev_size)."),
        (100, 2, 2, "2 of 100 texts are held out for validation (data.dev_size)."),
        (20, 1000, 1, "1 of 20 texts is held out for validation (data.dev_size)."),
        (19, 1000, 0, "With only 19 texts, none is held out: there will be no validation scores."),
        (100, 0, 0, ""),
    ],
)
def test_a_twentieth_is_held_out(count: int, dev_size: int, expected: int, message: str) -> None:
    train, held_out, log = split(examples(count), dev_size)
    assert (len(held_out), len(train), log) == (expected, count - expected, message)


@given(st.lists(st.tuples(st.sampled_from(["a", "A b", "ab", "c", "d", "e"]), st.sampled_from("xyz")), max_size=70))
def test_held_out_texts_are_not_trained_on_and_no_label_is_lost(items: list[Example]) -> None:
    train, held_out, _ = split(items)
    texts = {text.replace(" ", "").casefold() for text, _ in held_out}
    assert texts.isdisjoint(text.replace(" ", "").casefold() for text, _ in train)
    assert 2 * len(train) >= len(items)
    assert Counter(train) + Counter(held_out) <= Counter(items)
    assert split(items)[:2] == (train, held_out)


def test_labels_are_held_out_evenly() -> None:
    """Of 95 % and 5 %, and a label that occurs once."""
    items = [(f"text {number}", "rare" if number % 20 == 0 else "usual") for number in range(400)]
    _, held_out, _ = split([*items, ("only one", "single")])
    assert Counter(label for _, label in held_out) == {"usual": 19, "rare": 1}


def test_labels_of_words_are_not_lost() -> None:
    digests = [str(number) for number in range(40)]
    labels = [("N", "V", f"only {number}") if number < 38 else ("N", "V") for number in range(40)]
    assert choose_held_out(digests, labels, 2) == [38] or choose_held_out(digests, labels, 2) == [39]


def test_copies_of_a_few_texts_are_all_trained_on() -> None:
    train, held_out, log = split([(f"text {number % 2}", "ab"[number % 2]) for number in range(60)])
    assert (len(train), held_out) == (60, [])
    assert "With only" in log or "No text is held out" in log


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_documents_are_held_out_with_their_copies(unit: str, tmp_path: Path) -> None:
    texts = [*sentences(60), *(text.upper() for text in sentences(60)[:10])]
    between = "\n" if unit == "line" else "\n\n"
    (tmp_path / "text.txt").write_text(between.join(texts))
    source = TextConfig(path=str(tmp_path / "text.txt"), unit=unit)  # type: ignore[arg-type]
    messages: list[str] = []
    left = list(hold_out_texts((source,), tmp_path / HELD_OUT, 1000, messages.append).documents())
    held_out = list(read_texts(TextConfig(path=str(tmp_path / HELD_OUT))))
    assert len(held_out) == 3
    assert set(held_out) <= set(texts)
    assert {text.casefold() for text in held_out}.isdisjoint(text.casefold() for text in left)
    assert {text.casefold() for text in [*held_out, *left]} == {text.casefold() for text in texts}
    assert messages == ["3 of 70 documents are held out for validation (data.dev_size)."]


def test_end_of_a_single_text_is_held_out(tmp_path: Path) -> None:
    text = "\n".join(sentences(150)) + "\n"
    (tmp_path / "text.txt").write_text(text)
    source = TextConfig(path=str(tmp_path / "text.txt"))
    left = "".join(hold_out_texts((source,), tmp_path / HELD_OUT, 1000, lambda message: None).documents())
    held_out = json.loads((tmp_path / HELD_OUT).read_text())["text"]
    assert left + held_out == text
    assert len(held_out) == pytest.approx(len(text) / 20, abs=1)


def test_files_of_a_folder_are_held_out_if_there_are_many(tmp_path: Path) -> None:
    for number, text in enumerate(sentences(40)):
        (tmp_path / f"{number:02d}.txt").write_text(text)
    left = hold_out_texts((TextConfig(path=str(tmp_path)),), tmp_path / HELD_OUT, 1000, lambda message: None)
    held_out = list(read_texts(TextConfig(path=str(tmp_path / HELD_OUT))))
    assert len(held_out) == 2
    assert sorted([*left.documents(), *held_out]) == sorted(sentences(40))


def test_little_text_is_trained_on_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a short text\n")
    messages: list[str] = []
    source = TextConfig(path=str(tmp_path / "text.txt"))
    assert hold_out_texts((source,), tmp_path / HELD_OUT, 1000, messages.append).sources == (source,)
    assert messages == ["With only 13 characters, none is held out: there will be no validation scores."]
    assert not (tmp_path / HELD_OUT).exists()


def test_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.txt"):
        hold_out_texts((TextConfig(path=str(tmp_path / "gone.txt")),), tmp_path / HELD_OUT, 9, lambda message: None)
