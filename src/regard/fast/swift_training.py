"""A model laid out for training: the same weights, the same sums, fewer trips through memory.

`for_training(model)` gives a twin that shares the model's parameters, under the same names. Its stacks compute what
`Stack` computes with fused kernels: dropout, residual sum and the next norm in one, attention over short texts in one,
query, key and value from one product. On a GPU these are Triton's (`triton_training.py`), on a CPU numba's
(`packed_stack.py`), which also leave padding out. Whatever the kernels do not know goes the model's own way,
sublayer by sublayer. Chance is drawn from another source than PyTorch's dropout, with the same shares.

A twin may also recompute (`Stack.recomputes`), in whatever form its stacks have. Chance that comes from a seed is then
drawn again from the same seed, in a recorded pass too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.attention import Causal, Context, Full, LayerState, Lengths
from regard.attention.cache import KeyValue
from regard.attention.encoding import Added, Learned
from regard.attention.heads import CrossAttention, Heads, KeyValueProjection, SelfAttention, split_heads
from regard.fast import triton_switch
from regard.fast.cublas_lt import BEND
from regard.fast.twin import twin_of
from regard.fast.unscored import LateVocabulary
from regard.model.block import Block, NoResidual, PostNorm, PreNorm
from regard.model.embedding import Input, Vocabulary
from regard.model.feed_forward import FeedForward
from regard.model.stack import Stack, draws, recomputed_pair

AnyModel = TypeVar("AnyModel", bound=nn.Module)


def for_training(model: AnyModel, *, late: bool = False, recompute: bool = False) -> AnyModel:
    """A twin of a model that trains faster; the model itself where there is nothing to gain.

    With `late`, who calls the twin leaves scoring words to the loss: where that is faster the twin gives no logits but
    `Unscored`, which the losses of `regard.train` take in their place, and target positions behind `target_lengths`
    are not computed. With `recompute` its stacks compute the inside of layers again on the way back.
    """
    parts = {name: part for name, part in model.named_children() if isinstance(part, Stack) and why_not(part) is None}
    if not parts and not recompute:
        return model
    twin = twin_of(type(model), model)
    if any(_is_packed(part) for part in parts.values()):
        _pack(twin, parts, late)
    else:
        twin._modules.update({name: twin_of(FusedStack, part) for name, part in parts.items()})
        ways_in = [(name, part) for name, part in twin.named_children() if type(part) is Input]
        twin._modules.update({name: twin_of(FusedInput, part) for name, part in ways_in})
    if late and "decoder" in parts:
        _score_late(twin)
    if recompute:
        twin._modules.update(
            {name: part.recomputing() for name, part in twin.named_children() if isinstance(part, Stack)}
        )
    return twin


def _pack(twin: nn.Module, parts: dict[str, Stack], late: bool) -> None:
    from regard.fast.packed_stack import DroppedInput, PackedStack

    for name, part in list(twin.named_children()):
        if name in parts:
            # Nobody looks at what an encoder makes of padding. What a decoder makes of it shows in the logits.
            twin._modules[name] = PackedStack.of(parts[name], skips_padding=late or name != "decoder")
        elif type(part) is Input:
            twin._modules[name] = twin_of(DroppedInput, part)


def _score_late(twin: nn.Module) -> None:
    """Leave scoring words to the loss."""
    scoring = "vocabulary" if getattr(twin, "output", None) is None else "output"
    words = getattr(twin, scoring, None)
    if type(words) is Vocabulary:
        twin._modules[scoring] = twin_of(LateVocabulary, words)


def _is_packed(stack: Stack) -> bool:
    """Whether a stack's fast form is the one for a CPU."""
    device = next(stack.parameters()).device
    return device.type == "cpu" and not triton_switch.runs_on(device)


def why_not(stack: Stack) -> str | None:
    """What stands against the fast form of a stack; None if nothing does."""
    if type(stack) is not Stack:
        return f"it is not a plain stack, but a {type(stack).__name__}"
    weight = next(stack.parameters())
    if _is_packed(stack):
        if find_spec("numba") is None:
            return "numba is not installed (pip install 'regard[fast]')"
        other = next((each.dtype for each in stack.parameters() if each.dtype != torch.float32), None)
        if other is not None:
            return f"on a CPU it is for float32, and this model is {other}"
    elif find_spec("triton") is None:
        return "Triton is not installed (it comes with PyTorch for NVIDIA GPUs)"
    elif weight.device.type not in ("cpu", "cuda"):
        return f"it is for CPUs and NVIDIA GPUs, and this model is on {weight.device}"
    for block in stack.blocks:
        assert isinstance(block, Block)
        for sublayer in block.values():
            if not isinstance(sublayer, PreNorm) or isinstance(sublayer, NoResidual):
                return "a layer has no residual sum"
            if not isinstance(sublayer.norm, nn.LayerNorm | nn.RMSNorm):
                return "norms must be layer normalisation or RMS"
    return None


def why_plain(model: nn.Module, precision: str) -> str | None:
    """What stands against steps of training in a model's fast form; None if nothing does."""
    stacks = [part for part in model.children() if isinstance(part, Stack)]
    if not stacks:
        return "it has no stack of layers"
    reason = next((reason for reason in map(why_not, stacks) if reason is not None), None)
    if reason is None and precision != "fp32" and any(map(_is_packed, stacks)):
        return f"on a CPU it is for float32, and this run is in {precision}"
    return reason


def recomputes_recorded(model: nn.Module) -> bool:
    """Whether a pass that recomputes may be recorded as a CUDA graph.

    Not where a stack in its plain form has dropout: a recording cannot draw the same from PyTorch's generator twice.
    """
    return not any(isinstance(part, Stack) and why_not(part) is not None and draws(part) for part in model.modules())


class Seen(NamedTuple):
    """What a mask of lengths says: causal or not, and how many words of each row are there (all, if None)."""

    causal: bool
    lengths: Tensor | None


class Sublayer(NamedTuple):
    """A sublayer as the fast forms compute it."""

    number: int  # in its stack
    itself: PreNorm
    following: nn.Module  # the norm of what it leaves: its own, or the next sublayer's where norms stand before them


class Layer(NamedTuple):
    """A block as the fast forms compute it."""

    sublayers: list[Sublayer]
    state: LayerState
    before: bool  # norms stand before sublayers
    parts: list[nn.Module]  # what has weights here, each once


def layers_of(stack: Stack, states: list[LayerState]) -> Iterator[Layer]:
    """The layers of a stack for which nothing stands against the fast form."""
    blocks = [[sublayer for sublayer in block.values() if isinstance(sublayer, PreNorm)] for block in stack.blocks]  # type: ignore[operator]
    before = not isinstance(blocks[0][0], PostNorm)
    everyone = [sublayer for block in blocks for sublayer in block]
    following = [*(each.norm for each in everyone[1:]), stack.norm] if before else [each.norm for each in everyone]
    first = 0
    for block, sublayers, state in zip(stack.blocks, blocks, states, strict=True):
        numbers = range(first, first + len(sublayers))
        first += len(sublayers)
        parts = [block, following[first - 1]] if before else [block]
        yield Layer([Sublayer(at, everyone[at], following[at]) for at in numbers], state, before, parts)


class FusedInput(Input):
    """The way in, where a code of positions is added: scaled, added and dropped in one."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        plain = isinstance(self.position, Added) and isinstance(self.norm, nn.Identity)
        if not plain or context.watch is not None or not triton_switch.runs_on(x.device):
            return super().forward(x, context)
        from regard.fast import triton_training as kernels

        code = self._code(context)
        share = self.dropout.p if self.dropout.training else 0.0
        chance = kernels.Chance(share, _seed(x.device), 0) if share else None
        return kernels.place(x, code, self.factor, chance)

    def _code(self, context: Context) -> Tensor:
        """The code of each token's position.  # (tokens, width) or (rows, tokens, width)"""
        straight = (
            isinstance(context.start, int)
            and not context.start
            and context.lengths is None
            and context.documents is None
        )
        if isinstance(self.position, Learned) and straight and context.queries <= len(self.position.table):
            return self.position.table[: context.queries]  # nothing to look up
        return self.position.encode(context.positions, context.lengths)


class FusedStack(Stack):
    """A stack in its fast form. Its modules and parameters are those of the stack it was made of."""

    def forward(self, x: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        if context.watch is not None or any(state.own is not None for state in states):
            return super().forward(x, context, states)
        from regard.fast import triton_training as kernels

        seed = _seed(x.device)
        layers = list(layers_of(self, states))
        x, ready = _begun(kernels, layers[0], x)
        for layer in layers:
            through = partial(self._through, kernels, layer, context, seed)
            if self.recomputes:
                own_way = self._draws(kernels, layer, x, context)
                x, ready = recomputed_pair(
                    through, partial(_ready, kernels, layer), layer.parts, x, ready, draws=own_way
                )
            else:
                x, ready = through(x, ready)
        return ready

    def remember(self, memory: Tensor) -> list[KeyValue]:
        """As `Stack` does, keys and values of a layer from one product."""
        if self.memory is not None:
            return [_remembered(self.memory, memory)] * len(self.blocks)
        others = [block["cross"].function for block in self.blocks]  # type: ignore[index]
        return [_remembered(each.source, memory) for each in others]

    def _through(
        self, kernels: Any, layer: Layer, context: Context, seed: Tensor, x: Tensor, ready: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sum behind a layer, and what the next one takes."""
        for number, sublayer, following in layer.sublayers:
            change = self._change(kernels, sublayer.function, ready, context, layer.state, seed, 2 * number)
            share = sublayer.dropout.p if self.blocks.training else 0.0
            chance = kernels.Chance(share, seed, 2 * number + 1) if share else None
            x, ready = _join(kernels, x, change, following, layer.before, chance)
        return x, ready

    def _draws(self, kernels: Any, layer: Layer, x: Tensor, context: Context) -> bool:
        """Whether some sublayer goes the model's own way and draws from PyTorch's generator there."""
        functions = (each.itself.function for each in layer.sublayers)
        return any(draws(each) and not _is_known(kernels, each, x, context, layer.state) for each in functions)

    def _change(
        self,
        kernels: Any,
        function: nn.Module,
        x: Tensor,
        context: Context,
        state: LayerState,
        seed: Tensor,
        call: int,
    ) -> Tensor:
        """What a sublayer makes of x."""

        def product(x: Tensor, linear: nn.Module) -> Tensor:
            made: Tensor = kernels.product(x, linear.weight, linear.bias)
            return made

        known = _is_known(kernels, function, x, context, state)
        if known and isinstance(function, Heads):
            seen = seen_by(function, context)
            assert seen is not None
            share = function.dropout if self.blocks.training else 0.0  # a twin is not told, its parts are
            chance = kernels.Chance(share, seed, call) if share else None
            sizes = function.sizes
            shape = kernels.Shape(sizes.heads, sizes.key_heads, sizes.head_width, seen.causal)
            if isinstance(function, SelfAttention):
                parts = (function.query, function.source.key, function.source.value)
                made = kernels.product(x, *joined(*parts, stack=kernels.stacked))
                return product(kernels.attend_self(made, seen.lengths, shape, chance), function.output)
            assert isinstance(state.memory, Remembered)
            query = product(x, function.query)
            mixed = kernels.attend_other(query, state.memory.both, seen.lengths, shape, chance)
            return product(mixed, function.output)
        if known and isinstance(function, FeedForward):
            share = function.dropout.p if self.blocks.training else 0.0
            chance = kernels.Chance(share, seed, call) if share else None
            if chance is None and function.activation == BEND:
                widen, narrow = function.widen, function.narrow
                whole: Tensor | None = kernels.feed_forward(x, widen.weight, widen.bias, narrow.weight, narrow.bias)
                if whole is not None:
                    return whole
            return product(kernels.bend(product(x, function.widen), function.activation, chance), function.narrow)
        if isinstance(function, SelfAttention):
            linears = (function.query, function.source.key, function.source.value)
            query, *others = kernels.products(x, *((each.weight, each.bias) for each in linears))
            key, value = (split_heads(each, function.sizes.key_heads) for each in others)
            mixed = function.seen(split_heads(query, function.heads), key, value, context, state)
            if not isinstance(function.output, nn.Linear):
                return function.joined(mixed)
            return product(mixed.transpose(1, 2).flatten(2), function.output)
        changed: Tensor = function(x, context, state)
        return changed


def _seed(device: torch.device) -> Tensor:
    """What chance of a pass is drawn from.  # (1,)"""
    return torch.randint(1 << 30, (1,), device=device)


class Remembered(tuple[Tensor, Tensor]):
    """Keys and values as every attention takes them, and side by side as they were made.  # (rows, keys, both)"""

    both: Tensor


def _remembered(source: nn.Module | None, memory: Tensor) -> KeyValue:
    from regard.fast import triton_training as kernels

    assert source is not None
    if not isinstance(source, KeyValueProjection) or source.key.out_features != source.value.out_features:
        pair: KeyValue = source(memory)
        return pair
    both = kernels.product(memory, *joined(source.key, source.value, stack=kernels.stacked))
    key, value = both.unflatten(2, (2, source.heads, -1)).permute(2, 0, 3, 1, 4)
    made = Remembered((key, value))
    made.both = both
    return made


def _is_known(kernels: Any, function: nn.Module, x: Tensor, context: Context, state: LayerState) -> bool:
    """Whether the kernels compute a sublayer in this pass, with chance from their own source."""
    if not isinstance(function, Heads):
        return type(function) is FeedForward and function.activation in kernels.BENDS
    if seen_by(function, context) is None or x.shape[1] > kernels.LONGEST:
        return False
    if isinstance(function, SelfAttention):
        return True
    if not isinstance(state.memory, Remembered):
        return False
    rows, words, _ = state.memory.both.shape
    return words <= int(kernels.LONGEST) and rows == x.shape[0]


def _ready(kernels: Any, layer: Layer, x: Tensor) -> Tensor:
    """What a layer's first sublayer takes of the sum before it."""
    return _begun(kernels, layer, x)[1]


def _begun(kernels: Any, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The sum before a layer and what its first sublayer takes of it, so that their gradients meet on the way back."""
    return _join(kernels, x, None, layer.sublayers[0].itself.norm, True, None) if layer.before else (x, x)


def _join(
    kernels: Any, x: Tensor, change: Tensor | None, norm: nn.Module, before: bool, chance: Any
) -> tuple[Tensor, Tensor]:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    epsilon = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    bias = getattr(norm, "bias", None)
    centred = isinstance(norm, nn.LayerNorm)
    made: tuple[Tensor, Tensor] = kernels.join(
        x, change, norm.weight, bias, epsilon, before=before, centred=centred, chance=chance
    )
    return made


def joined(
    *parts: nn.Module, stack: Callable[..., Tensor] = lambda *tensors: torch.cat(tensors)
) -> tuple[Tensor, Tensor | None]:
    """The weights of several projections of the same input, below each other."""
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    biases = [part.bias for part in linears if part.bias is not None]
    return stack(*(part.weight for part in linears)), stack(*biases) if len(biases) == len(parts) else None


def stacked_weights(model: nn.Module) -> list[Tensor]:
    """The weights that the fast forms stack, in that order: whoever lays them out so saves a copy."""
    found: dict[Tensor, None] = {}  # a set that keeps its order
    for part in model.modules():
        if isinstance(part, SelfAttention) and isinstance(part.source, KeyValueProjection):
            linears = [part.query, part.source.key, part.source.value]
        elif isinstance(part, KeyValueProjection):
            linears = [part.key, part.value]
        else:
            continue
        found |= dict.fromkeys(each.weight for each in linears)
        found |= dict.fromkeys(each.bias for each in linears if each.bias is not None)
    return list(found)


def seen_by(function: Heads, context: Context) -> Seen | None:
    """What a plain attention may see in this pass; None if the kernels do not know it."""
    sizes = function.sizes
    if function.kind != "scaled" or sizes.value_width != sizes.head_width or sizes.head_width > 128:
        return None
    if not isinstance(function.output, nn.Linear):
        return None
    if isinstance(function, CrossAttention):
        match context.memory:
            case Full():
                return Seen(False, None)
            case Lengths():
                return Seen(False, context.memory.lengths)
        return None
    assert isinstance(function, SelfAttention)
    if function.rotary is not None or context.documents is not None:
        return None
    if function.pattern in (Causal(), Causal() & Full(), Full() & Causal()):
        return Seen(True, None)  # padding lies behind every real word
    return Seen(False, context.lengths) if function.pattern == Full() else None
