"""Tables of word vectors that do not fit into memory are refused before they are built."""

from pathlib import Path

import pytest

from regard.errors import UserError
from regard.model.before.word_vectors.config import (
    CbowConfig,
    GloveConfig,
    SkipGramConfig,
    StaticVectorsConfig,
    SubwordsConfig,
)
from regard.task.word_vectors.memory import check_tables_fit, table_bytes
from regard.train.word_vectors.glove import GloveEngine
from tests.task.small import command


@pytest.mark.parametrize(
    "config",
    [CbowConfig(vocab_size=30, width=8), SkipGramConfig(vocab_size=30, width=8, subwords=SubwordsConfig(buckets=100))],
    ids=["words", "n-grams"],
)
def test_bytes_are_those_of_the_tables(config: StaticVectorsConfig) -> None:
    assert table_bytes(config) == sum(table.nbytes for table in config.build().parameters())


def test_bytes_of_glove_are_those_of_its_tables_and_of_their_sums() -> None:
    model = GloveConfig(vocab_size=30, width=8).build()
    tables = [*model.parameters(), *GloveEngine(model).state_dict().values()]
    assert table_bytes(model.config) == sum(table.nbytes for table in tables)


def test_tables_that_do_not_fit_are_refused_with_what_to_lower() -> None:
    config = SkipGramConfig(vocab_size=1_000_000, width=300, subwords=SubwordsConfig())
    check_tables_fit(config, 4_800_000_000)
    check_tables_fit(config, 0)
    expected = (
        r"Vectors of 300 numbers for 1,000,000 words and 2,000,000 n-grams need 4\.8 GB of memory in training, and "
        r"this machine has 4\.0 GB; lower model\.width, model\.subwords\.buckets or data\.words\.vocab_size"
    )
    with pytest.raises(UserError, match=expected):
        check_tables_fit(config, 4_000_000_000)


def test_a_run_is_refused_before_its_model_is_built(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat and the dog\n" * 5, encoding="utf-8")
    done = command(
        "train", "quick-vectors", "--data", tmp_path / "text.txt", "--out", tmp_path / "run",
        "--set", "model.width=100_000", "--set", "model.subwords={buckets=100_000_000}",
    )  # fmt: skip
    assert done.code == 2
    assert "need 40.0 TB of memory" in done.err
    assert not (tmp_path / "run" / "vocabulary.tsv").exists()
