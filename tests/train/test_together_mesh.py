"""Four processes: two copies of weights that are each shared out over two; rows that do not come out even."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard import UserError
from regard.run.tensors import read_tensors
from regard.train.layout import check_division
from regard.train.settings import ParallelConfig
from regard.train.world import World
from tests.train.ranks import Translating, cut_short, run_together, settings, trained

SHARD = {"kind": "fsdp", "shard": 2}
WAYS: dict[str, Any] = {"copies of shares": {"parallel": SHARD}}
USUAL: dict[str, Any] = {"steps": 6, "validate_every": 6, "save_every": 3}


def four(world: World, folder: Path) -> None:
    for way, changes in WAYS.items():
        trained(folder / way, settings(**USUAL, **changes), world)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mesh")
    trained(place / "one", settings(**USUAL))
    run_together(four, place, size=4)
    return place


@pytest.mark.parametrize("way", WAYS)
def test_four_processes_end_with_the_weights_of_one(folder: Path, way: str) -> None:
    found, wanted = (read_tensors(folder / f"{name}.safetensors") for name in (way, "one"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)


def test_some_batch_had_fewer_parts_than_there_are_processes() -> None:
    rows = {len(batch.items) for batch in Translating().batches.epoch()}
    assert [count for count in rows if len(range(0, count, -(-count // 4))) < 4]


def test_only_one_copy_writes_its_shares(folder: Path) -> None:
    names = {path.name for path in (folder / "copies of shares" / "checkpoints" / "step-00000006").iterdir()}
    assert {name for name in names if name.startswith("model")} == {
        "model-00000.safetensors",
        "model-00001.safetensors",
    }


def test_one_process_goes_on_with_copies_of_shares(folder: Path) -> None:
    cut_short(folder / "copies of shares", folder / "then one")
    found = trained(folder / "then one", settings(**USUAL), resume=True)
    torch.testing.assert_close(found, read_tensors(folder / "one.safetensors"), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("processes", "shard"), [(4, 3), (2, 4), (6, 4)])
def test_groups_that_do_not_come_out_even_are_refused(processes: int, shard: int) -> None:
    with pytest.raises(UserError, match=f"{processes} processes cannot be divided into groups of {shard}"):
        check_division(ParallelConfig(kind="fsdp", shard=shard), processes)
