"""What training on a CPU does with the words of a batch, one behind the other, without padding.

Almost: some padding is left behind them, so that words come in few counts (`even_cells`). Where every batch had a count
of its own, each would have tensors of sizes that no batch before had, and oneDNN new code for each of its products; the
memory of a process then grows by gigabytes. What is computed of that padding is finite, and nothing flows back to it.

Each function here is differentiable. Products are those of `one_dnn.py`; what lies between them is done by the kernels
of `numba_training.py`.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast import numba_training as kernels
from regard.fast.one_dnn import plain_product
from regard.fast.team import run

_KEYS = (1 << 64) - 1


class Chance(NamedTuple):
    """How much is dropped, and what decides it: a number that is drawn for every pass, and that of the call."""

    share: float
    seed: int
    call: int

    def numbers(self) -> tuple[int, int, int, float]:
        """The limit below which a number is dropped, two keys, and what the others are multiplied by."""
        bits = (self.seed + (self.call + 1) * 0x9E3779B97F4A7C15) & _KEYS
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _KEYS
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _KEYS
        bits ^= bits >> 31
        limit = max(1, min(round(self.share * 2**32), 2**32 - 1))
        return limit, bits & 0xFFFFFFFF, bits >> 32, 1 / (1 - self.share)


_EVEN, _EVEN_SHARES = 64, 1 << 16
"""Of what packed rows and shares of attention come in multiples, where there is padding enough."""
_NOTHING_DROPPED = (0, 0, 0, 1.0)


def draw() -> int:
    """A seed from PyTorch's own source of chance."""
    return int(torch.randint(1 << 62, ()))


def even_cells(inside: Tensor) -> Tensor:
    """The numbers of cells that are `inside`, and behind them of some that are not, so that counts are even.

    inside: # (cells,)
    """
    cells = inside.nonzero()[:, 0]
    more = -len(cells) % _EVEN
    return torch.cat((cells, (~inside).nonzero()[:more, 0])) if more else cells


class Places:
    """Where words stand: in rows of a batch, padded on the right, and one behind the other.

    There are `count` of them. What is packed may have more rows: padding, behind all words.
    """

    def __init__(self, rows: int, words: int, lengths: Tensor | None) -> None:
        self.rows, self.words = rows, words
        full = torch.full((rows,), words) if lengths is None else lengths.clamp(0, words)
        self.lengths = full.to(torch.int64)  # (rows,)
        self.starts = torch.zeros(rows + 1, dtype=torch.int64)
        torch.cumsum(self.lengths, 0, out=self.starts[1:])
        self.count = int(self.starts[-1])
        self.longest = int(self.lengths.max())
        self.cells: Tensor | None = None  # (packed rows,), None if there is no padding
        if self.count < rows * words:
            self.cells = even_cells((torch.arange(words) < self.lengths[:, None]).flatten())

    def pack(self, x: Tensor) -> Tensor:
        """(rows, words, width) → (packed rows, width)"""
        flat = x.reshape(-1, x.shape[-1])
        if self.cells is None:
            return flat
        return cast(Tensor, _Pack.apply(flat, self.cells))  # type: ignore[no-untyped-call]

    def unpack(self, x: Tensor) -> Tensor:
        """(packed rows, width) → (rows, words, width), zeros for other padding"""
        if self.cells is not None:
            x = cast(Tensor, _Unpack.apply(x, self.cells, self.rows * self.words))  # type: ignore[no-untyped-call]
        return x.view(self.rows, self.words, x.shape[-1])


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, cells: Tensor) -> Tensor:
        context.save_for_backward(cells)
        context.count = x.shape[0]
        return x.index_select(0, cells)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (cells,) = context.saved_tensors
        return slope.new_zeros(context.count, slope.shape[1]).index_copy_(0, cells, slope), None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, cells: Tensor, count: int) -> Tensor:
        context.save_for_backward(cells)
        return x.new_zeros(count, x.shape[1]).index_copy_(0, cells, x)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (cells,) = context.saved_tensors
        return slope.index_select(0, cells), None, None


# Products


def weight_slope(slope: Tensor, x: Tensor) -> Tensor:
    """The gradient of a product's weight.  slope: # (rows, size); x: # (rows, width)"""
    return slope.t() @ x


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight)
        return plain_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = context.saved_tensors
        wanted = context.needs_input_grad
        slope = slope.contiguous()
        return (
            plain_product(slope, weight.t()) if wanted[0] else None,
            weight_slope(slope, x) if wanted[1] else None,
            slope.sum(dim=0) if wanted[2] else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias"""
    return cast(Tensor, _Product.apply(x.contiguous(), weight, bias))  # type: ignore[no-untyped-call]


# Dropout


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, chance: Chance) -> Tensor:
        context.chance = chance
        return _dropped(x.contiguous(), chance)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return _dropped(slope.contiguous(), context.chance), None


def _dropped(x: Tensor, chance: Chance, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    width = x.shape[-1]
    rows = x.numel() // width
    run(kernels.drop, _parts(rows), rows, width, x, out, *chance.numbers())
    return out


def drop(x: Tensor, chance: Chance | None) -> Tensor:
    """Dropout.  x: # (…, width)"""
    return x if chance is None else cast(Tensor, _Drop.apply(x, chance))  # type: ignore[no-untyped-call]


def _parts(rows: int) -> int:
    return -(-rows // kernels.ROWS)


class _Rectified(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        widen: Tensor,
        widen_bias: Tensor | None,
        narrow: Tensor,
        narrow_bias: Tensor | None,
        chance: Chance | None,
    ) -> Tensor:
        hidden = plain_product(x, widen, widen_bias, "relu")
        if chance is not None:
            _dropped(hidden, chance, hidden)
        context.save_for_backward(x, hidden, widen, narrow)
        context.gain = 1.0 if chance is None else chance.numbers()[3]
        return plain_product(hidden, narrow, narrow_bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, widen, narrow = context.saved_tensors
        wanted = context.needs_input_grad
        slope = slope.contiguous()
        back = plain_product(slope, narrow.t())
        rows, width = hidden.shape
        sums = torch.empty(_parts(rows), width)
        # What is not zero was neither cut off nor dropped.
        run(kernels.rectified_back, _parts(rows), rows, width, hidden, back, context.gain, sums)
        return (
            plain_product(back, widen.t()) if wanted[0] else None,
            weight_slope(back, x) if wanted[1] else None,
            sums.sum(dim=0) if wanted[2] else None,
            weight_slope(slope, hidden) if wanted[3] else None,
            slope.sum(dim=0) if wanted[4] else None,
            None,
        )


def feed_forward(
    x: Tensor,
    widen: Tensor,
    widen_bias: Tensor | None,
    narrow: Tensor,
    narrow_bias: Tensor | None,
    chance: Chance | None,
) -> Tensor:
    """Widened, cut off at zero, some dropped, narrowed.  x: # (rows, width)"""
    return cast(Tensor, _Rectified.apply(x, widen, widen_bias, narrow, narrow_bias, chance))  # type: ignore[no-untyped-call]


# Sum and norm


class _Join(torch.autograd.Function):
    """x + dropped change, and its norm."""

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        change: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        centred: bool,
        chance: Chance | None,
    ) -> tuple[Tensor, Tensor]:
        rows, width = x.shape
        total = x if change is None else torch.empty_like(x)
        normed, means, scales = torch.empty_like(x), torch.empty(rows), torch.empty(rows)
        numbers = _NOTHING_DROPPED if chance is None else chance.numbers()
        run(
            kernels.join, _parts(rows), rows, width, x, change, total, normed, means, scales, weight, bias, centred,
            epsilon, *numbers,
        )  # fmt: skip
        context.save_for_backward(total, means, scales, weight)
        context.facts = (change is not None, bias is not None, centred, chance)
        context.set_materialize_grads(False)
        if change is None:
            total = x.new_empty(0)
            context.mark_non_differentiable(total)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope_total: Tensor | None, slope: Tensor | None) -> tuple[Any, ...]:
        total, means, scales, weight = context.saved_tensors
        joins, shifted, centred, chance = context.facts
        rows, width = total.shape
        slope = torch.zeros_like(total) if slope is None else slope.contiguous()
        slope_total = None if slope_total is None else slope_total.contiguous()
        back = torch.empty_like(total)
        change_back = back if chance is None else torch.empty_like(total)
        sums = torch.empty(_parts(rows), 2, width)
        run(
            kernels.join_back, _parts(rows), rows, width, slope_total, slope, total, means, scales, weight, back,
            None if chance is None else change_back, sums, centred,
            *(_NOTHING_DROPPED if chance is None else chance.numbers()),
        )  # fmt: skip
        weight_slope, bias_slope = sums.sum(dim=0)
        return back, change_back if joins else None, weight_slope, bias_slope if shifted else None, None, None, None


def join(
    x: Tensor,
    change: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    *,
    centred: bool,
    chance: Chance | None,
) -> tuple[Tensor, Tensor]:
    """x with a change added, some of it dropped; and the norm of that.  x, change: # (rows, width)

    `centred` is layer normalisation, else RMS.
    """
    change = None if change is None else change.contiguous()
    total, normed = _Join.apply(x.contiguous(), change, weight, bias, epsilon, centred, chance)  # type: ignore[no-untyped-call]
    return x if change is None else total, normed


# Attention


class Shape(NamedTuple):
    """How heads lie side by side in a word's vector, and whether they see what is behind them."""

    heads: int
    key_heads: int
    size: int
    causal: bool


class _Attention(torch.autograd.Function):
    """Sentences attend. Without other words (`both`), keys and values stand behind the queries in the same rows."""

    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        both: Tensor | None,
        places: Places,
        others: Places,
        shape: Shape,
        chance: Chance | None,
    ) -> Tensor:
        offsets = torch.zeros_like(places.starts)
        torch.cumsum(places.lengths * others.lengths * shape.heads, 0, out=offsets[1:])
        shares = torch.empty(-(-int(offsets[-1]) // _EVEN_SHARES) * _EVEN_SHARES)
        out = torch.empty(query.shape[0], shape.heads * shape.size)
        out[places.count :] = 0  # padding is no sentence
        numbers = _NOTHING_DROPPED if chance is None else chance.numbers()
        given = _attention_facts(query, both, places, others, shape, offsets)
        run(kernels.attend, places.rows, *given, shares, out, *numbers)
        context.save_for_backward(query, both, shares, offsets)
        context.facts = (places, others, shape, numbers[3])
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        query, both, shares, offsets = context.saved_tensors
        places, others, shape, gain = context.facts
        query_slope = torch.empty_like(query)
        both_slope = None if both is None else torch.empty_like(both)
        query_slope[places.count :] = 0
        if both_slope is not None:
            both_slope[others.count :] = 0
        given = _attention_facts(query, both, places, others, shape, offsets)
        filled = query_slope if both_slope is None else both_slope
        run(kernels.attend_back, places.rows, *given, shares, slope.contiguous(), gain, query_slope, filled)
        return query_slope, both_slope, None, None, None, None


def _attention_facts(
    query: Tensor, both: Tensor | None, places: Places, others: Places, shape: Shape, offsets: Tensor
) -> tuple[Tensor | int, ...]:
    wide, narrow = shape.heads * shape.size, shape.key_heads * shape.size
    key_first = wide if both is None else 0
    keys = query if both is None else both
    return (
        shape.heads, shape.heads // shape.key_heads, shape.size, shape.causal, query.shape[0], keys.shape[0],
        query.shape[1], keys.shape[1], query, keys, 0, key_first, key_first + narrow,
        places.starts, others.starts, offsets,
    )  # fmt: skip


def attend_self(made: Tensor, places: Places, shape: Shape, chance: Chance | None) -> Tensor:
    """Words look at each other.  made: # (all words, query + key + value); gives (all words, heads · size)"""
    return cast(Tensor, _Attention.apply(made, None, places, places, shape, chance))  # type: ignore[no-untyped-call]


def attend_other(
    query: Tensor, both: Tensor, places: Places, others: Places, shape: Shape, chance: Chance | None
) -> Tensor:
    """Words look at those of another text.  query: # (all words, …); both: # (all other words, key + value)"""
    return cast(Tensor, _Attention.apply(query, both, places, others, shape, chance))  # type: ignore[no-untyped-call]
