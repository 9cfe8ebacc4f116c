"""A writer laid out for steps on a GPU: the same weights, the same results, many times as fast.

Query, key and value come from one product, and what lies between two products is one kernel (`triton_kernels.py`): a
step of a layer starts about a dozen of them. All tensors stay where they are from step to step, and nothing asks the
device for an answer, so a whole turn of a search can be recorded once and replayed (`decode/replay.py`).

`swift_gpu(model)` gives such a writer, or the model itself where that cannot be: on other devices, for parts the
kernels do not know, or where Triton is not installed. It takes the weights as they are at that moment.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Cache
from regard.attention.encoding import Added, Position
from regard.attention.heads import CrossAttention, Heads, SelfAttention
from regard.attention.pattern import Causal, Full
from regard.errors import UserError
from regard.fast import triton_switch
from regard.fast.swift import AnyWriter
from regard.fast.swift_gpu_cache import SOURCE, SwiftGpuCache
from regard.model.block import Block, NoResidual, PostNorm, PreNorm
from regard.model.encoder_decoder import EncoderDecoder
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.writer import Writer

READINGS, RECORDED_FROM = 32, 3
"""Shapes of sources that are remembered, and the time at which reading one is recorded."""


def swift_gpu(model: Any, precision: torch.dtype | None = None) -> Any:
    """The model for fast steps on its GPU, or the model itself where there is no such form of it."""
    return SwiftGpu(model, precision) if why_not(model) is None else model


def is_compiled() -> bool:
    """Whether the kernels were compiled on this machine before, so that using them costs no wait."""
    place = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return any(place.glob("*/_attend_past.json"))


def why_not(model: Any) -> str | None:
    """What stands against the fast form of a model; None if nothing does."""
    if find_spec("triton") is None:
        return "Triton is not installed (it comes with PyTorch for NVIDIA GPUs)"
    if not isinstance(model, Writer):
        return f"it is no Transformer that writes, but a {type(model).__name__}"
    weight = model.vocabulary.weight
    if not triton_switch.runs_on(weight.device):
        return f"it is for NVIDIA GPUs, and this model is on {weight.device}"
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it computes in float32, bfloat16 or float16, and this model is {weight.dtype}"
    position = model.input.position
    if not isinstance(position, Added) and type(position) is not Position:
        return "positions must be added to word vectors or turn queries and keys"
    if not isinstance(model.input.norm, nn.Identity):
        return "word vectors must not be normalised"
    return next((reason for block in model.decoder.blocks if (reason := _odd_block(block))), None)


class Norm(NamedTuple):
    """A norm's numbers."""

    weight: Tensor
    bias: Tensor
    epsilon: float
    centred: bool
    before: bool
    """Whether it stands before sublayers."""


class SwiftGpu(Generic[AnyWriter]):
    """A writer that reads with `model` and writes with fused kernels, in the model's precision or another."""

    in_place = True
    """Its state stays where it is from step to step, so that steps can be recorded and replayed."""
    recorder: Any = None
    """What was recorded of searches, kept here by whoever searches."""

    def __init__(self, model: AnyWriter, precision: torch.dtype | None = None) -> None:
        reason = why_not(model)
        if reason is not None:
            raise UserError(f"This model has no fast form on a GPU: {reason}.")
        from regard.fast import triton_kernels  # only here, so that Triton is imported where it is used

        self.kernels = triton_kernels
        dtype = model.vocabulary.weight.dtype if precision is None else precision
        same = dtype == model.vocabulary.weight.dtype
        self.reader: AnyWriter = model if same else copy.deepcopy(model).to(dtype)
        self.config, self.dtype = model.config, dtype
        decoder = self.reader.decoder
        self.layers = [_Layer(block) for block in decoder.blocks if isinstance(block, Block)]
        self.before = not isinstance(decoder.norm, nn.Identity)
        norms = [norm for layer in self.layers for norm in layer.norms]
        if self.before:
            norms.append(_norm(decoder.norm, True))
        self.norms = norms
        self.table = self.reader.vocabulary.weight.detach()
        scored = self.reader.vocabulary if self.reader.output is None else self.reader.output
        self.scored = scored.weight.detach().T
        self.output_bias = None if self.reader.output_bias is None else self.reader.output_bias.detach().float()
        self.places: dict[int, tuple[Tensor, tuple[Tensor, Tensor] | None]] = {}
        """What tells positions apart, by their number; recordings go on reading from here."""
        self.readings: dict[tuple[int, ...], Reading] = {}
        self.rotary = next((block.rotary for block in decoder.attention()), None)

    @property
    def device(self) -> torch.device:
        return self.reader.device

    @torch.no_grad()
    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[SwiftGpuCache, Tensor]:
        """Read sources or prompts, as the model itself does."""
        if isinstance(self.reader, EncoderDecoder):
            ids, lengths = (tensor.to(self.device) for tensor in self.reader.padded(sources, SOURCE))
            read = self._read(ids, lengths)
            pairs = [(key, value) for key, value in read]
            memory = pairs * len(self.layers) if len(pairs) == 1 else pairs
            return self._cache(len(ids), capacity, memory, lengths), self.reader.firsts(len(ids))
        plain, first = self.reader.begin(sources, capacity)  # type: ignore[operator]
        return self._taken_over(plain), first

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: SwiftGpuCache) -> tuple[Tensor, SwiftGpuCache]:
        """Logits for the word after each new token, one a row.  tokens: # (rows, 1); gives (rows, 1, vocabulary)"""
        self.passed(cache)
        kernels, before = self.kernels, self.before
        codes, rotation = self._places(cache.capacity)
        x = torch.empty(cache.rows, self.table.shape[1], device=self.device)
        ready = kernels.embed(
            tokens[:, 0], cache.lengths, self.table, codes, self.reader.input.factor, self.norms[0], x
        )
        following = iter(self.norms[1:] if before else self.norms)
        for number, layer in enumerate(self.layers):
            made = functional.linear(ready, *layer.made)
            mixed = kernels.attend_past(
                made,
                cache.keys[number],
                cache.values[number],
                cache.origin,
                cache.lengths,
                layer.heads,
                rotation,
            )
            ready = kernels.join(x, functional.linear(mixed, *layer.past_out), next(following), before=before)
            if layer.query is not None:
                asked = functional.linear(ready, *layer.query)
                mixed = kernels.attend_memory(asked, *cache.memory[number], cache.memory_lengths, layer.heads)
                ready = kernels.join(x, functional.linear(mixed, *layer.memory_out), next(following), before=before)
            change = functional.linear(layer.hidden(ready), *layer.narrow)
            ready = kernels.join(x, change, next(following), before=before)
        cache.lengths += 1
        return self._logits(ready)[:, None], cache

    def passed(self, cache: SwiftGpuCache) -> None:
        """Note that a step is taken, by `step` or by replaying one."""
        cache.advance()

    def reorder(self, cache: SwiftGpuCache, rows: Tensor) -> SwiftGpuCache:
        cache.regroup(rows, rows // (cache.rows // cache.sources))
        return cache

    def regroup(self, cache: SwiftGpuCache, rows: Tensor, sources: Tensor | None) -> SwiftGpuCache:
        cache.regroup(rows, sources)
        return cache

    def put(self, cache: SwiftGpuCache, sources: Tensor, other: SwiftGpuCache) -> SwiftGpuCache:
        cache.put(sources, other)
        return cache

    def clear(self, cache: SwiftGpuCache, sources: Tensor) -> None:
        """Let these groups of rows hold nothing."""
        cache.clear(sources)

    def is_full(self, cache: SwiftGpuCache) -> bool:
        if cache.extent == cache.capacity:
            cache.tighten()
        return cache.extent == cache.capacity

    def grow(self, cache: SwiftGpuCache) -> None:
        cache.grow(2 * cache.capacity, cache.rows)

    def held(self, cache: SwiftGpuCache) -> int:
        return cache.bytes()

    def bytes_a_position(self) -> int:
        return self.reader.bytes_a_position()

    def _logits(self, ready: Tensor) -> Tensor:
        """Scores in float32: rounded to 8 bits many words would score alike.  # (rows, vocabulary)"""
        if ready.dtype == torch.float32:
            logits = ready @ self.scored
        elif ready.is_cuda:
            logits = torch.mm(ready, self.scored, out_dtype=torch.float32)
        else:
            logits = ready.float() @ self.scored.float()
        return logits if self.output_bias is None else logits.add_(self.output_bias)

    def _places(self, capacity: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """What is added to word vectors at each position, and cosine and sine by which heads are turned there."""
        if capacity not in self.places:
            position = self.reader.input.position
            places = torch.arange(min(capacity, position.limit or capacity), device=self.device)
            if isinstance(position, Added):
                codes = position.encode(places).float().contiguous()
            else:
                codes = self.table.new_zeros(len(places), self.table.shape[1], dtype=torch.float32)
            self.places[capacity] = codes, None if self.rotary is None else self.rotary.rotation(places, 0)
        return self.places[capacity]

    def _read(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Keys and values of sources for each layer, or for all.  # (layers or 1, 2, sources, positions, width)

        Telling a device to read takes longer than reading does: so for shapes that come again it is recorded.
        """
        shape = tuple(ids.shape)
        seen = self.readings.pop(shape, None) or Reading()
        self.readings[shape] = seen
        while len(self.readings) > READINGS:
            del self.readings[next(iter(self.readings))]
        seen.times += 1
        if seen.graph is None and (seen.times < RECORDED_FROM or not ids.is_cuda):
            return self._read_now(ids, lengths)
        if seen.graph is None:
            seen.ids, seen.lengths, seen.graph = ids.clone(), lengths.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(seen.graph, capture_error_mode="thread_local"):
                seen.made = self._read_now(seen.ids, seen.lengths)
        seen.ids.copy_(ids)
        seen.lengths.copy_(lengths)
        seen.graph.replay()
        return seen.made.clone()

    def _read_now(self, ids: Tensor, lengths: Tensor) -> Tensor:
        assert isinstance(self.reader, EncoderDecoder)
        pairs = self.reader.decoder.remember(self.reader.encode(ids, lengths=lengths))
        once = {id(pair[0]): pair for pair in pairs}.values()
        return torch.stack([torch.stack([each.transpose(1, 2).flatten(2) for each in pair]) for pair in once])

    def _taken_over(self, read: Cache) -> SwiftGpuCache:
        """What the model has read of prompts, in this layout."""
        cache = self._cache(read.rows, read.capacity, [], torch.zeros_like(read.lengths))
        for number, layer in enumerate(read.layers):
            if layer.own is not None and layer.own.tensors is not None:
                for kept, tensor in zip((cache.keys, cache.values), layer.own.tensors, strict=True):
                    kept[number, : read.extent] = tensor[:, :, : read.extent].permute(2, 0, 1, 3).flatten(2)
        cache.lengths.copy_(read.lengths)
        cache.extent = read.extent
        return cache

    def _cache(
        self, rows: int, capacity: int, memory: list[tuple[Tensor, Tensor]], memory_lengths: Tensor
    ) -> SwiftGpuCache:
        return SwiftGpuCache(
            len(self.layers),
            rows,
            capacity,
            self.layers[0].key_width,
            memory,
            memory_lengths,
            limit=self.reader.input.position.limit,
            dtype=self.dtype,
            device=self.device,
        )


class Reading:
    """How often sources of one shape were read, and from some time on what was recorded of it."""

    times = 0
    graph: torch.cuda.CUDAGraph | None = None
    ids: Tensor
    lengths: Tensor
    made: Tensor


class _Layer:
    """One block's weights, side by side where they are used together."""

    def __init__(self, block: Block) -> None:
        past, wide = block["attention"], block["feed_forward"]
        own, dense = past.function, wide.function
        assert isinstance(own, SelfAttention)
        assert isinstance(dense, FeedForward)
        self.heads, self.key_width = own.sizes.heads, own.sizes.key_heads * own.sizes.head_width
        self.made = _joined([own.query, own.source.key, own.source.value])
        self.past_out, self.norms = _weights(own.output), [_norm_of(past)]
        self.query: tuple[Tensor, Tensor | None] | None = None
        if "cross" in block:
            other = block["cross"].function
            assert isinstance(other, CrossAttention)
            self.query, self.memory_out = _weights(other.query), _weights(other.output)
            self.norms.append(_norm_of(block["cross"]))
        self.norms.append(_norm_of(wide))
        self.bend, self.gated = dense.bend, isinstance(dense, GatedFeedForward)
        self.widen = (
            _joined([dense.gate, dense.widen]) if isinstance(dense, GatedFeedForward) else _weights(dense.widen)
        )
        self.narrow = _weights(dense.narrow)

    def hidden(self, x: Tensor) -> Tensor:
        """The wide middle of the feed-forward."""
        weight, bias = self.widen
        if self.bend is functional.relu and not self.gated and bias is not None and x.is_cuda:
            made: Tensor = torch._addmm_activation(bias, x, weight.T)
            return made
        wide = functional.linear(x, weight, bias)
        if not self.gated:
            return self.bend(wide)
        gate, value = wide.chunk(2, dim=1)
        return self.bend(gate) * value


def _odd_block(block: nn.Module) -> str | None:
    """What in a block the kernels do not know."""
    assert isinstance(block, Block)
    for name, sublayer in block.items():
        if not isinstance(sublayer, PreNorm) or isinstance(sublayer, NoResidual):
            return "a layer has no residual sum"
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
    if isinstance(function, SelfAttention):
        if function.rotary is not None and not function.rotary.fixed:
            return "angles of positions must not change while a text grows"
        if function.pattern not in (Causal(), Causal() & Full(), Full() & Causal()):
            return "every earlier token must be seen"
    return None


def _norm_of(sublayer: nn.Module) -> Norm:
    assert isinstance(sublayer, PreNorm)
    return _norm(sublayer.norm, not isinstance(sublayer, PostNorm))


def _norm(module: nn.Module, before: bool) -> Norm:
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    weight = module.weight.detach().float()
    bias = getattr(module, "bias", None)
    epsilon = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    shift = torch.zeros_like(weight) if bias is None else bias.detach().float()
    return Norm(weight, shift, epsilon, isinstance(module, nn.LayerNorm), before)


def _weights(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach(), None if linear.bias is None else linear.bias.detach()


def _joined(parts: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """The weights of several projections of the same input, side by side."""
    both = [_weights(part) for part in parts]
    biases = [bias for _, bias in both if bias is not None]
    return torch.cat([weight for weight, _ in both]), torch.cat(biases) if len(biases) == len(both) else None
