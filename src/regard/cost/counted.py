"""The cost of any model that is no Transformer, counted by running it on the meta device, where tensors have no memory.

The formulas of `forward.py` know the Transformer's parts. A model of `model/before/`, or one that a user registers, has
parts of its own, but it can be run: the matmuls and convolutions it dispatches have FLOPs (PyTorch's own formulas,
`torch.utils.flop_counter`), and autograd says what it saves for backward.

A recurrent network takes a step for every token, so that a long text would take seconds to count. But everything
counted here is a polynomial: affine in the rows of a batch, and of degree 2 at most in the lengths of source and target
(attention, which looks at all pairs, has degree 2). A few short batches therefore determine it, and one more, longer,
must agree with it. A model that is no polynomial, such as one whose window is wider than the short texts, is tried with
longer ones, and finally run at the length that was asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from regard.cost.op_cost import OpCost
from regard.cost.workload import BatchShape
from regard.model import build_meta, count_parameters
from regard.model.before.base import Seq2SeqConfig, SequenceConfig
from regard.model.before.recurrent_layers import RecurrentLayer

KERNELS_PER_SUBLAYER = 8
"""About as many as a sublayer of a Transformer launches: norm, four matmuls, attention, dropout, residual sum."""
_SHORTEST = (2, 8, 32)
"""Where the lengths begin that a polynomial is fitted to: the first that agrees with a longer text is used."""


class Counts(NamedTuple):
    """What was counted in one pass over a batch; all of it is summed over the batch."""

    flops: int = 0
    saved: int = 0
    dropout_masks: int = 0
    float32_values: int = 0
    kernels: int = 0
    """Kernels that the forward pass launches; a recurrent layer, one fused kernel, counts as one for each token."""


class PassCounts(NamedTuple):
    """A forward pass in its parts, and one decoding step after it."""

    encode: Counts
    decode: Counts
    step: Counts
    """One more token, from the state after the target."""
    state: Counts
    """What this state holds: its values as `saved`, integers among them as `float32_values`."""


@dataclass(frozen=True)
class CountedCost:
    """A forward pass of some shape."""

    source: OpCost
    target: OpCost
    kernels: int


def counted_cost(config: SequenceConfig, batch: BatchShape) -> CountedCost:
    """The cost of a batch from ids to logits, which are not counted as saved: that depends on the loss."""
    passed, pairs = _evaluate(config, batch.batch_size, batch.source_length, batch.target_length)
    source = _op_cost(passed.encode, pairs.encode.flops)
    target = _op_cost(passed.decode, pairs.decode.flops)
    return CountedCost(source, target, passed.encode.kernels + passed.decode.kernels)


def counted_step(config: SequenceConfig, length: int, source_length: int) -> OpCost:
    """One new token of one row, as the last of `length`; inference, so nothing is saved for backward."""
    passed, _ = _evaluate(config, 1, source_length, max(1, length - 1))
    return OpCost(flops=passed.step.flops)


def state_cost(config: SequenceConfig, length: int, source_length: int) -> OpCost:
    """The values that the decoding state of one row holds after `length` tokens."""
    passed, _ = _evaluate(config, 1, source_length, length)
    return OpCost(saved=passed.state.saved, float32_values=passed.state.float32_values)


@lru_cache(maxsize=64)
def output_width(config: SequenceConfig) -> int:
    """The width of the vectors that the logits are computed from: that of the widest matrix over the vocabulary."""
    matrices = (each for each in build_meta(config).parameters() if each.dim() == 2)
    return max((each.shape[1] for each in matrices if each.shape[0] == config.vocab_size), default=0)


def count_pass(config: SequenceConfig, rows: int, source_length: int, target_length: int) -> PassCounts:
    """Count one pass by running it at exactly this shape."""
    return _count(_meta_model(config), isinstance(config, Seq2SeqConfig), rows, source_length, target_length)


# Polynomials

_Monomial = Callable[[int, int, int], int]
_MONOMIALS: tuple[_Monomial, ...] = (
    lambda rows, source, target: 1,
    lambda rows, source, target: source,
    lambda rows, source, target: target,
    lambda rows, source, target: source * source,
    lambda rows, source, target: source * target,
    lambda rows, source, target: target * target,
)
_PAIRS = slice(3, 6)
"""The monomials of degree 2: what attention adds."""


class _Polynomial(NamedTuple):
    """For each count, its coefficients: of `_MONOMIALS`, and of these times the number of rows."""

    coefficients: tuple[tuple[Fraction, ...], ...]

    def __call__(self, rows: int, source: int, target: int, terms: slice = slice(None)) -> PassCounts:
        monomials = [each(rows, source, target) for each in _MONOMIALS]
        values = [monomial * factor for factor in (1, rows) for monomial in monomials]
        chosen = [index % len(_MONOMIALS) in range(len(_MONOMIALS))[terms] for index in range(len(values))]
        kept = [value if keep else 0 for value, keep in zip(values, chosen, strict=True)]
        totals = [sum(c * v for c, v in zip(row, kept, strict=True)) for row in self.coefficients]
        return _unflatten([round(total) for total in totals])


def _evaluate(config: SequenceConfig, rows: int, source: int, target: int) -> tuple[PassCounts, PassCounts]:
    """A pass of this shape, and the part of it that grows with pairs of tokens."""
    fitted = _fit(config)
    if fitted is not None:
        return fitted(rows, source, target), fitted(rows, source, target, _PAIRS)
    return _count_cached(config, rows, source, target), _NOTHING


@lru_cache(maxsize=64)
def _fit(config: SequenceConfig) -> _Polynomial | None:
    """The polynomial that all counts of a model follow; None if there is none."""
    model = _meta_model(config)
    if count_parameters(model) == 0:  # a table: it is counted rather than trained, and looked up rather than multiplied
        return _rule_of_thumb(0)
    try:
        return _fit_model(model, isinstance(config, Seq2SeqConfig))
    except (RuntimeError, NotImplementedError):  # it looks at values, which tensors on the meta device have not
        return _rule_of_thumb(2 * count_parameters(model))


def _rule_of_thumb(flops_per_token: int) -> _Polynomial:
    """2 FLOPs per parameter and token (Kaplan et al. 2020, §2.1), and nothing saved, as nothing is known of it."""
    size = len(_MONOMIALS)
    zeros = (Fraction(0),) * (2 * size)
    rows = [zeros] * (len(PassCounts._fields) * len(Counts._fields))
    per_row = [Fraction(0)] * (2 * size)
    per_row[size + 2] = Fraction(flops_per_token)
    rows[len(Counts._fields)] = tuple(per_row)
    per_row[size + 2], per_row[size] = Fraction(0), Fraction(flops_per_token)
    rows[2 * len(Counts._fields)] = tuple(per_row)
    return _Polynomial(tuple(rows))


def _fit_model(model: nn.Module, has_source: bool) -> _Polynomial | None:
    limit, source_limit = (getattr(model, name, None) for name in ("max_positions", "max_source_positions"))
    for first in _SHORTEST:
        longest = 2 * first + 4
        if max(longest + 1 - (limit or longest + 1), longest - (source_limit or longest)) > 0:
            return None
        fitted = _fit_from(model, has_source, first)
        check = (3, longest if has_source else 0, longest - 1)
        if fitted(*check) == _count(model, has_source, *check):
            return fitted
    return None


def _fit_from(model: nn.Module, has_source: bool, first: int) -> _Polynomial:
    """The polynomial through batches whose texts have `first` to `first` + 2 tokens."""
    offsets = [(s, t) for s in range(3) for t in range(3) if s + t <= 2] if has_source else [(0, 0), (0, 1), (0, 2)]
    terms = range(len(_MONOMIALS)) if has_source else (0, 2, 5)
    shapes = [(rows, first + s if has_source else 0, first + t) for rows in (2, 3) for s, t in offsets]
    rows_of_system = []
    for shape in shapes:
        monomials = [_MONOMIALS[term](*shape) for term in terms]
        values = _flatten(_count(model, has_source, *shape))
        rows_of_system.append([Fraction(v) for v in (*monomials, *(shape[0] * each for each in monomials), *values)])
    solved = _solve(rows_of_system)
    size = len(_MONOMIALS)
    columns = [*terms, *(size + term for term in terms)]
    coefficients = []
    for solution in zip(*solved, strict=True):
        full = [Fraction(0)] * (2 * size)
        for column, value in zip(columns, solution, strict=True):
            full[column] = value
        coefficients.append(tuple(full))
    return _Polynomial(tuple(coefficients))


def _solve(system: list[list[Fraction]]) -> list[list[Fraction]]:
    """Solve a square system exactly (Gauss–Jordan); each row holds its coefficients, then its right-hand sides."""
    size = len(system)
    for column in range(size):
        pivot = next(index for index in range(column, size) if system[index][column])
        system[column], system[pivot] = system[pivot], system[column]
        head = system[column][column]
        system[column] = [value / head for value in system[column]]
        for index, row in enumerate(system):
            if index != column and row[column]:
                factor = row[column]
                system[index] = [a - factor * b for a, b in zip(row, system[column], strict=True)]
    return [row[size:] for row in system]


def _flatten(passed: PassCounts) -> list[int]:
    return [value for counts in passed for value in counts]


def _unflatten(values: list[int]) -> PassCounts:
    size = len(Counts._fields)
    return PassCounts(*(Counts(*values[start : start + size]) for start in range(0, len(values), size)))


_NOTHING = PassCounts(Counts(), Counts(), Counts(), Counts())


def _op_cost(counts: Counts, pair_flops: int) -> OpCost:
    return OpCost(counts.flops, pair_flops, counts.saved, counts.dropout_masks, counts.float32_values)


# Counting


def _meta_model(config: SequenceConfig) -> nn.Module:
    model = build_meta(config)
    assert isinstance(model, nn.Module)
    return model.train()


@lru_cache(maxsize=64)
def _count_cached(config: SequenceConfig, rows: int, source: int, target: int) -> PassCounts:
    return count_pass(config, rows, source, target)


def _count(model: Any, has_source: bool, rows: int, source: int, target: int) -> PassCounts:
    def ids(length: int) -> Tensor:
        return torch.zeros(rows, length, dtype=torch.long, device="meta")

    with torch.device("meta"), _recurrent_layers_watched(model) as counter:
        with counter.part() as encode:
            state = model.encode(ids(source)) if has_source else model.initial_state(rows)
        with counter.part() as decode:
            model.decode(ids(target), state)
        held = _tensors_of(state)
        with torch.no_grad(), counter.part() as step:
            model.decode(ids(1), state)
    return PassCounts(encode(), decode(), step(), held)


def _tensors_of(state: Any) -> Counts:
    tensors = (*state.rows.values(), *state.memory.values())
    values = sum(each.numel() for each in tensors if each.is_floating_point())
    other = sum(each.nbytes for each in tensors if not each.is_floating_point())
    return Counts(saved=values, float32_values=-(-other // 4))


class _Counter(TorchDispatchMode):
    """Counts the FLOPs and kernels of what is dispatched, and knows which tensors are weights or dropout masks."""

    def __init__(self, weights: Iterator[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.kernels = 0
        self.in_recurrent_layer = False
        self._known = {each.untyped_storage()._cdata for each in weights}
        self._masks: set[int] = set()
        self._alive: list[Any] = []  # storages whose addresses must not be reused

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        if not (self.in_recurrent_layer or function.is_view):
            self.kernels += 1
        if function._overloadpacket in (torch.ops.aten.bernoulli_, torch.ops.aten.bernoulli):
            for tensor in tree_leaves(result):
                self._masks.add(self._keep(tensor))
        return result

    def _keep(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        return int(storage._cdata)

    @contextmanager
    def part(self) -> Iterator[Callable[[], Counts]]:
        """Gives what is counted inside the context, each storage that autograd saves once."""
        flops, kernels = self.flops, self.kernels
        saved, masks, other = 0, 0, 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal saved, masks, other
            key = self._keep(tensor)
            if key in self._known:
                return tensor
            self._known.add(key)
            nbytes = tensor.untyped_storage().nbytes()
            if key in self._masks:
                masks += nbytes // tensor.element_size()
            elif tensor.is_floating_point():
                saved += nbytes // tensor.element_size()
            else:
                other += nbytes
            return tensor

        counts = Counts()
        with self, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield lambda: counts
        counts = Counts(self.flops - flops, saved, masks, -(-other // 4), self.kernels - kernels)


@contextmanager
def _recurrent_layers_watched(model: nn.Module) -> Iterator[_Counter]:
    """A counter to which a recurrent layer, which is unrolled on the meta device, is one kernel for each token."""
    counter = _Counter(iter((*model.parameters(), *model.buffers())))

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        counter.in_recurrent_layer = True

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        counter.in_recurrent_layer = False
        counter.kernels += args[0].shape[1]

    layers = [module for module in model.modules() if isinstance(module, RecurrentLayer)]
    hooks = [
        hook
        for layer in layers
        for hook in (layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave))
    ]
    try:
        yield counter
    finally:
        for hook in hooks:
            hook.remove()
