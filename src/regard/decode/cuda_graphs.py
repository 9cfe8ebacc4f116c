"""Search with CUDA graphs: each decoding step is captured once and then replayed.

On a GPU a step of a small model takes less time than launching its kernels. So a complete step (the model, the choice
of tokens, reordering the beams) is captured as a CUDA graph, which is then launched with one call. A graph reads and
writes the same addresses every time: it can be used by any search of the same shape, whose state and strategy are first
copied into its tensors. Whether all slots are finished is checked only every few steps, so that the device never waits.

Finished slots are not dropped during the search: a step costs a GPU about the same with fewer of them, and a graph has
a fixed batch size. On other devices the same code runs without graphs, which is how it is tested.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.decode.strategy import Hypothesis, SearchStrategy, SlottedStrategy

_STEPS_PER_CHECK = 8
"""Steps between two checks whether all slots are finished."""
_MAX_GRAPHS = 16
"""The maximum number of unused graphs kept per model."""


class GraphableState(Protocol):
    """A decoder state whose tensors keep their addresses, so that steps on it can be captured."""

    @property
    def signature(self) -> Hashable:
        """States with the same signature can replace each other."""
        ...

    def copy_from(self, other: Self) -> None:
        """Copy the contents of another state with the same signature, in place."""
        ...

    def unshare_from(self, other: Self) -> None:
        """Clone the tensors that are also another state's."""
        ...

    def advance(self) -> None:
        """Count one more token in every row, as a step does; a replayed graph cannot do it."""
        ...

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None: ...


class GraphableModel(Protocol):
    """A model whose `step` changes a state in place and never waits for the device."""

    supports_cuda_graphs: bool
    graph_pool: GraphPool | None

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


State = TypeVar("State", bound=GraphableState)


class GraphedStep(Generic[State]):
    """The decoding step of one search, on tensors that keep their addresses."""

    def __init__(self, model: GraphableModel, state: State, strategy: SlottedStrategy, tokens: Tensor) -> None:
        self.model, self.state, self.strategy = model, state, strategy
        clones = (tensor.clone(memory_format=torch.contiguous_format) for tensor in strategy.tensors())
        strategy.set_tensors(clones)
        self.tokens = tokens.clone()
        self.finished = strategy.finished().clone()
        self.graph: Any = None
        self._warmed_up = False

    def load(self, state: Any, strategy: SlottedStrategy, tokens: Tensor) -> None:
        """Continue with another search of the same shape, or with this one after it was changed from outside."""
        self.state.copy_from(state)
        for mine, theirs in zip(self.strategy.tensors(), strategy.tensors(), strict=True):
            if mine is not theirs:
                mine.copy_(theirs)
        self.strategy.steps_taken = strategy.steps_taken
        self.tokens.copy_(tokens)

    def detach(self) -> tuple[State, SlottedStrategy, Tensor]:
        """State, strategy and tokens as they are now, which can be changed without affecting the graph."""
        return copy.copy(self.state), self.strategy.copy(), self.tokens

    def run(self) -> None:
        """Take one step in every slot: eagerly the first time, captured the second time, replayed from then on."""
        if self.graph is not None:
            self.state.advance()
            self.strategy.steps_taken += 1
            self.graph.replay()
        elif self._warmed_up and self.tokens.is_cuda:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._run_eagerly()
            self.graph = graph
            graph.replay()
        else:
            self._run_eagerly()
            self._warmed_up = True

    def _run_eagerly(self) -> None:
        buffers = self.strategy.tensors()
        logits, self.state = self.model.step(self.tokens[:, None], self.state)
        choice = self.strategy.choose(logits[:, -1])
        for buffer, tensor in zip(buffers, self.strategy.tensors(), strict=True):
            if tensor is not buffer:
                buffer.copy_(tensor)
        self.strategy.set_tensors(iter(buffers))
        if choice.beam_indices is not None:
            self.state.reorder_beams(choice.beam_indices)
        self.tokens = _fixed_address(choice.tokens, buffers, self.tokens)
        self.finished = _fixed_address(self.strategy.finished(), buffers, self.finished)


class GraphPool:
    """Captured steps that no search is using, by their shape. Threads may share it."""

    def __init__(self, max_graphs: int = _MAX_GRAPHS) -> None:
        self.max_graphs = max_graphs
        self._unused: OrderedDict[tuple[Any, ...], GraphedStep[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self, model: Any, state: Any, strategy: SlottedStrategy, tokens: Tensor) -> GraphedStep[Any]:
        """A step for this search: one of its shape that was captured before, or a new one."""
        with self._lock:
            step = self._unused.pop(_shape(state, strategy), None)
        if step is None:
            return GraphedStep(model, state, strategy, tokens)
        step.load(state, strategy, tokens)
        return step

    def update(
        self, step: GraphedStep[Any] | None, model: Any, state: Any, strategy: SlottedStrategy, tokens: Tensor
    ) -> GraphedStep[Any]:
        """The step for a search whose rows have changed: the same one, or another if the shape has changed."""
        if step is not None:
            if _shape(step.state, step.strategy) == _shape(state, strategy):
                step.load(state, strategy, tokens)
                return step
            state.unshare_from(step.state)
            self.release(step)
        return self.acquire(model, state, strategy, tokens)

    def release(self, step: GraphedStep[Any]) -> None:
        """Return a step to the pool, for other searches."""
        with self._lock:
            self._unused[_shape(step.state, step.strategy)] = step
            while len(self._unused) > self.max_graphs:
                self._unused.popitem(last=False)


def graph_pool_for(model: Any, strategy: SearchStrategy) -> GraphPool | None:
    """The model's graph pool, or None if its steps with this strategy cannot be captured."""
    if not getattr(model, "supports_cuda_graphs", False):
        return None
    if not isinstance(strategy, SlottedStrategy) or strategy.graph_key() is None:
        return None
    if model.graph_pool is None:
        model.graph_pool = GraphPool()
    pool: GraphPool = model.graph_pool
    return pool


def graph_batch_size(model: Any, slots: int) -> int:
    """The number of slots to decode with; rounded up to one of few sizes if steps are captured, for reuse."""
    if not getattr(model, "supports_cuda_graphs", False):
        return slots
    multiple = 1 << max(0, slots.bit_length() - 3)
    return -(-slots // multiple) * multiple


@torch.inference_mode()
def search_with_graphs(
    pool: GraphPool, model: Any, state: Any, tokens: Tensor, strategy: SlottedStrategy
) -> list[list[Hypothesis]]:
    """The same as `search`, with captured steps. The state already has one row per beam.

    tokens: # (slots · beam_size,)
    """
    step = pool.acquire(model, state, strategy, tokens)
    for number in range(1, strategy.max_steps + 1):
        if step.strategy.is_full:
            state, larger, tokens = step.detach()
            larger.grow()
            step = pool.update(step, model, state, larger, tokens)
        step.run()
        if number % _STEPS_PER_CHECK == 0 and bool(step.finished.all()):
            break
    results = step.strategy.all_results()
    pool.release(step)
    return results


def _fixed_address(tensor: Tensor, buffers: Sequence[Tensor], own: Tensor) -> Tensor:
    """The tensor itself if it is one of the strategy's buffers, else a copy of it in our own tensor."""
    if any(tensor.data_ptr() == buffer.data_ptr() for buffer in buffers):
        return tensor
    return own.copy_(tensor)


def _shape(state: Any, strategy: SlottedStrategy) -> tuple[Any, ...]:
    tensors = tuple((tensor.shape, tensor.dtype) for tensor in strategy.tensors())
    return state.signature, strategy.graph_key(), tensors
