"""Files of word vectors in every format: what gensim wrote is read, what is written is read again, large or small."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from regard.errors import UserError
from regard.interop import word_vectors as files
from regard.interop.word_vectors import detection, opening
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors

FIXTURES = Path(__file__).parents[2] / "fixtures" / "word_vectors"
GENSIM = json.loads((FIXTURES / "gensim.json").read_text("utf-8"))


@pytest.fixture
def keyed() -> KeyedVectors:
    """Vectors whose numbers need all digits, and words with letters of several bytes."""
    vectors = np.random.default_rng(3).standard_normal((50, 7), dtype=np.float32) ** 9
    words = ["a", "é", "語", "1984", "don't"] + [f"w{row}" for row in range(45)]
    return KeyedVectors(words, vectors, counts=np.arange(50, 0, -1))


def saved(folder: Path, data: bytes, name: str = "vectors") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        files.open_word_vectors(path)
    text = str(error.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", ["gensim.txt", "gensim.bin", "gensim.glove.txt"])
def test_gensims_files_give_gensims_answers(name: str) -> None:
    found = files.open_word_vectors(FIXTURES / name)
    assert found.words == GENSIM["words"]
    for ours, theirs in (
        (found.near("king", 6), GENSIM["near_king"]),
        (found.analogy("the", "of", "king", 3), GENSIM["analogy"]),
    ):
        assert [tuple(one) for one in ours] == [(word, pytest.approx(cosine, abs=1e-6)) for word, cosine in theirs]
    assert found.odd(["the", "of", "king", "queen"])[0].word == GENSIM["odd"]
    assert found.similarity("king", "queen") == pytest.approx(GENSIM["similarity"])


@pytest.mark.parametrize("target", list(files.VECTOR_FORMATS))
@pytest.mark.parametrize("large", [False, True])
def test_written_is_read_without_a_changed_bit(
    target: str, large: bool, keyed: KeyedVectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(opening, "LARGE", 0 if large else 1 << 26)
    out = tmp_path / "vectors"
    assert files.export_word_vectors(keyed, target, out) == f"exported 50 word vectors of dimension 7 as {target}."
    assert detection.detect_format(out) == {"word2vec-binary": "binary", "safetensors": "safetensors"}.get(
        target, "text"
    )
    notes: list[str] = []
    for _ in range(2):  # the second time from the cache
        found = files.open_word_vectors(out, notes.append)
        assert list(found.words) == keyed.words
        assert found.vectors.tobytes() == keyed.vectors.tobytes()
    assert len(notes) == (large and target != "safetensors")  # converted once
    assert files.word_vector_dimension(out) == 7
    assert {word: row.tolist() for word, row in files.read_word_vectors(out, {"é", "w9"})[0].items()} == {
        word: keyed[word].tolist() for word in ("é", "w9")
    }


def test_changed_file_is_converted_again(keyed: KeyedVectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(opening, "LARGE", 0)
    path = saved(tmp_path, b"a 1 2\nb 3 4\n")
    assert len(files.open_word_vectors(path, lambda message: None)) == 2
    path.write_bytes(b"a 1 2\nc 3 5\n")
    os.utime(path, (1, 1))
    assert files.open_word_vectors(path, lambda message: None).words[1] == "c"


def test_safetensors_file_is_mapped_and_keeps_counts(keyed: KeyedVectors, tmp_path: Path) -> None:
    files.export_word_vectors(keyed, "safetensors", tmp_path / "v.safetensors")
    stored = load_file(tmp_path / "v.safetensors")  # the library reads it
    assert stored["words"].tobytes().decode().split("\n") == keyed.words
    found = files.open_word_vectors(tmp_path / "v.safetensors")
    assert not found.vectors.flags.owndata
    assert found.counts is not None
    assert found.counts.tolist() == list(range(50, 0, -1))


def test_tensor_without_words_is_read_with_the_vocabulary_beside_it(tmp_path: Path) -> None:
    save_file({"embed.weight": np.eye(2, dtype=np.float16)}, tmp_path / "model.safetensors")
    assert "has no words, only vectors" in refusal(tmp_path / "model.safetensors")
    (tmp_path / "vocabulary.tsv").write_text("cat\t5\ndog\t3\n")
    assert files.open_word_vectors(tmp_path / "model.safetensors")["dog"].tolist() == [0, 1]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_compressed_text_is_written_and_read(keyed: KeyedVectors, suffix: str, tmp_path: Path) -> None:
    files.export_word_vectors(keyed, "glove", tmp_path / f"v.txt{suffix}")
    np.testing.assert_array_equal(files.open_word_vectors(tmp_path / f"v.txt{suffix}").vectors, keyed.vectors)


def binary(*rows: tuple[bytes, tuple[float, ...]], header: bytes = b"2 3\n", end: bytes = b"\n") -> bytes:
    return header + b"".join(word + b" " + struct.pack("<3f", *numbers) + end for word, numbers in rows)


ROWS = ((b"cat", (1.0, 2.0, 0.5)), (b"dog", (0.25, 0.0, -1.0)))


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_binary_rows_may_end_with_a_line_break(end: bytes, tmp_path: Path) -> None:
    found = files.open_word_vectors(saved(tmp_path, binary(*ROWS, end=end)))
    assert (found.words, found.vectors.tolist()) == (["cat", "dog"], [list(numbers) for _, numbers in ROWS])


def test_first_vector_of_a_repeated_word_counts_and_it_is_said(tmp_path: Path) -> None:
    for data in (b"3 2\na 1 2\nb 3 4\na 5 6\n", b"a 1 2\nb 3 4\na 5 6\n"):
        notes: list[str] = []
        found = files.open_word_vectors(saved(tmp_path, data), notes.append)
        assert (found.words, found.vectors.tolist()) == (["a", "b"], [[1, 2], [3, 4]])
        assert "1 words stand there more than once" in notes[0]
    found = files.open_word_vectors(saved(tmp_path, binary(*ROWS, ROWS[0], header=b"3 3\n")), notes.append)
    assert found.words == ["cat", "dog"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (binary(*ROWS)[:-9], "byte 1: the header announces 2 words of dimension 3, which take at least 32 bytes"),
        (binary((b"elephant", (1, 2, 3)), (b"a", (0, 0, 0)))[:-4], "byte 26: the file ends inside vector 2 of 2"),
        (binary(ROWS[0], (b"dog", (float("nan"), 0, 0))), "byte 21: the vector of 'dog' has a number that is not"),
        (binary(ROWS[0], (b"", (0, 0, 0)), end=b"") + b"  ", "byte 21: vector 2 of 2 has no word"),
        (binary(ROWS[0], (b"d\xff", (0, 0, 0))), "byte 21: the word of vector 2 of 2 is not UTF-8"),
        (binary(*ROWS, ROWS[0]), "goes on after the 2 vectors that its header announces"),
        (binary(*ROWS, header=b"9999999999 3\n"), "byte 1: the header announces 9,999,999,999 words"),
        (b"3 2\na 1 2\nb 3 4\n", "line 1: the header announces 3 words, but there are 2"),
        (b"1 2\na 1 2\nb 3 4\n", "line 1: the header announces 1 words, but there are 2"),
        (b"a 1 2\nb 3 4 5\n", "line 2: found more than the 2 numbers"),
        (b"a 1 2\nb 3 1e39\n", "line 2: found '1e39', which is not a finite number"),
        (b"a 1 2\n 3 4\n", "line 2: the line begins with a space"),
        (b"a 1 2\nb\xe9 3 4\n", "line 2: byte 2 of the line (0xe9) is not UTF-8"),
        (b"0 5\n", "has no vectors"),
        (b"\x80\x04\x95", "is a pickle"),
        (struct.pack("<ii", 793712314, 12), "is a model of fastText"),
        (b"PK\x03\x04xxxx", "is a zip archive"),
        (b"\x40\0\0\0\0\0\0\0{\"vectors\":", "is damaged or truncated"),
    ],
)  # fmt: skip
def test_malformed_file_is_refused_by_line_or_byte(data: bytes, problem: str, tmp_path: Path) -> None:
    assert problem in refusal(saved(tmp_path, data))


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"words": np.zeros(3, np.uint8)}, "expected a tensor 'vectors'"),
        ({"vectors": np.ones((2, 2), np.float32), "words": np.frombuffer(b"a", np.uint8)}, "2 vectors, but 1 words"),
        ({"vectors": np.ones((2, 2), np.float32), "words": np.frombuffer(b"a\na", np.uint8)}, "'a' stands there twice"),
        ({"vectors": np.full((1, 2), np.nan, np.float32), "words": np.frombuffer(b"a", np.uint8)}, "not finite"),
        ({"vectors": np.ones((1, 2), np.int32), "words": np.frombuffer(b"a", np.uint8)}, "expected a tensor 'vectors'"),
        ({"vectors": np.ones((1, 2), np.float32), "words": np.frombuffer(b"\xff", np.uint8)}, "byte 1 of the tensor"),
    ],
)
def test_malformed_tensors_are_refused(tensors: dict[str, Any], problem: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "v.safetensors")
    assert problem in refusal(tmp_path / "v.safetensors")


def test_word_with_a_space_is_exported_to_safetensors_only(tmp_path: Path) -> None:
    keyed = KeyedVectors(["New York", "b"], np.ones((2, 2), np.float32), name="cities.txt")
    for target in files.VECTOR_FORMATS:
        out = tmp_path / target
        if target == "safetensors":
            files.export_word_vectors(keyed, target, out)
            assert files.open_word_vectors(out).words == ["New York", "b"]
        else:
            with pytest.raises(UserError, match=r"'New York' has a space in it.*export to safetensors"):
                files.export_word_vectors(keyed, target, out)
            assert not out.exists()


def test_existing_file_is_not_replaced(keyed: KeyedVectors, tmp_path: Path) -> None:
    path = saved(tmp_path, b"mine")
    with pytest.raises(UserError, match="exists already"):
        files.export_word_vectors(keyed, "glove", path)
    assert path.read_bytes() == b"mine"
