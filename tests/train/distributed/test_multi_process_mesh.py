"""Four processes: two copies of the weights, each sharded over two; batches that split unevenly."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard import UserError
from regard.run.tensors import read_tensors
from regard.train.config import ParallelConfig
from regard.train.distributed.parallel import check_shard_size
from regard.train.distributed.process_group import ProcessGroup
from tests.train.distributed.ranks import Translating, copy_without_last_checkpoint, run_in_processes, settings, trained

pytestmark = pytest.mark.start_early(7)

SHARD = {"kind": "fsdp", "shard": 2}
SETUPS: dict[str, Any] = {"sharded copies": {"parallel": SHARD}}
USUAL: dict[str, Any] = {"steps": 6, "validate_every": 6, "save_every": 3}


def train_in_four_processes(process_group: ProcessGroup, folder: Path) -> None:
    for setup, changes in SETUPS.items():
        trained(folder / setup, settings(**USUAL, **changes), process_group)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mesh")
    trained(path / "one", settings(**USUAL))
    run_in_processes(train_in_four_processes, path, size=4)
    return path


@pytest.mark.parametrize("setup", SETUPS)
def test_four_processes_equal_one(folder: Path, setup: str) -> None:
    actual, expected = (read_tensors(folder / f"{name}.safetensors") for name in (setup, "one"))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-8)


def test_some_batch_has_fewer_parts_than_processes() -> None:
    rows = {len(batch.items) for batch in Translating().batches.epoch()}
    assert [count for count in rows if len(range(0, count, -(-count // 4))) < 4]


def test_only_one_copy_writes_its_shards(folder: Path) -> None:
    names = {path.name for path in (folder / "sharded copies" / "checkpoints" / "step-00000006").iterdir()}
    assert {name for name in names if name.startswith("model")} == {
        "model-00000.safetensors",
        "model-00001.safetensors",
    }


def test_one_process_resumes_from_sharded_copies(folder: Path) -> None:
    copy_without_last_checkpoint(folder / "sharded copies", folder / "then one")
    actual = trained(folder / "then one", settings(**USUAL), resume=True)
    torch.testing.assert_close(actual, read_tensors(folder / "one.safetensors"), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("processes", "shard"), [(4, 3), (2, 4), (6, 4)])
def test_shard_size_must_divide_the_processes(processes: int, shard: int) -> None:
    with pytest.raises(UserError, match=f"{processes} processes cannot be divided into groups of {shard}"):
        check_shard_size(ParallelConfig(kind="fsdp", shard=shard), processes)
