"""The state of a model between decoding steps, for models that are no Transformers.

What a recurrent network or a convolution must remember has a fixed size: hidden states, the last inputs. These are
`rows`, one entry per hypothesis. What was computed from the source is `memory`, one entry per source and token, which
the hypotheses of a beam search share: they are adjacent and form groups of equal size.
"""

import torch
from torch import Tensor

from regard.errors import UserError


class RecurrentState:
    """Tensors by name: `rows` of fixed size # (rows, …), and `memory` of the source # (sources, tokens, …)."""

    def __init__(
        self,
        rows: dict[str, Tensor],
        memory: dict[str, Tensor] | None = None,
        memory_lengths: Tensor | None = None,
    ) -> None:
        self.rows = rows
        self.memory = memory or {}
        self.memory_lengths = memory_lengths  # (sources,), None if all sources are as long as the memory
        self.sources = len(next(iter(rows.values())))

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(next(iter(self.rows.values())))

    @property
    def group(self) -> int:
        """The number of rows of one source."""
        return self.count // self.sources

    def memory_mask(self, tokens: int) -> Tensor | None:
        """True where the source has a token; None if there is no padding.  # (sources, tokens)"""
        if self.memory_lengths is None:
            return None
        return torch.arange(tokens, device=self.memory_lengths.device) < self.memory_lengths[:, None]

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Make row i a copy of the old row `rows[i]`, and give group j the source of the old group `sources[j]`."""
        count = self.sources if sources is None else sources.shape[0]
        if count == 0 or rows.shape[0] % count:
            raise UserError(f"{count} sources do not divide {rows.shape[0]} rows.")
        self.rows = {name: tensor.index_select(0, rows) for name, tensor in self.rows.items()}
        if sources is not None:
            self.memory = {name: tensor.index_select(0, sources) for name, tensor in self.memory.items()}
            if self.memory_lengths is not None:
                self.memory_lengths = self.memory_lengths.index_select(0, sources)
        self.sources = count

    def reorder(self, rows: Tensor) -> None:
        """Make row i a copy of the old row `rows[i]`, each with its own source."""
        self.reorder_beams(rows, rows // self.group)

    def scatter_rows(self, sources: Tensor, other: "RecurrentState") -> None:
        """Replace these groups of rows by those of another state; groups past the last are added."""
        group = self.group
        if other.group != group:
            raise UserError(f"Groups of {other.group} rows cannot replace groups of {group}.")
        count = max(self.sources, int(sources.max()) + 1)
        rows = (sources[:, None] * group + torch.arange(group, device=sources.device)).flatten()
        self.rows = {
            name: _replace(tensor, rows, other.rows[name], count * group) for name, tensor in self.rows.items()
        }
        for name, mine in self.memory.items():
            theirs = other.memory[name]
            tokens = max(mine.shape[1], theirs.shape[1])
            self.memory[name] = _replace(_pad(mine, tokens), sources, _pad(theirs, tokens), count)
        if self.memory_lengths is not None and other.memory_lengths is not None:
            self.memory_lengths = _replace(self.memory_lengths, sources, other.memory_lengths, count)
        self.sources = count

    def clear_rows(self, sources: Tensor) -> None:
        """Rows of a fixed size need no clearing: those that are not used are computed and ignored."""

    def tighten(self) -> None:
        """There is no capacity to adapt."""

    def is_full(self) -> bool:
        return False

    def grow(self) -> None:
        """There is no capacity to raise."""

    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.nbytes for tensor in (*self.rows.values(), *self.memory.values()))

    def blend(self, active: Tensor, old: dict[str, Tensor]) -> None:
        """Give the rows that are not `active` their old values back.  active: # (rows,)"""
        self.rows = {
            name: torch.where(active.view(-1, *[1] * (tensor.dim() - 1)), tensor, old[name])
            for name, tensor in self.rows.items()
        }


def _pad(tensor: Tensor, tokens: int) -> Tensor:
    """Pad to more tokens.  (sources, fewer, …) → (sources, tokens, …)"""
    missing = tokens - tensor.shape[1]
    if missing <= 0:
        return tensor
    return torch.cat((tensor, tensor.new_zeros(tensor.shape[0], missing, *tensor.shape[2:])), dim=1)


def _replace(mine: Tensor, rows: Tensor, theirs: Tensor, count: int) -> Tensor:
    """A tensor of `count` rows, with these rows replaced."""
    if count > mine.shape[0]:
        mine = torch.cat((mine, mine.new_zeros(count - mine.shape[0], *mine.shape[1:])))
    return mine.index_copy(0, rows, theirs.to(mine))
