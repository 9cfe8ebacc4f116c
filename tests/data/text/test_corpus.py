"""Corpora: sources read as one, and fingerprints that depend on the content. (Weights: batching/test_item_weights.)"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard import UserError
from regard.data.text.corpus import Corpus, CorpusConfig, corpus_fingerprint, read_corpus


def table(folder: Path, name: str, count: int) -> str:
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{name}{number}\tx\n" for number in range(count)), encoding="utf-8")
    return str(path)


def parts(folder: Path, **sizes_and_weights: tuple[int, float]) -> list[CorpusConfig]:
    return [
        CorpusConfig(path=table(folder, name, size), weight=weight)
        for name, (size, weight) in sizes_and_weights.items()
    ]


def sources(pairs: Any) -> list[str]:
    return [pair.source for pair in pairs]


@pytest.mark.parametrize("content", ["", "\ufeff"])
def test_empty_source_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"empty\.tsv: there are no sentence pairs in it"):
        list(read_corpus(CorpusConfig(path=str(path))))


def test_two_empty_files_are_named(tmp_path: Path) -> None:
    for name in ("a.en", "a.tr"):
        (tmp_path / name).touch()
    config = CorpusConfig(source=str(tmp_path / "a.en"), target=str(tmp_path / "a.tr"))
    with pytest.raises(UserError, match=r"a\.en and \S*a\.tr: there are no sentence pairs"):
        list(read_corpus(config))


def test_single_pair_is_enough(tmp_path: Path) -> None:
    assert sources(read_corpus(CorpusConfig(path=table(tmp_path, "a", 1)))) == ["a0"]


def test_columns_keys_and_suffixes_reach_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\tone\tbir\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"en": "two", "tr": "iki"}), encoding="utf-8")
    (tmp_path / "c.en").write_text("three\n", encoding="utf-8")
    (tmp_path / "c.tr").write_text("üç\n", encoding="utf-8")
    config = CorpusConfig(path=str(tmp_path), columns=(2, 3), keys=("en", "tr"), suffixes=("en", "tr"))
    assert list(read_corpus(config)) == [("one", "bir"), ("two", "iki"), ("three", "üç")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "^path: this key is required, unless source and target"),
        ({"source": "a"}, "^target: this key is required with source"),
        ({"target": "a"}, "^source: this key is required with target"),
        ({"path": "a", "source": "b", "target": "c"}, "^source: path is given too"),
        ({"path": "a", "target": "c"}, "^target: path is given too"),
        ({"path": ""}, "^path: found ''; expected"),
        ({"path": 5}, "^path: found 5; expected"),
        ({"path": "a", "weight": 0}, "^weight: found 0; expected greater than 0"),
        ({"path": "a", "weight": -1.0}, "^weight: found -1.0; expected greater than 0"),
        ({"path": "a", "weight": 1e12}, "^weight: found 1000000000000.0; expected less than or equal to 1000"),
        ({"path": "a", "weight": float("inf")}, "^weight: found inf; expected"),
        ({"path": "a", "columns": [0, 1]}, r"^columns\.0: found 0; expected greater than 0"),
        ({"path": "a", "columns": [1, 2, 3]}, "^columns: found"),
        ({"path": "a", "keys": ["en", ""]}, r"^keys\.1: found ''; expected"),
        ({"path": "a", "suffixes": ["en", "en"]}, "^suffixes: both are 'en'"),
        ({"path": "a", "wieght": 1}, "^wieght: unknown key; did you mean 'weight'"),
    ],
)
def test_config_errors_name_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CorpusConfig(**values)


def test_config_round_trips_through_json() -> None:
    config = CorpusConfig(path="a", columns=(2, 4), keys=("t.en", "t.tr"), suffixes=("en", "tr"), weight=0.5)
    assert CorpusConfig.read(json.loads(json.dumps(config.plain()))) == config


def test_read_ignores_weights(tmp_path: Path) -> None:
    corpus = Corpus("both", tuple(parts(tmp_path, b=(2, 3.0), a=(1, 0.5))))
    assert sources(corpus.read()) == ["b0", "b1", "a0"]


def test_corpus_without_sources_is_refused() -> None:
    with pytest.raises(UserError, match="The corpus 'none' is empty"):
        Corpus("none", ())


def test_fingerprint_does_not_depend_on_location(tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    first, second = (corpus_fingerprint(CorpusConfig(path=table(folder, "a", 5))) for folder in folders)
    assert first == second


def test_fingerprint_does_not_depend_on_weight(tmp_path: Path) -> None:
    path = table(tmp_path, "a", 5)
    assert corpus_fingerprint(CorpusConfig(path=path, weight=2.0)) == corpus_fingerprint(CorpusConfig(path=path))


def test_fingerprint_of_a_corpus_depends_on_weights(tmp_path: Path) -> None:
    path = table(tmp_path, "a", 5)
    first, second = (Corpus("a", (CorpusConfig(path=path, weight=weight),)).fingerprint() for weight in (1.0, 2.0))
    assert first != second


def test_content_fingerprint_ignores_weights(tmp_path: Path) -> None:
    path = table(tmp_path, "a", 5)
    plain, weighted = (Corpus("a", (CorpusConfig(path=path, weight=weight),)) for weight in (1.0, 2.0))
    assert plain.content_fingerprint() == weighted.content_fingerprint() == plain.fingerprint()


def test_fingerprint_depends_on_content_and_settings(tmp_path: Path) -> None:
    english, turkish = tmp_path / "a.en", tmp_path / "a.tr"
    english.write_text("one\n", encoding="utf-8")
    turkish.write_text("bir\n", encoding="utf-8")
    (tmp_path / "a.tsv").write_text("one\tbir\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("one\tbir\n", encoding="utf-8")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"one\tbir\n"))
    fingerprints = [
        corpus_fingerprint(config)
        for config in (
            CorpusConfig(source=str(english), target=str(turkish)),
            CorpusConfig(source=str(turkish), target=str(english)),
            CorpusConfig(source=str(english), target=str(english)),
            CorpusConfig(path=str(tmp_path / "a.tsv")),
            CorpusConfig(path=str(tmp_path / "a.jsonl")),
            CorpusConfig(path=str(tmp_path / "a.tsv.gz")),
            CorpusConfig(path=str(tmp_path / "a.tsv"), columns=(2, 1)),
            CorpusConfig(path=str(tmp_path / "a.tsv"), keys=("en", "tr")),
            CorpusConfig(path=str(tmp_path), suffixes=("en", "tr")),
        )
    ]
    english.write_text("One\n", encoding="utf-8")
    fingerprints.append(corpus_fingerprint(CorpusConfig(source=str(english), target=str(turkish))))
    assert len(set(fingerprints)) == len(fingerprints)


def test_fingerprint_is_a_sha256(tmp_path: Path) -> None:
    found = corpus_fingerprint(CorpusConfig(path=table(tmp_path, "a", 5)))
    assert len(bytes.fromhex(found)) == 32


def test_fingerprint_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.tsv: there is no such file"):
        corpus_fingerprint(CorpusConfig(path=str(tmp_path / "nowhere.tsv")))
