"""One process alone is a world in which every question has a plain answer; batches are dealt out to many."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.data.batch import Batch, TokenBatches
from regard.train.checkpoint import random_state, restore_random_state
from regard.train.deal import Pass, check_deal, deal
from regard.train.loop import Loop
from regard.train.world import ALONE, World, join, joined_size
from tests.train.test_loop import Given, Sentences, Toy, settings


class Pretended(World):
    """One of several processes, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def batches() -> TokenBatches:
    return TokenBatches(Sentences(), 24, seed=2, shapes=4)


def dealt(rank: int, size: int, count: int, steps: int) -> list[list[Pass[Batch]]]:
    source = batches()
    stream = source.epochs()
    return [deal(source, stream, count, Pretended(rank, size)) for _ in range(steps)]


def items(passes: list[Pass[Batch]]) -> list[int]:
    return [item for one in passes if one.counted for item in one.batch.items.tolist() if item >= 0]


@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 2), (2, 1), (3, 3), (3, 2), (4, 8), (4, 6), (5, 1)])
def test_all_processes_together_take_the_batches_that_one_takes(size: int, count: int) -> None:
    steps = 2 * len(batches())
    shares = [dealt(rank, size, count, steps) for rank in range(size)]
    stream = batches().epochs()
    for step in range(steps):
        alone = [item for batch in itertools.islice(stream, count) for item in batch.items.tolist() if item >= 0]
        assert sorted(item for share in shares for item in items(share[step])) == sorted(alone)


@pytest.mark.parametrize(("size", "count"), [(2, 2), (3, 2), (5, 1)])
def test_each_process_is_at_the_same_place_in_the_data(size: int, count: int) -> None:
    places = []
    for rank in range(size):
        source = batches()
        stream = source.epochs()
        for _ in range(9):
            deal(source, stream, count, Pretended(rank, size))
        places.append(source.state())
    assert places == [places[0]] * size


def test_whole_batches_are_made_by_the_process_they_are_for_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    collate = TokenBatches._collate

    def spy(self: TokenBatches, epoch: int, number: int) -> Batch:
        made.append(number)
        return collate(self, epoch, number)

    monkeypatch.setattr(TokenBatches, "_collate", spy)
    dealt(1, 2, 2, 2)
    assert made == [1, 3]


def test_a_process_without_a_part_of_its_own_does_work_that_does_not_count() -> None:
    counted = [[one.counted for one in dealt(rank, 5, 1, 1)[0]] for rank in range(5)]
    assert [len(passes) for passes in counted] == [1] * 5
    rows = len(next(batches().epochs()).items)
    assert sum(map(sum, counted)) == -(-rows // -(-rows // 5))


def test_more_processes_than_rows_are_refused() -> None:
    fewest = batches().fewest_rows
    with pytest.raises(UserError, match=f"{fewest + 1} processes cannot share a batch of {fewest} row"):
        check_deal(batches(), settings(), Pretended(0, fewest + 1))


def test_more_processes_than_rows_may_share_out_whole_batches() -> None:
    size = batches().fewest_rows + 1
    check_deal(batches(), settings(accumulate=2 * size), Pretended(0, size))


def test_a_loop_refuses_before_it_asks_for_other_processes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="100 processes cannot share a batch"):
        Loop(Toy(), settings(), tmp_path, world=Pretended(0, 100))


def test_out_of_memory_ends_a_run_of_many_with_a_sentence(tmp_path: Path) -> None:
    def look(call: int, batch: Batch) -> None:
        raise torch.OutOfMemoryError("no more")

    loop = Loop(Toy(look=look), settings(accumulate=2), tmp_path)
    loop.world = Pretended(1, 2)
    with pytest.raises(UserError, match=r"Out of memory at step 1 in process 1\. Lower train\.tokens"):
        list(loop.steps(1))


def test_alone_nothing_more_is_asked_of_batches_than_before(tmp_path: Path) -> None:
    given = list(itertools.islice(batches().epochs(), 2))
    assert not hasattr(Given(given), "skip")
    Loop(Toy(given=given, validation=False), settings(), tmp_path).run()


def test_without_torchrun_a_process_is_alone() -> None:
    assert joined_size() == 1
    assert join(torch.device("cpu"), 1.0) is ALONE
    assert ALONE.whole(ALONE.share([1, 2, 3])) == [1, 2, 3]


def test_a_size_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE is 'two'"):
        joined_size()


def test_a_process_that_was_not_there_before_starts_random_numbers_of_its_own() -> None:
    states = random_state()
    drawn = []
    for rank in (0, 1, 2):
        restore_random_state(states, Pretended(rank, 3), seed=rank)
        drawn.append(float(torch.rand(())))
    restore_random_state(states)
    assert len(set(drawn)) == 3
    assert drawn[0] == float(torch.rand(()))


def test_alone_no_engine_of_many_processes_is_loaded(tmp_path: Path) -> None:
    """PyTorch's own optimisers load some of it, once there is one; we do not."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "import regard.cli, regard.task\n"
        "from regard.train.loop import Loop\n"
        "engines = ('fsdp', 'tensor', 'elastic', 'launcher')\n"
        "print([name for name in engines if f'torch.distributed.{name}' in sys.modules])\n"
        "from tests.train.test_loop import Toy, settings\n"
        f"Loop(Toy(), settings(), Path({str(tmp_path)!r})).run()\n"
        "import torch\n"
        "print(torch.distributed.is_initialized(), 'regard.train.together' in sys.modules)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert (found.returncode, found.stdout) == (0, "[]\nFalse False\n"), found.stderr
