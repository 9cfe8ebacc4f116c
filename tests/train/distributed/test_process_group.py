"""A single process as a group of one; the batches of a step are sharded over several."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.data.batching.token_batches import Batch, TokenBatches
from regard.train.checkpoint import restore_rng_state, rng_state
from regard.train.distributed.multi_process import explain_communication_error
from regard.train.distributed.process_group import (
    SINGLE_PROCESS,
    LostPeerError,
    ProcessGroup,
    init_process_group,
    world_size,
)
from regard.train.step import Pass, check_batch_sharding, shard_batches
from regard.train.trainer import Trainer
from tests.train.toy import FixedBatches, Sentences, Toy, settings


class FakeProcessGroup(ProcessGroup):
    """One of several processes, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def batches() -> TokenBatches:
    return TokenBatches(Sentences(), 24, seed=2, length_buckets=4)


def sharded(rank: int, size: int, count: int, steps: int) -> list[list[Pass[Batch]]]:
    source = batches()
    stream = source.epochs()
    return [shard_batches(source, stream, count, FakeProcessGroup(rank, size)) for _ in range(steps)]


def items(passes: list[Pass[Batch]]) -> list[int]:
    return [item for one in passes if one.counted for item in one.batch.items.tolist() if item >= 0]


@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 2), (2, 1), (3, 3), (3, 2), (4, 8), (4, 6), (5, 1)])
def test_all_shards_together_are_the_batches_of_one_process(size: int, count: int) -> None:
    steps = 2 * len(batches())
    shards = [sharded(rank, size, count, steps) for rank in range(size)]
    stream = batches().epochs()
    for step in range(steps):
        alone = [item for batch in itertools.islice(stream, count) for item in batch.items.tolist() if item >= 0]
        assert sorted(item for shard in shards for item in items(shard[step])) == sorted(alone)


@pytest.mark.parametrize(("size", "count"), [(2, 2), (3, 2), (5, 1)])
def test_all_processes_are_at_the_same_position_in_the_data(size: int, count: int) -> None:
    positions = []
    for rank in range(size):
        source = batches()
        stream = source.epochs()
        for _ in range(9):
            shard_batches(source, stream, count, FakeProcessGroup(rank, size))
        positions.append(source.state_dict())
    assert positions == [positions[0]] * size


def test_batches_of_other_processes_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = TokenBatches.make

    def spy(self: TokenBatches, epoch: int, number: int) -> Batch:
        made.append(number)
        return make(self, epoch, number)

    monkeypatch.setattr(TokenBatches, "make", spy)
    sharded(1, 2, 2, 2)
    assert made == [1, 3]


def test_process_without_a_part_runs_an_uncounted_pass() -> None:
    counted = [[one.counted for one in sharded(rank, 5, 1, 1)[0]] for rank in range(5)]
    assert [len(passes) for passes in counted] == [1] * 5
    rows = len(next(batches().epochs()).items)
    assert sum(map(sum, counted)) == -(-rows // -(-rows // 5))


def test_more_processes_than_rows_are_refused() -> None:
    fewest = batches().min_rows
    with pytest.raises(UserError, match=f"{fewest + 1} processes cannot split a batch of {fewest} row"):
        check_batch_sharding(batches(), settings(), FakeProcessGroup(0, fewest + 1))


def test_more_processes_than_rows_may_take_whole_batches() -> None:
    size = batches().min_rows + 1
    check_batch_sharding(batches(), settings(grad_accumulation=2 * size), FakeProcessGroup(0, size))


def test_trainer_refuses_before_it_communicates(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="100 processes cannot split a batch"):
        Trainer(Toy(), settings(), tmp_path, process_group=FakeProcessGroup(0, 100))


def test_out_of_memory_is_an_error_with_several_processes(tmp_path: Path) -> None:
    def look(call: int, batch: Batch) -> None:
        raise torch.OutOfMemoryError("no more")

    trainer = Trainer(Toy(hook=look), settings(grad_accumulation=2), tmp_path)
    trainer.process_group = trainer.splitter.process_group = FakeProcessGroup(1, 2)
    with pytest.raises(UserError, match=r"Out of memory at step 1 in process 1\. Lower train\.batch_tokens"):
        list(trainer.steps(1))


def test_single_process_never_skips_batches(tmp_path: Path) -> None:
    given = list(itertools.islice(batches().epochs(), 2))
    assert not hasattr(FixedBatches(given), "skip")
    Trainer(Toy(fixed=given, validation=False), settings(), tmp_path).run()


def test_process_without_torchrun_is_single() -> None:
    assert world_size() == 1
    assert init_process_group(torch.device("cpu"), 1.0) is SINGLE_PROCESS
    assert SINGLE_PROCESS.gather_interleaved(SINGLE_PROCESS.shard([1, 2, 3])) == [1, 2, 3]


def test_invalid_world_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE is 'two'"):
        world_size()


def test_new_process_is_seeded_differently() -> None:
    states = rng_state()
    drawn = []
    for rank in (0, 1, 2):
        restore_rng_state(states, FakeProcessGroup(rank, 3), seed=rank)
        drawn.append(float(torch.rand(())))
    restore_rng_state(states)
    assert len(set(drawn)) == 3
    assert drawn[0] == float(torch.rand(()))


def test_single_process_does_not_import_distributed_code(tmp_path: Path) -> None:
    """PyTorch's optimizers import some of it; we do not."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "import regard.cli, regard.task\n"
        "from regard.train.trainer import Trainer\n"
        "engines = ('fsdp', 'tensor', 'elastic', 'launcher')\n"
        "print([name for name in engines if f'torch.distributed.{name}' in sys.modules])\n"
        "from tests.train.toy import Toy, settings\n"
        f"Trainer(Toy(), settings(), Path({str(tmp_path)!r})).run()\n"
        "import torch\n"
        "print(torch.distributed.is_initialized(), 'regard.train.distributed.multi_process' in sys.modules)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    actual = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert (actual.returncode, actual.stdout) == (0, "[]\nFalse False\n"), actual.stderr


LOST = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711",
    "Timed out waiting 60000ms for recv operation to complete (gloo)",
    "NCCL error: remote process exited or there was a network error",
    "Broken pipe",
)
UNUSABLE = (
    "NCCL error: invalid usage\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
    "[enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth7",
)


@pytest.mark.parametrize("text", [*LOST, *UNUSABLE])
def test_communication_errors_keep_their_cause(text: str) -> None:
    explained = explain_communication_error(RuntimeError(text), 60)
    assert isinstance(explained, LostPeerError if text in LOST else UserError)
    assert text.splitlines()[-1] in str(explained)
    assert "\n" not in str(explained)


def test_other_errors_are_not_taken_for_communication_errors() -> None:
    assert explain_communication_error(RuntimeError("shapes do not match"), 60) is None
