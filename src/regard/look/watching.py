"""An observer that sees all of one search: every step with its candidates, and every layer's attention of every beam.

Of what it has seen a tree is grown: a node for each token that was looked at, kept or not. A node's own attention is
the one computed when its token was read, one step later; tokens that were never read have none here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from regard.decode import Step
from regard.look.attentions import Gathered
from regard.look.trace import check_size
from regard.look.wire import Side

Hear = Callable[[int, list[int], float], None]
"""Hears the number of a step, the best output so far, and the log-probability of its newest token."""


class StoppedError(Exception):
    """Whoever asked for this does not want it any more."""


@dataclass
class Node:
    """A token that a step could have taken. `parent` is None for those of the first step."""

    number: int
    parent: "Node | None"
    step: int
    token: int
    total: float
    state: Literal["kept", "ended", "pruned"] = "pruned"
    row: int = -1
    copied: bool = False
    attention: int = -1

    @property
    def gain(self) -> float:
        """The log-probability of its token."""
        return self.total - (0.0 if self.parent is None else self.parent.total)

    def path(self) -> list[int]:
        """The tokens up to this one."""
        tokens: list[int] = []
        node: Node | None = self
        while node is not None:
            tokens.append(node.token)
            node = node.parent
        return tokens[::-1]


@dataclass
class Watching:
    """An observer of a search for one output."""

    model: nn.Module
    end: int
    dtype: torch.dtype | None = None
    """What attention is kept in; as it comes, if None."""
    hear: Hear | None = None
    stop: Callable[[], bool] | None = None
    attention: bool = True
    nodes: list[Node] = field(default_factory=list)
    rows: dict[Side, list[Tensor]] = field(default_factory=dict)
    """The attention of each node that was read, by its number there.  # (layers, heads, keys)"""

    def __post_init__(self) -> None:
        self._coming = Gathered(self.model, self.dtype)
        self._alive: list[Node | None] | None = None
        self._ended: list[Node] = []
        self._held = 0

    def see_attention(self, module: nn.Module, weights: Tensor) -> None:
        self._coming(module, weights)

    def see(self, step: Step) -> None:
        if self.stop is not None and self.stop():
            raise StoppedError
        width = step.read.shape[0]
        alive = [None] * width if self._alive is None else self._alive
        self._keep_attention(alive)
        made = self._made(step, alive)
        places = list(range(width)) if step.rows is None else [int(row) % width for row in step.rows.tolist()]
        self._alive = []
        for row, (place, token) in enumerate(zip(places, step.tokens.tolist(), strict=True)):
            node = made.get((place, token))
            if node is not None and node.state == "pruned":
                node.state, node.row, node.copied = "kept", row, place != row
            self._alive.append(node if node is not None and node.state == "kept" else None)
        taken = [one for one in made.values() if one.state != "pruned"]
        best = max([*taken, *self._ended], key=lambda one: one.total, default=None)
        self._ended += [one for one in taken if one.state == "ended"]
        if self.hear is not None and best is not None and best.step == step.number:
            self.hear(step.number, best.path(), best.gain)

    def stacked(self, side: Side) -> Tensor:
        """The attention of all nodes that were read, zeros behind.  # (nodes, layers, heads, keys)"""
        rows = self.rows[side]
        longest = max(row.shape[-1] for row in rows)
        padded = [torch.nn.functional.pad(row, (0, longest - row.shape[-1])) for row in rows]
        return torch.stack(padded)

    def winner(self, tokens: Sequence[int]) -> list[Node]:
        """The nodes of an output, its end included if it has one."""
        children: dict[tuple[int | None, int], Node] = {
            (None if node.parent is None else node.parent.number, node.token): node for node in self.nodes
        }
        path: list[Node] = []
        for token in tokens:
            node = children.get((path[-1].number if path else None, token))
            if node is None:
                break
            path.append(node)
        return path

    def _keep_attention(self, alive: Sequence[Node | None]) -> None:
        """What was computed for the nodes that this step has read."""
        for row, node in enumerate(alive):
            if node is None:
                continue
            for side, layers in self._coming.weights.items():
                kept = self.rows.setdefault(side, [])
                node.attention = len(kept)
                kept.append(torch.stack([weights[row, :, -1] for weights in layers]))
                self._held += kept[-1].nbytes
        check_size(self._held)
        self._coming.weights.clear()

    def _made(self, step: Step, alive: Sequence[Node | None]) -> dict[tuple[int, int], Node]:
        """A node for each candidate, by its row and token."""
        made: dict[tuple[int, int], Node] = {}
        for place, token, total in zip(*(each[0].tolist() for each in step.candidates), strict=True):
            parent = alive[place]
            if total == float("-inf") or (parent is None and self.nodes and step.number > 1):
                continue
            node = Node(len(self.nodes), parent, step.number, token, total, "ended" if token == self.end else "pruned")
            self.nodes.append(node)
            made[place, token] = node
        return made
