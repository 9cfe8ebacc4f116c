"""Bad settings and bad data for training: one sentence that names the key or the file, exit code 2, nothing written."""

from pathlib import Path

import pytest

from tests.task.encoders import write_recipe
from tests.task.small import command, pairs, write_recipe_file, write_table


def refused(recipe: Path, out: Path, *changes: str) -> str:
    """The sentence with which training is refused."""
    done = command("train", recipe, "--out", out, "--device", "cpu", *(f"--set={change}" for change in changes))
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1
    assert not out.exists()
    return done.err


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("data.train.0.weight=1e9", "weight"),
        ('data.test={mine = {path = "train.tsv", weight = 2}}', "data.test.mine.weight"),
        ("data.augment.uppercase=5", "augment.uppercase"),
        ("data.augment.target_language=Turkish", "augment.target_language"),
        ("data.augment.titlecase=0.1", "augment.titlecase"),
        ("init_from=nowhere", "nowhere"),
    ],
)
def test_setting_is_named(change: str, key: str, tmp_path: Path) -> None:
    table = write_table(tmp_path / "train.tsv", pairs(10))
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": str(table)}]})
    assert key in refused(recipe, tmp_path / "run", change)


def test_validation_set_with_swapped_columns_is_named(tmp_path: Path) -> None:
    for name, line in (("train", "{text}\t{label}\n"), ("valid", "{label}\t{text}\n")):
        lines = [line.format(text=f"a {label} film", label=label) for label in ("good", "bad")]
        (tmp_path / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    data = {"train": [{"path": "train.tsv"}], "valid": {"path": "valid.tsv"}}
    assert "valid: " in refused(write_recipe(tmp_path, "text-classification", data), tmp_path / "run")
