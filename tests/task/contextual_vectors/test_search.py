"""Search by vectors: exact, in blocks, whatever gives the vectors."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.errors import UserError
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.task.contextual_vectors import search
from regard.task.contextual_vectors.search import search_file
from regard.task.pipeline import Pipeline
from tests.task.contextual_vectors.test_vectors import StaticVectors
from tests.task.encoders import save_random_encoder, tokenizer
from tests.task.small import sentences, write_lines

LINES = sentences(60)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = tmp_path_factory.mktemp("model") / "run"
    text = tokenizer("character", LINES)
    return regard.load(save_random_encoder(folder, text, {"kind": "masked_lm"}, position={"kind": "rotary"}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "lines.txt", [*LINES[:30], "", *LINES[30:], LINES[3]])


def test_hits_are_those_of_a_full_comparison(encoder, file, monkeypatch):
    lines = file.read_text().splitlines()
    queries = ["red cat", "the sea"]
    cosines = encoder.sentence_vectors(queries) @ encoder.sentence_vectors(lines).T  # (queries, lines)
    cosines[:, 30] = -2  # a blank line
    for block in (1024, 7, 1):
        monkeypatch.setattr(search, "_BLOCK_LINES", block)
        result = search_file(encoder, file, queries, top=5)
        assert result.lines == 61
        for hits, row in zip(result.hits, cosines, strict=True):
            assert [hit.score for hit in hits] == pytest.approx(row.topk(5).values.tolist(), abs=1e-5)
            for hit in hits:
                assert hit.text == lines[hit.line - 1]
                assert hit.score == pytest.approx(float(row[hit.line - 1]), abs=1e-5)


def test_a_line_finds_itself_and_of_equal_lines_the_first_comes_first(encoder, file):
    (hits,) = search_file(encoder, file, [LINES[3]], top=2).hits
    assert [hit.text for hit in hits] == [LINES[3]] * 2
    assert [hit.score for hit in hits] == pytest.approx([1, 1], abs=1e-5)
    keyed = KeyedVectors(["red", "cat"], np.eye(2, dtype=np.float32))
    (hits,) = search_file(StaticVectors(keyed), file, ["red cat"], top=100).hits
    assert [(-hit.score, hit.line) for hit in hits] == sorted((-hit.score, hit.line) for hit in hits)


def test_compressed_files_are_searched(encoder, file, tmp_path):
    packed = tmp_path / "lines.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert search_file(encoder, packed, ["sun"]).hits == search_file(encoder, file, ["sun"]).hits


def test_static_vectors_skip_lines_without_known_words(file):
    keyed = KeyedVectors(["cat", "dog"], np.array([[1, 0], [0.6, 0.8]], dtype=np.float32))
    result = search_file(StaticVectors(keyed), file, ["Cat"], top=100)
    known = [line for line in file.read_text().splitlines() if "cat" in line or "dog" in line]
    assert result.lines == len(result.hits[0]) == len(known)
    assert result.skipped == 61 - len(known)
    assert {round(hit.score, 4) for hit in result.hits[0]} >= {1.0, 0.6}
    with pytest.raises(UserError, match="None of the words of the query 'zebra' has a vector"):
        search_file(StaticVectors(keyed), file, ["cat", "zebra"])


def test_files_without_anything_to_compare_are_refused(encoder, tmp_path):
    for name, content, part in (
        ("empty.txt", [], "is empty"),
        ("blank.txt", ["", " "], "only blank lines"),
    ):
        with pytest.raises(UserError, match=part):
            search_file(encoder, write_lines(tmp_path / name, content), ["cat"])
    unknown = write_lines(tmp_path / "unknown.txt", ["zebra"])
    with pytest.raises(UserError, match="none of its lines has a word with a vector"):
        search_file(StaticVectors(KeyedVectors(["cat"], np.ones((1, 2), dtype=np.float32))), unknown, ["cat"])
    with pytest.raises(UserError, match="there is no such file"):
        search_file(encoder, tmp_path / "missing.txt", ["cat"])
    with pytest.raises(UserError, match="The query is empty"):
        search_file(encoder, unknown, [" "])
    with pytest.raises(UserError, match="top must be at least 1"):
        search_file(encoder, unknown, ["cat"], top=0)


def test_long_lines_are_truncated_and_counted(tmp_path):
    text = tokenizer("character", LINES)
    position = {"kind": "learned", "max_length": 12}
    model = regard.load(save_random_encoder(tmp_path / "run", text, {"kind": "masked_lm"}, position=position))
    file = write_lines(tmp_path / "long.txt", ["red cat, and much more than that", "sun"])
    result = search_file(model, file, ["red"], top=2)
    assert (result.lines, result.truncated) == (2, 1)
    assert len(result.hits[0]) == 2
    assert search_file(model, file, ["red"], top=2).truncated == 1


def test_memory_does_not_grow_with_the_file(tmp_path):
    keyed = KeyedVectors(["cat", "dog"], torch.randn(2, 4).numpy())
    peaks = []
    for count in (3_000, 30_000):
        file = tmp_path / f"{count}.txt"
        file.write_text("".join(f"the cat and dog of line {number} in a long file\n" for number in range(count)))
        tracemalloc.start()
        search_file(StaticVectors(keyed), file, ["cat"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
