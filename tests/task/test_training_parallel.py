"""How several processes share the work is no part of what a recipe gives."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from regard import UserError
from regard.task import train
from regard.task.training import with_parallel
from tests.task.small import Heard, pairs, quick_runs, small_recipe, write_table


@pytest.fixture(autouse=True)
def quick(tmp_path: Path) -> Iterator[None]:
    with quick_runs(tmp_path / "cache"):
        yield


def test_a_run_goes_on_with_weights_kept_in_another_way(tmp_path: Path) -> None:
    recipe = small_recipe(write_table(tmp_path / "train.tsv", pairs(30)), "train.steps=2")
    train(recipe, tmp_path / "run")
    heard = Heard()
    train(with_parallel(recipe, "fsdp", 2), tmp_path / "run", resume=True, listener=heard)
    assert heard.said == [f"{tmp_path / 'run'}: this run is finished already."]


def test_flags_change_what_the_recipe_says() -> None:
    recipe = small_recipe(Path("unused.tsv"), 'train.parallel={kind = "fsdp", shard = 4, timeout = 5.0}')
    assert with_parallel(recipe, None, None) == recipe
    assert with_parallel(recipe, None, 2).train.parallel.plain() == {"kind": "fsdp", "shard": 2, "timeout": 5.0}
    assert with_parallel(recipe, "ddp", None).train.parallel.plain() == {"kind": "ddp", "shard": None, "timeout": 5.0}


def test_groups_that_do_not_come_out_even_are_refused_before_anything_starts() -> None:
    recipe = small_recipe(Path("unused.tsv"))
    with pytest.raises(UserError, match="6 processes cannot be divided into groups of 4"):
        with_parallel(recipe, "fsdp", 4, processes=6)
