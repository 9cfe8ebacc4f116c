"""The cost of any model that is no Transformer, counted by running it on the meta device, where tensors have no memory.

The formulas of `forward.py` know the Transformer's parts. A model of `model/before/`, or one that a user registers, has
parts of its own, but it can be run: the matmuls and convolutions it dispatches have FLOPs (PyTorch's own formulas,
`torch.utils.flop_counter`), and autograd says what it saves for backward.

A recurrent network takes a step for every token, so that a long text would take seconds to count. But everything
counted here is a polynomial: affine in the rows of a batch, and of degree 2 at most in the lengths of source and target
(attention, which looks at all pairs, has degree 2). A few short batches therefore determine it, and one more, longer,
must agree with it. Where it does not, as with a window that is wider than the short texts, longer ones are tried. A
model without such a loop, or without such a polynomial, is run at the shape that was asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from regard.cost.expression import Expression, symbol
from regard.cost.interpolation import ROWS, SOURCE, TARGET, interpolate
from regard.cost.op_cost import OpCost
from regard.cost.workload import BatchShape
from regard.model import build_meta, count_parameters
from regard.model.before.base import Seq2SeqConfig, SequenceConfig
from regard.model.before.recurrent.layers import RecurrentLayer

KERNELS_PER_SUBLAYER = 8
"""About as many as a sublayer of a Transformer launches: norm, four matmuls, attention, dropout, residual sum."""
_SHORTEST = (2, 8, 32)
"""Where the lengths begin that a polynomial is fitted to: the first that agrees with a longer text is used."""


class Counts(NamedTuple):
    """What was counted in one pass over a batch; all of it is summed over the batch."""

    flops: int = 0
    attention_flops: int = 0
    """Of these, those of matmuls of activations with activations: QKᵀ and weights × V."""
    saved: int = 0
    dropout_masks: int = 0
    other_bytes: int = 0
    """Of what is saved but is no floating-point number: token ids, masks."""
    kernels: int = 0
    """Kernels that the forward pass launches; a recurrent layer, one fused kernel, counts as one for each token."""


class PassCounts(NamedTuple):
    """A forward pass in its parts, and one decoding step after it."""

    encode: Counts
    decode: Counts
    step: Counts
    """One more token, from the state after the target."""
    state: Counts
    """What this state holds: its values as `saved`, integers among them as `other_bytes`."""


@dataclass(frozen=True)
class CountedCost:
    """A forward pass of some shape."""

    source: OpCost
    target: OpCost
    kernels: int


def counted_cost(config: SequenceConfig, batch: BatchShape) -> CountedCost:
    """The cost of a batch from ids to logits, which are not counted as saved: that depends on the loss."""
    passed = _evaluate(config, batch.batch_size, batch.source_length, batch.target_length)
    kernels = passed.encode.kernels + passed.decode.kernels
    return CountedCost(_op_cost(passed.encode), _op_cost(passed.decode), kernels)


def counted_step(config: SequenceConfig, length: int, source_length: int) -> OpCost:
    """One new token of one row, as the last of `length`; inference, so nothing is saved for backward."""
    return _op_cost(_evaluate(config, 1, source_length, max(1, length - 1)).step)


def state_cost(config: SequenceConfig, length: int, source_length: int) -> OpCost:
    """The values that the decoding state of one row holds after `length` tokens."""
    return _op_cost(_evaluate(config, 1, source_length, length).state)


@lru_cache(maxsize=64)
def output_width(config: SequenceConfig) -> int:
    """The width of the vectors that the logits are computed from: that of the widest matrix over the vocabulary."""
    matrices = (each for each in build_meta(config).parameters() if each.dim() == 2)
    return max((each.shape[1] for each in matrices if each.shape[0] == config.vocab_size), default=0)


def count_pass(config: SequenceConfig, rows: int, source_length: int, target_length: int) -> PassCounts:
    """Count one pass by running it at exactly this shape."""
    return _count(_meta_model(config), isinstance(config, Seq2SeqConfig), rows, source_length, target_length)


# From counts of short texts to those of long ones


def _evaluate(config: SequenceConfig, rows: int, source: int, target: int) -> PassCounts:
    """A pass of this shape, with texts as long as the model can take."""
    fitted = _fit(config)
    if fitted is None:
        return _count_cached(config, rows, source, target)
    return _unflatten(_at(fitted, rows, source, target))


@lru_cache(maxsize=64)
def _fit(config: SequenceConfig) -> tuple[Expression, ...] | None:
    """The polynomials that the counts of a model follow; None if there are none."""
    model = _meta_model(config)
    if count_parameters(model) == 0:  # a table: it is counted rather than trained, and looked up rather than multiplied
        return _rule_of_thumb(0)
    try:
        return _fit_model(model, isinstance(config, Seq2SeqConfig))
    except (RuntimeError, NotImplementedError):  # it looks at values, which tensors on the meta device have not
        return _rule_of_thumb(2 * count_parameters(model))


def _rule_of_thumb(flops_per_token: int) -> tuple[Expression, ...]:
    """2 FLOPs per parameter and token (Kaplan et al. 2020, §2.1), and nothing saved, as nothing is known of it."""
    found = [Expression()] * len(_flatten(_NOTHING))
    decode, step = (PassCounts._fields.index(name) * len(Counts._fields) for name in ("decode", "step"))
    found[decode] = symbol(ROWS) * symbol(TARGET) * flops_per_token
    found[step] = symbol(ROWS) * flops_per_token
    return tuple(found)


def _fit_model(model: nn.Module, has_source: bool) -> tuple[Expression, ...] | None:
    limits = [limit for limit in (_limit(model), _limit(model, "max_source_positions")) if limit is not None]
    short, longer = (_count(model, has_source, 2, length if has_source else 0, length) for length in (2, 4))
    if (short.encode.kernels, short.decode.kernels) == (longer.encode.kernels, longer.decode.kernels):
        return None  # no loop over tokens: a long text takes no longer to count than a short one
    for first in _SHORTEST:
        longest = 2 * first + 4
        if limits and longest >= min(limits):
            return None
        fitted = interpolate(lambda *shape: _flatten(_count(model, has_source, *shape)), first, has_source)
        check = (3, longest if has_source else 0, longest - 1)
        if _at(fitted, *check) == _flatten(_count(model, has_source, *check)):
            return fitted
    return None


def _at(fitted: tuple[Expression, ...], rows: int, source: int, target: int) -> list[int]:
    values = {ROWS: rows, SOURCE: source, TARGET: target}
    return [each(values) for each in fitted]


def _limit(model: nn.Module, name: str = "max_positions") -> int | None:
    limit: int | None = getattr(model, name, None)
    return limit


def _flatten(passed: PassCounts) -> list[int]:
    return [value for counts in passed for value in counts]


def _unflatten(values: list[int]) -> PassCounts:
    size = len(Counts._fields)
    return PassCounts(*(Counts(*values[start : start + size]) for start in range(0, len(values), size)))


_NOTHING = PassCounts(Counts(), Counts(), Counts(), Counts())


def _op_cost(counts: Counts) -> OpCost:
    float32_values = -(-counts.other_bytes // 4)
    return OpCost(counts.flops, counts.attention_flops, counts.saved, counts.dropout_masks, float32_values)


# Counting


def _meta_model(config: SequenceConfig) -> nn.Module:
    model = build_meta(config)
    assert isinstance(model, nn.Module)
    return model.train()


@lru_cache(maxsize=1024)
def _count_cached(config: SequenceConfig, rows: int, source: int, target: int) -> PassCounts:
    return count_pass(config, rows, source, target)


def _count(model: Any, has_source: bool, rows: int, source: int, target: int) -> PassCounts:
    limit = _limit(model)
    source, target = min(source, _limit(model, "max_source_positions") or source), min(target, limit or target)

    def ids(length: int) -> Tensor:
        return torch.zeros(rows, length, dtype=torch.long, device="meta")

    def start() -> Any:
        return model.encode(ids(source)) if has_source else model.initial_state(rows)

    with torch.device("meta"), _recurrent_layers_watched(model) as counter:
        with counter.part() as encode:
            state = start()
        with counter.part() as decode:
            model.decode(ids(target), state)
            if getattr(model, "is_bidirectional", False):  # training runs both directions
                model.backward_logits(ids(target))
        held = _tensors_of(state)
        with torch.no_grad():
            if target == limit:  # there is no room for one more
                state = start()
                if target > 1:
                    model.decode(ids(target - 1), state)
            with counter.part() as step:
                model.decode(ids(1), state)
    return PassCounts(encode(), decode(), step(), held)


def _tensors_of(state: Any) -> Counts:
    tensors = (*state.rows.values(), *state.memory.values())
    values = sum(each.numel() for each in tensors if each.is_floating_point())
    other = sum(each.nbytes for each in tensors if not each.is_floating_point())
    return Counts(saved=values, other_bytes=other)


_MATMULS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)


class _Counter(TorchDispatchMode):
    """Counts the FLOPs and kernels of what is dispatched, and knows which tensors are weights or dropout masks."""

    def __init__(self, weights: Iterator[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.attention_flops = self.kernels = 0
        self.in_recurrent_layer = False
        self._weights = {each.untyped_storage()._cdata for each in weights}
        self._known = set(self._weights)
        self._masks: set[int] = set()
        self._alive: list[Any] = []  # storages whose addresses must not be reused

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        operands = [each for each in tree_leaves(args) if isinstance(each, Tensor)]
        only_weights = bool(operands) and all(map(self._is_weight, operands))
        if only_weights and not function.is_view:  # as with weight normalization
            self._weights.update(self._keep(each) for each in tree_leaves(result) if isinstance(each, Tensor))
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=result)
            self.flops += flops
            if function._overloadpacket in _MATMULS and not any(map(self._is_weight, operands)):
                self.attention_flops += flops
        if not (self.in_recurrent_layer or function.is_view):
            self.kernels += 1
        if function._overloadpacket in (torch.ops.aten.bernoulli_, torch.ops.aten.bernoulli):
            for tensor in tree_leaves(result):
                self._masks.add(self._keep(tensor))
        return result

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._weights

    def _keep(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        return int(storage._cdata)

    @contextmanager
    def part(self) -> Iterator[Callable[[], Counts]]:
        """Gives what is counted inside the context, each storage that autograd saves once."""
        flops, attention_flops, kernels = self.flops, self.attention_flops, self.kernels
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
        counts = Counts(
            self.flops - flops, self.attention_flops - attention_flops, saved, masks, other, self.kernels - kernels
        )


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
