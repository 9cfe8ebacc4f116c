"""Reading labeled texts from tables, JSON lines and folders; errors name the line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard import UserError
from regard.data.labels.labeled_texts import LabeledConfig, LabeledText, read_labeled

TEXTS = [LabeledText("a fine film", "good"), LabeledText("dull", "bad"), LabeledText("it is fine, and fun", "good")]


def file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def read(path: str, **settings: Any) -> list[LabeledText]:
    return list(read_labeled(LabeledConfig(path=path, **settings)))


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.tsv.gz"])
def test_table_has_texts_and_labels_in_columns(tmp_path: Path, name: str) -> None:
    path = file(tmp_path, name, "a fine film\tgood\ndull\tbad\nit is fine, and fun\tgood\n")
    assert read(path) == TEXTS


def test_table_with_other_columns_and_header(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "label\tid\tsentence\n1\t7\tyes\n0\t8\tno\n")
    assert read(path, columns=[3, 1], header=True) == [LabeledText("yes", "1"), LabeledText("no", "0")]


def test_json_lines_have_texts_and_labels_at_keys(tmp_path: Path) -> None:
    lines = [json.dumps({"sentence": "yes", "label": 1}), "", json.dumps({"sentence": "no", "label": "0"})]
    path = file(tmp_path, "a.jsonl", "\n".join(lines))
    assert read(path, keys=["sentence", "label"]) == [LabeledText("yes", "1"), LabeledText("no", "0")]


def test_folder_has_a_subfolder_per_label(tmp_path: Path) -> None:
    for label, name, text in (("good", "2.txt", "two\nlines\n"), ("good", "1.txt", "one"), ("bad", "1.txt.gz", "x")):
        (tmp_path / label).mkdir(exist_ok=True)
        file(tmp_path / label, name, text)
    assert read(str(tmp_path)) == [
        LabeledText("x", "bad"),
        LabeledText("one", "good"),
        LabeledText("two\nlines", "good"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "a\tb\nonly text\n", r"a\.tsv, line 2: found 1 column"),
        ("a.tsv", "a\tb\n \tb\n", r"a\.tsv, line 2: the label 'b' has no text"),
        ("a.tsv", "a\t \n", r"a\.tsv, line 1: the text has no label"),
        ("a.tsv", "", r"a\.tsv: there are no labeled texts in it"),
        ("a.doc", "a,b", r"a\.doc: the suffix is unknown"),
        ("a.jsonl", '{"text": "a", "label": 1', r"a\.jsonl, line 1: not a JSON object \(.*column 25\)"),
        ("a.jsonl", "[1]", r"a\.jsonl, line 1: expected an object with the key 'text', found a list"),
        ("a.jsonl", '{"txt": "a"}', r"a\.jsonl, line 1: there is no key 'text'; the keys are 'txt'"),
        ("a.jsonl", '{"text": 5, "label": 1}', r"line 1: expected a string at the key 'text', found a number"),
        ("a.jsonl", '{"text": "a", "label": 1.5}', r"line 1: expected a string or a whole number at .* found 1\.5"),
        ("a.jsonl", '{"text": "a", "label": true}', r"line 1: expected a string or a whole number at .* found True"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(file(tmp_path, name, text))


def test_folder_without_subfolders_and_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no subfolders; expected one per label"):
        read(str(tmp_path))
    with pytest.raises(UserError, match="nowhere: there is no such file"):
        read(str(tmp_path / "nowhere"))
