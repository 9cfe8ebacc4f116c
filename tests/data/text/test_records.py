"""Records: CSV, JSON lines, Parquet and saved datasets give the same values, and errors name file, row and column."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.labels.labeled_texts import LabeledConfig, read_labeled
from regard.data.labels.tagged_sentences import TaggedConfig, read_tagged
from regard.data.text.corpus import Corpus, CorpusConfig, corpus_fingerprint
from regard.data.text.documents import TextConfig, read_texts, text_fingerprint
from regard.data.text.records import choose_columns, column_names, read_records

Rows = Sequence[dict[str, Any]]
ROWS: Rows = [
    {"source": "The cat, the mouse.", "target": 'Say "hello"!'},
    {"source": "two\nlines", "target": "ıİ ünlü"},
    {"source": "", "target": "  spaces "},
]
PAIRS = [(row["source"], row["target"]) for row in ROWS]


def write_csv(path: Path, rows: Rows) -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def table(rows: Rows, features: dict[str, Any] | None = None) -> pyarrow.Table:
    """A table with the metadata that `datasets` writes."""
    made = pyarrow.Table.from_pylist(list(rows))
    return (
        made
        if features is None
        else made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    )


def write_parquet(path: Path, rows: Rows, features: dict[str, Any] | None = None) -> Path:
    pyarrow.parquet.write_table(table(rows, features), path, row_group_size=2)
    return path


def save_to_disk(folder: Path, rows: Rows, features: dict[str, Any] | None = None) -> Path:
    """The files that `datasets.save_to_disk` writes: Arrow streams in shards, and their order in state.json."""
    folder.mkdir()
    names = [f"data-{number:05d}-of-{len(rows):05d}.arrow" for number in range(len(rows))]
    for name, row in zip(names, rows, strict=True):
        shard = table([row], features)
        with pyarrow.ipc.new_stream(folder / name, shard.schema) as writer:
            writer.write_table(shard)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    "pairs.csv": write_csv,
    "pairs.csv.gz": write_csv,
    "pairs.jsonl": write_jsonl,
    "pairs.parquet": write_parquet,
    "saved": save_to_disk,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_pairs(name: str, tmp_path: Path) -> None:
    config = CorpusConfig(path=str(WRITERS[name](tmp_path / name, ROWS)))
    assert list(Corpus("all", (config,)).read()) == PAIRS
    assert corpus_fingerprint(config) == corpus_fingerprint(config.model_copy())


@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")), min_size=2, max_size=2),
        min_size=1,
    )
)
def test_csv_gives_any_text_back(tmp_path_factory: pytest.TempPathFactory, fields: list[list[str]]) -> None:
    rows = [{"source": left, "target": right} for left, right in fields]
    path = write_csv(tmp_path_factory.mktemp("csv") / "a.csv", rows)
    assert [values for _, values in read_records(path, ("source", "target"))] == fields


def test_arrow_file_with_a_footer_is_read(tmp_path: Path) -> None:
    made = table(ROWS)
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
        writer.write_table(made)
    assert list(Corpus("all", (CorpusConfig(path=str(tmp_path / "a.arrow")),)).read()) == PAIRS


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"id": "1", "target": "b", "source": "a"}], ("source", "target")),
        ([{"id": "1", "translation": {"en": "a", "de": "b"}}], ("translation.en", "translation.de")),
        ([{"en": "a", "de": "b"}], ("en", "de")),
        ([{"tgt": "b", "english": "a"}], ("english", "tgt")),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_usual_columns_are_found(name: str, rows: Rows, expected: tuple[str, ...], tmp_path: Path) -> None:
    path = WRITERS[f"pairs.{name[2:]}"](tmp_path / name, rows)
    assert choose_columns(path, None, {"source": ("source", "src"), "target": ("target", "tgt")}) == expected
    assert list(Corpus("all", (CorpusConfig(path=str(path)),)).read()) == [("a", "b")]


@pytest.mark.parametrize("columns", [["english", "german"], [3, 2], ["english", 2]])
@pytest.mark.parametrize("name", ["pairs.csv", "pairs.parquet", "pairs.tsv"])
def test_columns_are_chosen_by_name_or_number(name: str, columns: list[str | int], tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "pairs.tsv":
        named = any(isinstance(column, str) for column in columns)
        path.write_text(("id\tgerman\tenglish\n" if named else "") + "1\tb\ta\n")
    else:
        WRITERS[name](path, [{"id": "1", "german": "b", "english": "a"}])
    assert list(Corpus("all", (CorpusConfig(path=str(path), columns=columns),)).read()) == [("a", "b")]


def test_chosen_columns_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = str(write_csv(tmp_path / "a.csv", [{"x": "a", "source": "b", "target": "c"}]))
    configs = [CorpusConfig(path=path, columns=columns) for columns in (None, (1, 2), (2, 3), ("x", "source"))]
    assert len({corpus_fingerprint(config) for config in configs}) == len(configs)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_labeled_texts_of_records(suffix: str, tmp_path: Path) -> None:
    rows = [{"label": "good", "review": "A, B."}, {"label": "bad", "review": "C"}]
    path = WRITERS[f"pairs.{suffix}"](tmp_path / f"a.{suffix}", rows)
    assert list(read_labeled(LabeledConfig(path=str(path)))) == [("A, B.", "good"), ("C", "bad")]


def test_class_labels_have_their_names(tmp_path: Path) -> None:
    names = ["bad", "good"]
    label = {"names": names, "_type": "ClassLabel"}
    rows = [{"text": "A", "label": 1}, {"text": "B", "label": 0}]
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": label}
    expected = [("A", "good"), ("B", "bad")]
    parquet = write_parquet(tmp_path / "a.parquet", rows, features)
    assert list(read_labeled(LabeledConfig(path=str(parquet)))) == expected
    assert list(read_labeled(LabeledConfig(path=str(save_to_disk(tmp_path / "saved", rows, features))))) == expected
    unlabeled = write_parquet(tmp_path / "b.parquet", [{"text": "A", "label": -1}], features)
    with pytest.raises(UserError, match=r"b\.parquet, row 1: the column 'label' has -1"):
        list(read_labeled(LabeledConfig(path=str(unlabeled))))


@pytest.mark.parametrize("kind", ["Sequence", "List"])
def test_tagged_sentences_of_records(kind: str, tmp_path: Path) -> None:
    feature = {"feature": {"names": ["O", "PER"], "_type": "ClassLabel"}, "_type": kind}
    rows = [{"tokens": ["Ada", "came"], "ner_tags": [1, 0]}, {"tokens": ["Go"], "ner_tags": [0]}]
    expected = [(["Ada", "came"], ["PER", "O"]), (["Go"], ["O"])]
    path = write_parquet(tmp_path / "a.parquet", rows, {"ner_tags": feature})
    assert [tuple(one) for one in read_tagged(TaggedConfig(path=str(path)))] == expected
    named = [{"words": words, "tags": tags} for words, tags in expected]
    assert [
        tuple(one) for one in read_tagged(TaggedConfig(path=str(write_jsonl(tmp_path / "a.jsonl", named))))
    ] == expected
    uneven = write_jsonl(tmp_path / "b.jsonl", [{"tokens": ["a", "b"], "tags": ["X"]}])
    with pytest.raises(UserError, match=r"b\.jsonl, line 1: found 2 words and 1 tags"):
        list(read_tagged(TaggedConfig(path=str(uneven))))


@pytest.mark.parametrize("name", ["texts.csv", "texts.jsonl", "texts.parquet"])
def test_each_row_of_a_table_is_a_document(name: str, tmp_path: Path) -> None:
    texts = ["First, a line.\n\nAnd another.\n", "Second", "Third"]
    rows = [{"id": str(number), "text": text} for number, text in enumerate([*texts[:2], " ", texts[2]])]
    config = TextConfig(path=str(WRITERS[f"pairs.{name[6:]}"](tmp_path / name, rows)))
    assert list(read_texts(config)) == texts
    halves = [config.model_copy(update=part) for part in ({"end": 0.5}, {"begin": 0.5})]
    assert [text for half in halves for text in read_texts(half)] == texts
    other = config.model_copy(update={"column": "id"})
    assert list(read_texts(other)) == ["0", "1", "2", "3"]
    assert text_fingerprint(other) != text_fingerprint(config)


def test_folder_of_shards_is_read_in_order(tmp_path: Path) -> None:
    for number, row in enumerate(ROWS):
        write_parquet(tmp_path / f"train-{number:05d}-of-00003.parquet", [row])
    assert list(Corpus("all", (CorpusConfig(path=str(tmp_path)),)).read()) == PAIRS
    write_parquet(tmp_path / "test-00000-of-00001.parquet", ROWS)
    with pytest.raises(UserError, match=r"several splits.*test, train"):
        list(Corpus("all", (CorpusConfig(path=str(tmp_path)),)).read())


def test_saved_dataset_with_splits_is_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UserError, match=f"give one of its folders, such as {tmp_path / 'train'}"):
        list(read_labeled(LabeledConfig(path=str(tmp_path))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,target\na,b\nc\n", r"a\.csv, line 3: found 1 columns; the first line names 2"),
        ('source,target\n"a\nb",c\nd,"e\n', r"a\.csv, line 4: not a row"),
        ("source;target\na;b\n", r"a\.csv, line 1: .*semicolons"),
        ("a,a\nb,c\n", r"a\.csv, line 1: two columns have the name 'a'"),
        ("one,two,three\na,b,c\n", r"a\.csv: .*source.* 'one', 'two', 'three'"),
        ("source,target\n", r"a\.csv: there are no sentence pairs"),
    ],
)
def test_errors_of_csv_files_name_the_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        list(Corpus("all", (CorpusConfig(path=str(tmp_path / "a.csv")),)).read())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("source", "de"), r"a\.parquet: there is no column 'de'; the columns are 'id', 'source', 'target'"),
        ((2, 9), r"a\.parquet: there is no column 9"),
        (("source", "id"), r"a\.parquet, row 1: expected a string at the key 'id', found a number"),
        (None, r"a\.parquet, row 2: expected a string at the key 'target', found null"),
    ],
)
def test_errors_of_parquet_files_name_row_and_column(columns: Any, message: str, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"id": 1, "source": "a", "target": "b"}, {"id": 2, "source": "a"}])
    with pytest.raises(UserError, match=message):
        list(Corpus("all", (CorpusConfig(path=str(path), columns=columns),)).read())


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_damaged_file_is_an_error(name: str, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / name, ROWS)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        column_names(path)


def test_missing_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"a\.parquet: .*pip install"):
        column_names(path)
