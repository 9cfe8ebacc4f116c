"""A search observer that records everything: the candidates of every step, and every layer's attention of every beam.

The recording is a tree with a node for each candidate, kept or pruned. A node's attention is computed when its token
is fed to the model, one step after it was chosen; tokens that were never fed have none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from regard.decode import Step
from regard.look.analysis.attention_maps import AttentionRecorder
from regard.look.schema import AttentionType
from regard.look.trace import check_size

OnStep = Callable[[int, list[int], float], None]
"""Called with the number of a step, the best output so far, and the log-probability of its newest token."""


class StoppedError(Exception):
    """The run was stopped on request."""


@dataclass
class StopObserver:
    """An observer that records nothing and only ends the search on request."""

    should_stop: Callable[[], bool]
    attention: bool = False

    def on_attention(self, module: nn.Module, weights: Tensor) -> None: ...

    def on_step(self, step: Step) -> None:
        if self.should_stop():
            raise StoppedError


@dataclass
class Node:
    """A candidate token of a step. `parent` is None in the first step."""

    id: int
    parent: "Node | None"
    step: int
    token: int
    total: float
    """The log-probability of the hypothesis up to this token."""
    state: Literal["active", "finished", "pruned"] = "pruned"
    cache_row: int = -1
    cache_copied: bool = False
    attention_index: int = -1

    @property
    def log_probability(self) -> float:
        """The log-probability of its own token."""
        return self.total - (0.0 if self.parent is None else self.parent.total)

    def prefix(self) -> list[int]:
        """The tokens up to and including this one."""
        tokens: list[int] = []
        node: Node | None = self
        while node is not None:
            tokens.append(node.token)
            node = node.parent
        return tokens[::-1]


@dataclass
class SearchRecorder:
    """An observer of the search for a single output."""

    model: nn.Module
    eos: int
    dtype: torch.dtype | None = None
    """The dtype of the recorded attention; None keeps the model's."""
    report_step: OnStep | None = None
    should_stop: Callable[[], bool] | None = None
    source_length: int = 0
    attention: bool = True
    nodes: list[Node] = field(default_factory=list)
    rows: dict[AttentionType, list[Tensor]] = field(default_factory=dict)
    """The attention of each node that was fed to the model, by `attention_index`.  # (layers, heads, keys)"""

    def __post_init__(self) -> None:
        self._recorder = AttentionRecorder(self.model, self.dtype, self.source_length)
        self._active: list[Node | None] | None = None
        self._finished: list[Node] = []
        self._nbytes = 0

    def on_attention(self, module: nn.Module, weights: Tensor) -> None:
        self._recorder(module, weights)

    def on_step(self, step: Step) -> None:
        if self.should_stop is not None and self.should_stop():
            raise StoppedError
        beams = step.input_tokens.shape[0]
        active = [None] * beams if self._active is None else self._active
        self._store_attention(active)
        candidates = self._add_candidates(step, active)
        parents = (
            list(range(beams))
            if step.beam_indices is None
            else [int(row) % beams for row in step.beam_indices.tolist()]
        )
        self._active = []
        for row, (parent, token) in enumerate(zip(parents, step.tokens.tolist(), strict=True)):
            node = candidates.get((parent, token))
            if node is not None and node.state == "pruned":
                node.state, node.cache_row, node.cache_copied = "active", row, parent != row
            self._active.append(node if node is not None and node.state == "active" else None)
        kept = [node for node in candidates.values() if node.state != "pruned"]
        best = max([*kept, *self._finished], key=lambda node: node.total, default=None)
        self._finished += [node for node in kept if node.state == "finished"]
        if self.report_step is not None and best is not None and best.step == step.number:
            self.report_step(step.number, best.prefix(), best.log_probability)

    def stacked(self, attention_type: AttentionType) -> Tensor:
        """The attention of all nodes that were fed to the model, padded with zeros.  # (nodes, layers, heads, keys)"""
        rows = self.rows[attention_type]
        longest = max(row.shape[-1] for row in rows)
        return torch.stack([torch.nn.functional.pad(row, (0, longest - row.shape[-1])) for row in rows])

    def path_of(self, tokens: Sequence[int]) -> list[Node]:
        """The nodes of an output, with eos if it has one."""
        children: dict[tuple[int | None, int], Node] = {
            (None if node.parent is None else node.parent.id, node.token): node for node in self.nodes
        }
        path: list[Node] = []
        for token in tokens:
            node = children.get((path[-1].id if path else None, token))
            if node is None:
                break
            path.append(node)
        return path

    def _store_attention(self, active: Sequence[Node | None]) -> None:
        """Assign the attention that was just computed to the nodes it was computed for."""
        for row, node in enumerate(active):
            if node is None:
                continue
            for attention_type, layers in self._recorder.weights.items():
                stored = self.rows.setdefault(attention_type, [])
                node.attention_index = len(stored)
                stored.append(torch.stack([weights[row, :, -1] for weights in layers]))
                self._nbytes += stored[-1].nbytes
        check_size(self._nbytes)
        self._recorder.weights.clear()

    def _add_candidates(self, step: Step, active: Sequence[Node | None]) -> dict[tuple[int, int], Node]:
        """A node for each candidate of a step, by beam and token."""
        candidates: dict[tuple[int, int], Node] = {}
        for beam, token, total in zip(*(column[0].tolist() for column in step.candidates), strict=True):
            parent = active[beam]
            if total == float("-inf") or (parent is None and self.nodes and step.number > 1):
                continue
            # A search without beams ends only with the EOS that it chose; in a beam search every EOS is a hypothesis.
            ends = token == self.eos and (step.beam_indices is not None or token == int(step.tokens[beam]))
            state: Literal["finished", "pruned"] = "finished" if ends else "pruned"
            node = Node(len(self.nodes), parent, step.number, token, total, state)
            self.nodes.append(node)
            candidates[beam, token] = node
        return candidates
