"""Mixing corpora: weights are exact, the order depends on the seed, and fingerprints depend on the content."""

import gzip
import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.text import corpus as module
from regard.data.text.corpus import Corpus, CorpusConfig, corpus_fingerprint, mix_corpora, read_corpus
from regard.data.text.pairs import Pair


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


@pytest.fixture
def mixture(tmp_path: Path) -> list[CorpusConfig]:
    return parts(tmp_path, a=(1000, 0.3), b=(200, 2.5), c=(50, 4.0))


def test_unit_weights_give_every_pair_once_in_order(tmp_path: Path) -> None:
    two = parts(tmp_path, b=(3, 1.0), a=(2, 1.0))
    assert sources(mix_corpora(two, seed=1)) == ["b0", "b1", "b2", "a0", "a1"]


def test_epoch_has_weight_times_size_pairs_of_each_source(mixture: list[CorpusConfig]) -> None:
    counts = Counter(source[0] for source in sources(mix_corpora(mixture, seed=1)))
    assert counts == {"a": 300, "b": 500, "c": 200}


def test_integer_weight_repeats_each_pair(mixture: list[CorpusConfig]) -> None:
    counts = Counter(sources(mix_corpora(mixture, seed=1)))
    assert {counts[f"c{number}"] for number in range(50)} == {4}


def test_fractional_weight_rounds_each_pairs_count(mixture: list[CorpusConfig]) -> None:
    counts = Counter(sources(mix_corpora(mixture, seed=1)))
    assert Counter(counts[f"b{number}"] for number in range(200)) == {2: 100, 3: 100}
    assert Counter(counts[f"a{number}"] for number in range(1000)) == {0: 700, 1: 300}


def test_each_pass_keeps_file_order(mixture: list[CorpusConfig]) -> None:
    numbers = [int(source[1:]) for source in sources(mix_corpora(mixture, seed=1)) if source[0] == "c"]
    assert numbers == [*range(50)] * 4


def test_mixture_is_even_from_start_to_end(mixture: list[CorpusConfig]) -> None:
    order = sources(mix_corpora(mixture, seed=1))
    for start in range(0, 1000, 200):
        fraction = sum(source[0] == "b" for source in order[start : start + 200]) / 200
        assert abs(fraction - 0.5) < 0.12  # over three standard deviations


def test_same_seed_and_epoch_give_the_same_order(mixture: list[CorpusConfig]) -> None:
    assert list(mix_corpora(mixture, seed=1, epoch=2)) == list(mix_corpora(mixture, seed=1, epoch=2))


@pytest.mark.parametrize(("seed", "epoch"), [(2, 0), (1, 1)])
def test_other_seed_or_epoch_gives_another_order_and_subset(mixture: list[CorpusConfig], seed: int, epoch: int) -> None:
    first, second = (sources(mix_corpora(mixture, *numbers)) for numbers in ((1, 0), (seed, epoch)))
    assert [source[0] for source in first] != [source[0] for source in second]
    assert Counter(first) != Counter(second)


def test_global_random_state_is_not_used(mixture: list[CorpusConfig]) -> None:
    random.seed(1)
    first = list(mix_corpora(mixture, seed=1))
    random.seed(2)
    assert list(mix_corpora(mixture, seed=1)) == first


def test_order_of_a_seed_never_changes(tmp_path: Path) -> None:
    two = parts(tmp_path, a=(4, 0.5), b=(3, 2.0))
    assert sources(mix_corpora(two, seed=7)) == ["b0", "a0", "b1", "a1", "b2", "b0", "b1", "b2"]


def test_every_pair_is_sampled_eventually(tmp_path: Path) -> None:
    half = parts(tmp_path, a=(20, 0.5))
    sampled = {source for epoch in range(20) for source in sources(mix_corpora(half, seed=1, epoch=epoch))}
    assert len(sampled) == 20


@given(size=st.integers(1, 30), weight=st.floats(0.01, 5))
def test_any_weight_gives_the_rounded_count_and_at_least_one(size: int, weight: float) -> None:
    pairs = [Pair(str(number), "") for number in range(size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_corpus", lambda _: iter(pairs))
        found = Counter(
            mix_corpora([CorpusConfig(path="x", weight=weight), CorpusConfig(path="y", weight=2.0)], seed=0)
        )
    assert sum(found.values()) == max(1, round(weight * size)) + 2 * size


def test_source_that_shrinks_while_read_is_named(tmp_path: Path) -> None:
    config = CorpusConfig(path=table(tmp_path, "a", 5000), weight=2.0)
    pairs = mix_corpora([config], seed=0)
    next(pairs)
    table(tmp_path, "a", 10)
    with pytest.raises(UserError, match=r"a\.tsv: has fewer pairs than a moment ago"):
        list(pairs)


def test_pairs_are_read_lazily(tmp_path: Path) -> None:
    endless = CorpusConfig(path=table(tmp_path, "a", 10), weight=1e6)
    assert len(list(islice(mix_corpora([endless], seed=0), 25))) == 25


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


def test_corpus_mix_equals_mix_corpora(mixture: list[CorpusConfig]) -> None:
    assert list(Corpus("all", tuple(mixture)).mix(3, 1)) == list(mix_corpora(mixture, 3, 1))


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
