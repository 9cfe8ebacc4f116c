"""Word vectors as text files: what word2vec and GloVe write is read, and anything else is refused by file and line."""

import gzip
from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.interop.word_vectors import read_word_vectors, word_vector_dimension, write_word_vectors

GLOVE = "the 0.1 -0.2 3e-1\nof 1 2 3\n"


def saved(folder: Path, text: str) -> Path:
    (folder / "vectors.txt").write_text(text, encoding="utf-8")
    return folder / "vectors.txt"


@pytest.mark.parametrize(
    "text",
    [
        GLOVE,
        f"2 3\n{GLOVE}",
        GLOVE.replace("\n", " \n"),  # word2vec.c ends each line with a space
        GLOVE.replace("\n", "\r\n"),
        GLOVE.replace(" ", "\t"),
        f"{GLOVE}the 9 9 9\n",  # the first vector of a word counts
        f"\n{GLOVE}\n",
    ],
)
def test_both_formats_are_read(tmp_path: Path, text: str) -> None:
    vectors, dimension = read_word_vectors(saved(tmp_path, text))
    assert dimension == 3
    assert {word: vector.tolist() for word, vector in vectors.items()} == {
        "the": pytest.approx([0.1, -0.2, 0.3]),
        "of": [1, 2, 3],
    }


def test_only_wanted_words_are_kept(tmp_path: Path) -> None:
    vectors, _ = read_word_vectors(saved(tmp_path, GLOVE), {"of", "cat"})
    assert list(vectors) == ["of"]


def test_words_may_have_spaces_and_be_numbers(tmp_path: Path) -> None:
    vectors, dimension = read_word_vectors(saved(tmp_path, f"{GLOVE}. . . 1 2 3\n1984 4 5 6\n"))
    assert (vectors[". . ."].tolist(), vectors["1984"].tolist(), dimension) == ([1, 2, 3], [4, 5, 6], 3)


def test_compressed_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt.gz").write_bytes(gzip.compress(GLOVE.encode()))
    assert word_vector_dimension(tmp_path / "vectors.txt.gz") == 3


def test_written_vectors_are_read_again(tmp_path: Path) -> None:
    words, vectors = ["a", "é", "cat"], torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    write_word_vectors(tmp_path / "new" / "vectors.txt", words, vectors)
    found, dimension = read_word_vectors(tmp_path / "new" / "vectors.txt")
    assert (list(found), dimension) == (words, 5)
    torch.testing.assert_close(torch.stack(list(found.values())), vectors, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("the\n", "line 1: found 'the'; expected a word and its numbers"),
        ("the cat\n", "line 1: found 'cat', which is not a finite number"),
        (f"{GLOVE}cat 1 2,5 3\n", "line 3: found '2,5', which is not a finite number"),
        (f"{GLOVE}cat 1 nan 3\n", "line 3: found 'nan', which is not a finite number"),
        (f"{GLOVE}cat 1 2\n", "line 3: found 2 numbers after the word, but the first vector has 3"),
        ("2 3\nthe 1 2\n", "line 2: found 2 numbers after the word, but the first vector has 3"),
    ],
)
def test_error_names_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    path = saved(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_word_vectors(path)
    assert str(error.value).startswith(str(path))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vectors\.txt: there is no such file"):
        read_word_vectors(tmp_path / "vectors.txt")
