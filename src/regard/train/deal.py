"""Who of several processes works on what: a step's batches, dealt out.

A step is the same batches whatever the number of processes. Where their number comes out even, each process gets whole
ones, and makes only those. Else it gets its part of each.

All processes take the same number of passes, since each pass may need all of them. A pass that is there for that alone
is not `counted`: its gradient is multiplied by zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from regard.errors import UserError
from regard.train.settings import TrainConfig
from regard.train.task import AnyBatch, Batches
from regard.train.world import World


@dataclass(frozen=True)
class Pass(Generic[AnyBatch]):
    """One pass over a batch, or a part of one."""

    batch: AnyBatch
    counted: bool = True

    def split(self, parts: int) -> list["Pass[AnyBatch]"]:
        """The same in parts that fit into memory."""
        return [self] if parts == 1 else [Pass(part, self.counted) for part in self.batch.split(parts)]


def deal(batches: Batches[AnyBatch], stream: Iterator[AnyBatch], count: int, world: World) -> list[Pass[AnyBatch]]:
    """This process' share of the next `count` batches of a stream; the other processes' are passed over."""
    if count % world.size:
        cut = [next(stream).split(world.size) for _ in range(count)]
        return [Pass(parts[min(world.rank, len(parts) - 1)], world.rank < len(parts)) for parts in cut]
    mine: list[Pass[AnyBatch]] = []
    for number in range(count):
        if number % world.size == world.rank:
            mine.append(Pass(next(stream)))
        else:
            batches.skip()
    return mine


def check_deal(batches: Batches[AnyBatch], config: TrainConfig, world: World) -> None:
    """Refuse more processes than there are rows to share."""
    count, size = config.accumulate, world.size
    if count % size and batches.fewest_rows < size:
        rows = "row" if batches.fewest_rows == 1 else "rows"
        raise UserError(
            f"{size} processes cannot share a batch of {batches.fewest_rows} {rows}. Start fewer, raise train.tokens "
            f"({config.tokens}), or make train.accumulate ({count}) a multiple of {size}."
        )
