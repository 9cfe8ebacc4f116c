"""A writer laid out for steps on a CPU: the same weights, the same results, several times as fast.

Matrix products go to oneDNN with weights packed beforehand, query, key and value in one product, the residual sum and
the activation inside it where it can. The rest of a step is a few compiled functions (`kernels.py`). Beams never copy
what their texts share: an index says which row wrote the token at each position.

`swift(model)` gives such a writer, or the model itself where that cannot be: on other devices, in other precisions, for
parts the kernels do not know, or where numba is not installed. It takes the weights as they are at that moment.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Cache
from regard.attention.encoding import Added
from regard.attention.heads import CrossAttention, Heads, SelfAttention
from regard.attention.pattern import Causal, Full
from regard.errors import UserError
from regard.model.block import Block, NoResidual, PostNorm, PreNorm
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.swift_cache import Desk, Floats, SwiftCache
from regard.model.writer import Writer

_NOTHING = np.zeros((0, 0, 0), np.float32)
_ROWS = 64
"""For about so many rows weights are packed."""
AnyWriter = TypeVar("AnyWriter", bound=Writer)


def swift(model: Any) -> Any:
    """The model for fast steps on this CPU, or the model itself where there is no such form of it."""
    return Swift(model) if why_not(model) is None else model


def is_compiled() -> bool:
    """Whether the kernels were compiled on this machine before, so that using them costs no wait."""
    place = Path(__file__).parent / "__pycache__"
    return any(place.glob("kernels.attend_past-*.nbi"))


def why_not(model: Any) -> str | None:
    """What stands against the fast form of a model; None if nothing does."""
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'regard[fast]')"
    if not isinstance(model, Writer):
        return f"it is no Transformer that writes, but a {type(model).__name__}"
    weight = model.vocabulary.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"it is for float32 on a CPU, and this model is {weight.dtype} on {weight.device}"
    if not isinstance(model.input.position, Added) or not isinstance(model.input.norm, nn.Identity):
        return "positions must be added to word vectors and those not normalised"
    if model.vocabulary.weight.shape[0] < 64:
        return "the vocabulary is smaller than 64"
    return next((reason for block in model.decoder.blocks if (reason := _odd_block(block))), None)


class Swift(Generic[AnyWriter]):
    """A writer that reads with `model` and writes with packed weights."""

    def __init__(self, model: AnyWriter) -> None:
        reason = why_not(model)
        if reason is not None:
            raise UserError(f"This model has no fast form on a CPU: {reason}.")
        from regard.model import kernels  # only here, so that numba is imported where it is used

        self.kernels = kernels
        self.model = model
        self.reader = _with_packed_products(model)
        self.config = model.config
        blocks = [block for block in model.decoder.blocks if isinstance(block, Block)]
        self.layers = [_Layer(block) for block in blocks]
        self.last = _Norm(model.decoder.norm) if isinstance(model.decoder.norm, nn.LayerNorm) else None
        self.table = _floats(model.vocabulary.weight)
        scored = model.vocabulary if model.output is None else model.output
        self.scores = _Product([scored.weight], [model.output_bias])
        self.width = self.table.shape[1]
        self.codes = np.zeros((0, self.width), np.float32)
        self.plain = all(layer.hidden.fused for layer in self.layers)
        """Whether a layer can be taken in one go, where there is one row only."""

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[SwiftCache, Tensor]:
        """Read sources or prompts, as the model itself does."""
        read, first = self.reader.begin(sources, capacity)  # type: ignore[operator]
        return self._taken_over(read), first

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: SwiftCache) -> tuple[Tensor, SwiftCache]:
        """Logits for the word after each new token, one a row.  tokens: # (rows, 1); gives (rows, 1, vocabulary)"""
        kernels, extent = self.kernels, cache.extent
        if extent == cache.capacity:
            raise UserError(f"The cache has room for {cache.capacity} positions and {extent + 1} are needed.")
        desk = cache.desk(self.width, self.layers[0].heads)
        x, heads = desk.x, self.layers[0].heads
        codes = self._codes(cache, extent)
        kernels.embed(tokens[:, 0].numpy(), cache.lengths, self.table, codes, self._factor, desk.x_array)
        alone = cache.rows == 1 and self.plain
        for number, layer in enumerate(self.layers):
            if alone:
                layer.step_alone(number, cache, desk)
                continue
            made = layer.made(layer.past_norm.before(x, desk))
            kernels.attend_past(
                made.numpy(),
                cache.keys[number],
                cache.values[number],
                cache.origin,
                cache.lengths,
                heads,
                layer.scale,
                desk.weights,
                desk.mixed_array,
            )
            x = layer.past_norm.after(layer.past_out(desk.mixed, x), desk)
            if layer.query is not None:
                key, value = cache.memory[number]
                asked = layer.query(layer.memory_norm.before(x, desk))
                kernels.attend_memory(
                    asked.numpy(), key, value, cache.memory_lengths, heads, layer.scale, desk.weights, desk.mixed_array
                )
                x = layer.memory_norm.after(layer.memory_out(desk.mixed, x), desk)
            hidden = layer.hidden(layer.wide_norm.before(x, desk))
            x = layer.wide_norm.after(layer.narrow(hidden, x), desk)
        logits = self.scores(x if self.last is None else self.last(x, desk))
        cache.lengths += 1
        return logits[:, None], cache

    def reorder(self, cache: SwiftCache, rows: Tensor) -> SwiftCache:
        group = cache.rows // cache.sources
        cache.regroup(rows.numpy(), rows.numpy() // group)
        return cache

    def regroup(self, cache: SwiftCache, rows: Tensor, sources: Tensor | None) -> SwiftCache:
        cache.regroup(rows.numpy(), None if sources is None else sources.numpy())
        return cache

    def put(self, cache: SwiftCache, sources: Tensor, other: SwiftCache) -> SwiftCache:
        cache.put(sources.numpy(), other)
        return cache

    def clear(self, cache: SwiftCache, sources: Tensor) -> None:
        """Let these groups of rows hold nothing."""
        cache.lengths.reshape(cache.sources, -1)[sources.numpy()] = 0

    def is_full(self, cache: SwiftCache) -> bool:
        return cache.extent == cache.capacity

    def grow(self, cache: SwiftCache) -> None:
        cache.grow(2 * cache.capacity, cache.rows)

    def held(self, cache: SwiftCache) -> int:
        return cache.bytes()

    def bytes_a_position(self) -> int:
        return self.model.bytes_a_position()

    @property
    def _factor(self) -> np.float32:
        return np.float32(self.model.input.factor)

    def _codes(self, cache: SwiftCache, extent: int) -> Floats:
        """What is added to word vectors at each position. Learned ones end somewhere, and say so."""
        position = self.model.input.position
        assert isinstance(position, Added)
        if len(self.codes) <= extent:
            known = getattr(position, "limit", None) or cache.capacity
            last = max(extent + 1, min(known, cache.capacity))
            self.codes = _floats(position.encode(torch.arange(last)))
        return self.codes

    def _taken_over(self, read: Cache) -> SwiftCache:
        """What the model has read, in this layout."""
        memory = [
            (_joined(layer.memory[0]), _joined(layer.memory[1])) for layer in read.layers if layer.memory is not None
        ]
        sizes = self.layers[0].key_width
        cache = SwiftCache(len(self.layers), read.rows, read.capacity, sizes, memory)
        if read.memory_lengths is not None:
            cache.memory_lengths = read.memory_lengths.numpy().copy()
        elif memory:
            cache.memory_lengths = np.full(read.rows, memory[0][0].shape[1])
        for number, layer in enumerate(read.layers):
            if layer.own is not None and layer.own.tensors is not None:
                for kept, tensor in zip((cache.keys, cache.values), layer.own.tensors, strict=True):
                    kept[number] = tensor.permute(2, 0, 1, 3).flatten(2).numpy()
        cache.lengths = read.lengths.numpy().copy()
        cache.origin[:] = np.arange(read.rows)
        return cache


class _Layer:
    """One block's weights, packed."""

    def __init__(self, block: Block) -> None:
        past, wide = block["attention"], block["feed_forward"]
        own, dense = past.function, wide.function
        assert isinstance(own, SelfAttention)
        assert isinstance(dense, FeedForward)
        self.heads, self.key_width = own.sizes.heads, own.sizes.key_heads * own.sizes.head_width
        self.scale = np.float32(own.sizes.head_width**-0.5)
        parts = (own.query, own.source.key, own.source.value)
        self.made = _Product([part.weight for part in parts], [part.bias for part in parts])
        self.past_out, self.past_norm = _product(own.output), _Place(past)
        self.query: _Product | None = None
        if "cross" in block:
            other = block["cross"].function
            assert isinstance(other, CrossAttention)
            self.query, self.memory_out = _product(other.query), _product(other.output)
            self.memory_norm = _Place(block["cross"])
        self.hidden, self.narrow, self.wide_norm = _Hidden(dense), _product(dense.narrow), _Place(wide)
        self._all = self._in_one()

    def step_alone(self, number: int, cache: SwiftCache, desk: Desk) -> None:
        """All of a layer in one go, for a single row; what goes in and comes out is `desk.x`."""
        from regard.model.kernels import layer_of_one_row

        made, hidden = np.empty((1, self._sizes[0]), np.float32), np.empty((1, self._sizes[1]), np.float32)
        key, value = cache.memory[number] if cache.memory else (_NOTHING, _NOTHING)
        layer_of_one_row(
            desk.x_array,
            desk.spare,
            made,
            hidden,
            desk.weights,
            cache.keys[number],
            cache.values[number],
            cache.origin,
            cache.lengths,
            key,
            value,
            cache.memory_lengths,
            self.heads,
            self.scale,
            *self._all,
        )

    def _in_one(self) -> tuple[Any, ...]:
        """What the kernel for a whole layer wants: where norms stand, their weights, and those of the products."""
        places = [self.past_norm, self.past_norm if self.query is None else self.memory_norm, self.wide_norm]
        norms = np.stack([np.stack((place.norm.weight, place.norm.bias)) for place in places])
        epsilons = np.array([place.norm.epsilon for place in places], np.float32)
        query, memory_out = (self.query, self.memory_out) if self.query is not None else (self.past_out, self.past_out)
        products = (self.made, self.past_out, query, memory_out, self.hidden.widen, self.narrow)
        self._sizes = len(self.made.bias), len(self.hidden.widen.bias)
        return not places[0].behind, norms, epsilons, *(array for product in products for array in product.arrays)


class _Norm:
    def __init__(self, module: nn.LayerNorm) -> None:
        from regard.model.kernels import normalise

        self.normalise = normalise
        self.weight = _floats(module.weight)
        self.bias = np.zeros_like(self.weight) if module.bias is None else _floats(module.bias)
        self.epsilon = np.float32(module.eps)

    def __call__(self, x: Tensor, desk: Desk) -> Tensor:
        self.normalise(x.numpy(), self.weight, self.bias, self.epsilon, desk.normed_array)
        return desk.normed


class _Place:
    """Where a sublayer's norm stands: before its function, or behind the sum."""

    def __init__(self, sublayer: nn.Module) -> None:
        assert isinstance(sublayer, PreNorm)
        assert isinstance(sublayer.norm, nn.LayerNorm)
        self.norm, self.behind = _Norm(sublayer.norm), isinstance(sublayer, PostNorm)
        self.before: Callable[[Tensor, Desk], Tensor] = _same if self.behind else self.norm
        self.after: Callable[[Tensor, Desk], Tensor] = self.norm if self.behind else _same


class _Hidden:
    """The wide middle of a feed-forward."""

    def __init__(self, dense: FeedForward) -> None:
        self.bend = dense.bend
        self.fused = dense.bend is functional.relu and not isinstance(dense, GatedFeedForward)
        self.widen = _product(dense.widen)
        self.gate = _product(dense.gate) if isinstance(dense, GatedFeedForward) else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.fused:
            return self.widen(x, relu=True)
        if self.gate is None:
            return self.bend(self.widen(x))
        return self.bend(self.gate(x)).mul_(self.widen(x))


class _Product:
    """x Wᵀ + b, with the weights of several projections side by side, packed where oneDNN is there."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
        self.weight = torch.cat([weight.detach() for weight in weights]) if len(weights) > 1 else weights[0].detach()
        both = zip(weights, biases, strict=True)
        given = [weight.new_zeros(len(weight)) if bias is None else bias.detach() for weight, bias in both]
        self.bias = torch.cat(given)
        self.packed = _pack(self.weight)
        self.arrays = _floats(self.weight), _floats(self.bias)
        if self.packed is not None:
            self.product = torch.ops.mkldnn._linear_pointwise.default
            self.add_product = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, add: Tensor | None = None, *, relu: bool = False) -> Tensor:
        if self.packed is None:
            product = functional.linear(x, self.weight, self.bias)
            product = product if add is None else product.add_(add)
            return product.relu_() if relu else product
        rows = x.shape[0]
        more = _rounded(rows) - rows
        if more:
            x, add = functional.pad(x, (0, 0, 0, more)), None if add is None else functional.pad(add, (0, 0, 0, more))
        made: Tensor
        if add is not None:
            made = self.add_product(x, add, self.packed, self.bias, "add")
        else:
            made = self.product(x, self.packed, self.bias, "relu" if relu else "none", [], "")
        return made[:rows] if more else made


def _rounded(rows: int) -> int:
    """A number of rows not much larger. oneDNN keeps code for every number it meets; so there are few of them."""
    if rows <= 32:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


class _PackedLinear(nn.Module):
    """What stands in a model in the place of a projection."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.product = _Product([linear.weight], [linear.bias])

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x.flatten(0, -2)).view(*x.shape[:-1], -1)


def _with_packed_products(model: AnyWriter) -> AnyWriter:
    """A copy of a model that shares its weights, except that projections have theirs packed."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in list(twin.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, nn.Linear):
                setattr(module, name, _PackedLinear(part))
    return twin


def _product(linear: nn.Module) -> _Product:
    assert isinstance(linear, nn.Linear)
    return _Product([linear.weight], [linear.bias])


def _pack(weight: Tensor) -> Tensor | None:
    """Weights in oneDNN's own layout; None where this PyTorch has no such products."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        torch.ops.mkldnn._linear_pointwise(weight[:1], packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return packed


def _odd_block(block: nn.Module) -> str | None:
    """What in a block the kernels do not know."""
    assert isinstance(block, Block)
    for name, sublayer in block.items():
        if not isinstance(sublayer, PreNorm) or isinstance(sublayer, NoResidual):
            return "a layer has no residual sum"
        if not isinstance(sublayer.norm, nn.LayerNorm):
            return "norms must be layer normalisation"
        function = sublayer.function
        if name == "feed_forward":
            if type(function) not in (FeedForward, GatedFeedForward):
                return f"its feed-forward is a {type(function).__name__}"
        elif reason := _odd_heads(function):
            return reason
    return None


def _odd_heads(function: nn.Module) -> str | None:
    if not isinstance(function, Heads) or function.kind != "scaled":
        return "attention must be scaled dot products"
    if function.sizes.value_width != function.sizes.head_width or not isinstance(function.output, nn.Linear):
        return "keys and values must be equally wide and heads mixed at the end"
    if function.sizes.heads * function.sizes.head_width != function.output.out_features:
        return "heads must make up the model's width"
    if isinstance(function, SelfAttention):
        if function.rotary is not None:
            return "rotary positions are not among its kernels"
        if function.pattern not in (Causal(), Causal() & Full(), Full() & Causal()):
            return "every earlier token must be seen"
    return None


def _same(x: Tensor, desk: Desk) -> Tensor:
    return x


def _floats(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


def _joined(tensor: Tensor) -> Floats:
    """(sources, heads, positions, width) → (sources, positions, heads · width)"""
    return _floats(tensor.transpose(1, 2).flatten(2))
