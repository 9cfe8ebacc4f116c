"""Placements: where a model's weights are during training.

`SingleDevicePlacement` (train/step.py): all in one process. `DDPPlacement` (DistributedDataParallel): all in every
process, with
gradients averaged. `FSDPPlacement` (FSDP2): each process holds a shard of every tensor, some of its rows; a block's
full weights are gathered while it computes. The trainer uses a placement's methods and never asks which one it has.

The task's model is always a plain one. For `FSDPPlacement` the trained module is a sharded copy of it, and the plain
model stays on the CPU until validation or the end of the run fill it with the full weights, so that decoding needs no
other process.
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

from regard.attention.multi_head import CrossAttentionBase
from regard.errors import UserError
from regard.fused.training import fuse_for_training
from regard.model.stack import Block
from regard.run.sharded_tensors import TensorShard
from regard.train.config import ParallelConfig, TrainConfig
from regard.train.distributed.process_group import ProcessGroup
from regard.train.step import SingleDevicePlacement, forward_in_precision
from regard.train.task import Forward


def make_placement(
    model: nn.Module, device: torch.device, config: TrainConfig, process_group: ProcessGroup
) -> "SingleDevicePlacement":
    """The placement that the settings ask for; a single process always has all weights."""
    check_shard_size(config.parallel, process_group.size)
    if process_group.size == 1:
        return SingleDevicePlacement(model, device, config)
    kind = DDPPlacement if config.parallel.kind == "ddp" else FSDPPlacement
    return kind(model, device, config, process_group)


def check_shard_size(parallel: ParallelConfig, processes: int) -> None:
    """Refuse a shard size that does not divide the number of processes, before anything else is done."""
    if processes > 1 and processes % (parallel.shard or 1):
        raise UserError(
            f"train.parallel.shard: {processes} processes cannot be divided into groups of {parallel.shard}; choose a "
            f"number that divides {processes}, or leave it out for one group of all."
        )


class DDPPlacement(SingleDevicePlacement):
    """All weights in every process. PyTorch averages gradients while the backward pass is still running."""

    def __init__(
        self, model: nn.Module, device: torch.device, config: TrainConfig, process_group: ProcessGroup
    ) -> None:
        self.model = self.module = model.to(device)
        fused = fuse_for_training(model, activation_checkpointing=config.activation_checkpointing)
        module = _WithForward(model, forward_in_precision(fused, config.precision))
        with process_group.detect_lost_peers(), warnings.catch_warnings():
            # Its successor, forward_sync_buffers, is not in PyTorch 2.11. Buffers change alike in all processes.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
            self._ddp = nn.parallel.DistributedDataParallel(
                module, device_ids=[device.index] if device.type == "cuda" else None, broadcast_buffers=False
            )
        self.forward = self._ddp

    def sync_grads(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        no_sync: contextlib.AbstractContextManager[None] = self._ddp.no_sync()
        return contextlib.nullcontext() if last else no_sync


class _WithForward(nn.Module):
    """A model with another forward pass than its own: on fused kernels, or in bfloat16."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._forward = [forward]  # in a list, so that its parameters are not registered a second time

    def forward(self, *inputs: Any, **settings: Any) -> Tensor:
        return self._forward[0](*inputs, **settings)


class FSDPPlacement(SingleDevicePlacement):
    """Every tensor sharded by rows over `parallel.shard` processes; each further group of that many holds a copy.

    bfloat16 is FSDP's policy here: shards are float32, gathered weights bfloat16, gradients are reduced in float32.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, config: TrainConfig, process_group: ProcessGroup
    ) -> None:
        from torch.distributed.tensor import DTensor

        self.model, self._device, self._sharded_type = model.to("cpu"), device, DTensor
        process_group.broadcast_tensors(list(model.state_dict().values()))
        self._shards = config.parallel.shard or process_group.size
        self._shard_rank = process_group.rank % self._shards
        self.sharding = self
        self.writes_shards = process_group.rank < self._shards  # the other groups hold copies
        with process_group.detect_lost_peers():
            copies = process_group.size // self._shards
            self._fsdp = _fully_shard(copy.deepcopy(model), device, config, copies, self._shards)
        self.module = self.forward = self._fsdp
        self._parameters = dict(self.module.named_parameters())

    def sync_grads(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        self._fsdp.set_requires_gradient_sync(last)
        self._fsdp.set_is_last_backward(last)
        return contextlib.nullcontext()

    def unfused_reason(self, precision: str) -> str | None:
        return "the weights are sharded over processes"

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            self.local(tensor).copy_(self._local_rows(tensor, state[name]))

    def shard(self, name: str, tensor: Tensor) -> Tensor:
        parameter: Any = self._parameters.get(name)
        if parameter is None or parameter.shape != tensor.shape:
            return tensor
        shard: Tensor = self._sharded_type.from_local(
            self._local_rows(parameter, tensor).to(self._device, copy=True),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        return shard

    def local(self, tensor: Tensor) -> Tensor:
        local: Tensor = tensor.to_local() if isinstance(tensor, self._sharded_type) else tensor
        return local

    def shard_of(self, tensor: Tensor) -> TensorShard | None:
        if not isinstance(tensor, self._sharded_type):
            return None
        return TensorShard(self.local(tensor), self._first_row(tensor.shape[0]), tuple(tensor.shape))

    @contextlib.contextmanager
    def full_weights(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        self.finalize(weights)
        try:
            yield
        finally:
            self.model.to("cpu")

    def finalize(self, weights: Mapping[str, Tensor] | None = None) -> None:
        self.model.to(self._device)
        plain = self.model.state_dict()
        for name, tensor in (self.state_dict() | dict(weights or {})).items():
            plain[name].copy_(self._full(tensor))

    def load_full(self, weights: Mapping[str, Tensor]) -> None:
        self.model.to(self._device).load_state_dict(dict(weights))

    def _full(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, self._sharded_type):
            return tensor
        full: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
        return full

    def _local_rows(self, sharded: Tensor, full: Tensor) -> Tensor:
        """The rows of a full tensor that this process holds."""
        if not isinstance(sharded, self._sharded_type):
            return full
        first = self._first_row(len(full))
        return full[first : first + len(self.local(sharded))]

    def _first_row(self, rows: int) -> int:
        """PyTorch shards rows like `torch.chunk`: as many to each process as to the first, until none are left."""
        return min(rows, self._shard_rank * -(-rows // self._shards))


def _fully_shard(model: nn.Module, device: torch.device, config: TrainConfig, copies: int, shards: int) -> Any:
    """Shard a model in place by FSDP2: `copies` groups of `shards` processes each hold all weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    # Keys and values are views of the projection's output; nothing changes them in place.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \([\w, ]+\) returned a view")
    policy = MixedPrecisionPolicy()
    if config.precision == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shape, names = ((copies, shards), ("copy", "shard")) if copies > 1 else ((shards,), ("shard",))
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    if config.activation_checkpointing:
        _checkpoint_blocks(model)
    for modules in [*_gathered_together(model), [model]]:
        fully_shard(modules, mesh=mesh, mp_policy=policy)
        first = modules[0]  # holds the settings of its group
        assert isinstance(first, FSDPModule)
        # Some versions of gloo sum where the mean is requested (pytorch #162338): request the sum.
        first.set_force_sum_reduction_for_comms(device.type != "cuda")
    return model


def _checkpoint_blocks(model: nn.Module) -> None:
    """Activation checkpointing of every block: recomputed in the backward pass, once its weights are gathered again."""
    for block in model.modules():
        if isinstance(block, Block):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]


def _gathered_together(model: nn.Module) -> list[list[nn.Module]]:
    """The modules whose weights are gathered together: each block, and the projections of the encoder's output to a
    decoder layer's keys and values, which are called before their block.

    Everything else (embeddings, final norms) is gathered for the whole pass.
    """
    projections = [module.kv_modules() for module in model.modules() if isinstance(module, CrossAttentionBase)]
    blocks: list[list[nn.Module]] = [[module] for module in model.modules() if isinstance(module, Block)]
    return [*(each for each in projections if each), *blocks]
