"""How a model's weights lie over the processes that train it.

`Whole`: all in one process. `Replicated` (DistributedDataParallel): all in every process, gradients averaged over them.
`Sharded` (FSDP2): each process keeps rows of every tensor, gets the others' when a block computes and lets go of them
again. The loop asks a layout for what it needs and does not ask which one it is.

The task's own model is always a plain one. Trained by `Sharded` it is a second one, on the CPU until it is needed:
validation and the end of a run fill it with the whole weights, so that decoding needs no other process.
"""

import contextlib
import copy
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.attention.heads import OtherAttention
from regard.errors import UserError
from regard.fast.swift_training import for_training, why_plain
from regard.model.block import Block
from regard.train.gradient import for_steps, in_precision
from regard.train.settings import ParallelConfig
from regard.train.shares import Cut, Rows
from regard.train.task import Forward
from regard.train.world import World


def lay_out(
    model: nn.Module,
    device: torch.device,
    precision: str,
    parallel: ParallelConfig,
    world: World,
    *,
    recompute: bool = False,
) -> "Whole":
    """The layout the settings ask for; alone they ask for nothing."""
    check_division(parallel, world.size)
    if world.size == 1:
        return Whole(model, device, precision, recompute=recompute)
    if parallel.kind == "ddp":
        return Replicated(model, device, precision, world, recompute=recompute)
    return Sharded(model, device, precision, world, parallel.shard or world.size, recompute=recompute)


def check_division(parallel: ParallelConfig, processes: int) -> None:
    """Refuse groups that do not come out even, before anything else is done."""
    if processes > 1 and processes % (parallel.shard or 1):
        raise UserError(
            f"train.parallel.shard: {processes} processes cannot be divided into groups of {parallel.shard}; choose a "
            f"number that divides {processes}, or leave it out for one group of all."
        )


class Whole:
    """All weights in this process, for itself."""

    cut: Cut | None = None
    """What knows which rows of tensors lie here; None where it is all of them."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str, *, recompute: bool = False) -> None:
        self.plain = model.to(device)
        self.module = self.plain
        """What is trained."""
        self.forward: Forward = for_steps(self.plain, precision, recompute=recompute)

    def adding(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around each pass; the `last` of a step brings the processes' gradients together."""
        return contextlib.nullcontext()

    def why_plain(self, precision: str) -> str | None:
        """What stands against steps in the model's fast form; None if they are taken in it."""
        return why_plain(self.plain, precision)

    def state(self) -> dict[str, Tensor]:
        """All the trained model is made of, as it lies here."""
        return dict(self.module.state_dict())

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take whole tensors into the trained model."""
        self.module.load_state_dict(dict(state))

    def own(self, name: str, tensor: Tensor) -> Tensor:
        """Of a whole tensor that belongs to a parameter, what lies here."""
        return tensor

    def here(self, tensor: Tensor) -> Tensor:
        """The numbers themselves that lie here."""
        return tensor

    @contextlib.contextmanager
    def at_hand(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """The plain model has the trained weights, or others that lie as they do, for as long as the block lasts."""
        if weights is None:
            yield
            return
        kept = {name: tensor.detach().clone() for name, tensor in self.state().items()}
        self.module.load_state_dict(kept | dict(weights))
        try:
            yield
        finally:
            self.module.load_state_dict(kept)

    def end(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """The plain model has the trained weights from now on, or these instead, which lie as they do."""
        if weights is not None:
            self.module.load_state_dict(self.state() | dict(weights))

    def end_with(self, weights: Mapping[str, Tensor]) -> None:
        """The plain model has these whole weights from now on."""
        self.plain.load_state_dict(dict(weights))


class Replicated(Whole):
    """All weights in every process. PyTorch averages gradients while the backward pass still runs."""

    def __init__(
        self, model: nn.Module, device: torch.device, precision: str, world: World, *, recompute: bool = False
    ) -> None:
        self.plain = self.module = model.to(device)
        inner = _Called(model, in_precision(for_training(model, recompute=recompute), precision))
        with world.watching(), warnings.catch_warnings():
            # Its successor, forward_sync_buffers, is not in PyTorch 2.11. Buffers that change do so alike in all.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
            self._wrapped = nn.parallel.DistributedDataParallel(
                inner, device_ids=[device.index] if device.type == "cuda" else None, broadcast_buffers=False
            )
        self.forward = self._wrapped

    def adding(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        quiet: contextlib.AbstractContextManager[None] = self._wrapped.no_sync()
        return contextlib.nullcontext() if last else quiet


class _Called(nn.Module):
    """A model that is called in another way than its own: in its fast form, or cast to bf16."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._forward = [forward]  # not as a part: its parameters are the model's

    def forward(self, *inputs: Any, **settings: Any) -> Tensor:
        return self._forward[0](*inputs, **settings)


class Sharded(Whole):
    """Rows of every tensor in each of `shard` processes; where there are more, each such group has its own copy.

    bf16 is a policy here: the shards are float32, what is gathered is bf16, gradients are added up in float32.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        precision: str,
        world: World,
        shard: int,
        *,
        recompute: bool = False,
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor import DTensor

        self.plain, self._device, self._sharded = model.to("cpu"), device, DTensor
        world.copy_first(list(model.state_dict().values()))
        groups = world.size // shard
        self.cut = self
        self.writes = world.rank < shard  # the other groups keep the same
        self._shard, self._place = shard, world.rank % shard
        # Keys and values are views of what the projection made; nothing changes them in place.
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(\w+\) returned a view")
        policy = MixedPrecisionPolicy()
        if precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        with world.watching():
            shape, names = ((groups, shard), ("copy", "shard")) if groups > 1 else ((shard,), ("shard",))
            mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
            module = copy.deepcopy(model)
            if recompute:
                _recompute_blocks(module)
            for part in [*_groups(module), module]:
                fully_shard(part, mesh=mesh, mp_policy=policy)
                assert isinstance(part, FSDPModule)
                # Some versions of gloo give the sum where the mean is asked for (pytorch #162338): ask for the sum.
                part.set_force_sum_reduction_for_comms(device.type != "cuda")
        assert isinstance(module, FSDPModule)
        self._wrapped = module
        self.module = module
        self.forward = module
        self._known = dict(self.module.named_parameters())

    def adding(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        self._wrapped.set_requires_gradient_sync(last)
        self._wrapped.set_is_last_backward(last)
        return contextlib.nullcontext()

    def why_plain(self, precision: str) -> str | None:
        return "weights are shared out over processes"

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, mine in self.state().items():
            self.here(mine).copy_(self._cut(mine, state[name]))

    def own(self, name: str, tensor: Tensor) -> Tensor:
        parameter = self._known.get(name)
        if parameter is None or parameter.shape != tensor.shape:
            return tensor
        shard: Any = parameter
        made: Tensor = self._sharded.from_local(
            self._cut(parameter, tensor).to(self._device, copy=True),
            shard.device_mesh,
            shard.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        return made

    def here(self, tensor: Tensor) -> Tensor:
        mine: Tensor = tensor.to_local() if isinstance(tensor, self._sharded) else tensor
        return mine

    def rows(self, tensor: Tensor) -> Rows | None:
        if not isinstance(tensor, self._sharded):
            return None
        return Rows(self.here(tensor), self._first(tensor.shape[0]), tuple(tensor.shape))

    @contextlib.contextmanager
    def at_hand(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        self.end(weights)
        try:
            yield
        finally:
            self.plain.to("cpu")

    def end(self, weights: Mapping[str, Tensor] | None = None) -> None:
        self.plain.to(self._device)
        mine = self.plain.state_dict()
        for name, tensor in (self.state() | dict(weights or {})).items():
            mine[name].copy_(self._full(tensor))

    def end_with(self, weights: Mapping[str, Tensor]) -> None:
        self.plain.to(self._device).load_state_dict(dict(weights))

    def _full(self, tensor: Tensor) -> Tensor:
        whole: Tensor = tensor.detach().full_tensor() if isinstance(tensor, self._sharded) else tensor  # type: ignore[attr-defined]
        return whole

    def _cut(self, mine: Tensor, whole: Tensor) -> Tensor:
        """The rows of a whole tensor that lie here."""
        if not isinstance(mine, self._sharded):
            return whole
        first = self._first(len(whole))
        return whole[first : first + len(self.here(mine))]

    def _first(self, rows: int) -> int:
        """PyTorch deals out rows like `torch.chunk`: as many to each as the first gets, until there are no more."""
        return min(rows, self._place * -(-rows // self._shard))


def _recompute_blocks(model: nn.Module) -> None:
    """Let each block compute its inside again on the way back, when its weights have been gathered again, too."""
    for block in model.modules():
        if isinstance(block, Block):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]


def _groups(model: nn.Module) -> list[nn.Module]:
    """What is gathered together: each block, and what makes a decoder's keys and values of the encoder's output.

    The latter is called before its block is. The rest (word vectors, last norms) is gathered for the whole pass.
    """
    sources = [module.source for module in model.modules() if isinstance(module, OtherAttention)]
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    return [*(source for source in sources if source is not None), *blocks]
