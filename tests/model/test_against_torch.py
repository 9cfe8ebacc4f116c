"""The same weights in PyTorch's own attention and Transformer give the same outputs and the same gradients.

Everything is in float64; both sides compute the same formulas in another order, so only rounding is left.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Causal, Context, Full, HeadsConfig, LayerState, Lengths, NoPositionConfig
from regard.model import EmbeddingConfig, StackConfig
from regard.model.stack import Stack

from .small_models import EXACT, VOCABULARY, WIDTH, build, encoder_decoder, ids, stack

HEADS, HIDDEN, LAYERS = 4, 24, 2
ROWS, SOURCE, TARGET = 3, 5, 6
LENGTHS = torch.tensor([5, 2, 3])
TARGET_LENGTHS = torch.tensor([4, 6, 1])

# What PyTorch calls a mask is true where a key may *not* be seen.
PADDING = torch.arange(SOURCE) >= LENGTHS[:, None]
TARGET_PADDING = torch.arange(TARGET) >= TARGET_LENGTHS[:, None]
LATER = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1)

Pairs = list[tuple[list[Tensor], Tensor]]
"""Which of our parameters, set on top of each other, are one of PyTorch's."""

orders = pytest.mark.parametrize("order", ["pre", "post"])
activations = pytest.mark.parametrize("activation", ["relu", "gelu"])


def vectors(tokens: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(ROWS, tokens, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn.requires_grad_()


def context(tokens: int, **more: Any) -> Context:
    return Context(torch.zeros(ROWS, tokens, dtype=torch.long), **more)


def linear(ours: Any, theirs: Any) -> Pairs:
    return [([ours.weight], theirs.weight), ([ours.bias], theirs.bias)]


def attention(ours: Any, theirs: nn.MultiheadAttention) -> Pairs:
    three = (ours.query, ours.source.key, ours.source.value)
    return [
        ([part.weight for part in three], theirs.in_proj_weight),
        ([part.bias for part in three], theirs.in_proj_bias),
        *linear(ours.output, theirs.out_proj),
    ]


def layer(ours: Any, theirs: Any) -> Pairs:
    norms = [theirs.norm1, theirs.norm2] + ([theirs.norm3] if "cross" in ours else [])
    pairs = attention(ours["attention"].function, theirs.self_attn)
    if "cross" in ours:
        pairs += attention(ours["cross"].function, theirs.multihead_attn)
    pairs += linear(ours["feed_forward"].function.widen, theirs.linear1)
    pairs += linear(ours["feed_forward"].function.narrow, theirs.linear2)
    for sublayer, norm in zip(ours.values(), norms, strict=True):
        pairs += linear(sublayer.norm, norm)
    return pairs


def layers(ours: Stack, theirs: Any) -> Pairs:
    pairs = [pair for block, other in zip(ours.blocks, theirs.layers, strict=True) for pair in layer(block, other)]
    return pairs + (linear(ours.norm, theirs.norm) if theirs.norm is not None else [])


def same_weights(pairs: Pairs, theirs: nn.Module) -> None:
    """Random weights for PyTorch's module, and the same for ours; every one of PyTorch's must be paired."""
    assert {id(other) for _, other in pairs} == {id(other) for other in theirs.parameters()}
    torch.manual_seed(0)
    with torch.no_grad():
        for own, other in pairs:
            other.copy_(0.3 * torch.randn_like(other))
            for part, piece in zip(own, other.chunk(len(own)), strict=True):
                part.copy_(piece)


def assert_same_gradients(pairs: Pairs, loss: Callable[[Tensor], Tensor], ours: Tensor, theirs: Tensor) -> None:
    loss(ours).backward()
    loss(theirs).backward()
    for own, other in pairs:
        torch.testing.assert_close(torch.cat([part.grad for part in own]), other.grad, **EXACT)


def loss(y: Tensor) -> Tensor:
    return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()


def settings(order: str, activation: str) -> StackConfig:
    return stack(order=order, activation=activation, hidden=HIDDEN, layers=LAYERS, heads=HEADS, dropout=0.0)


def torch_layer(kind: type[nn.Module], order: str, activation: str) -> Any:
    return kind(WIDTH, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=order == "pre", dtype=torch.float64)


def torch_norm(order: str) -> nn.Module | None:
    return nn.LayerNorm(WIDTH, dtype=torch.float64) if order == "pre" else None


def torch_encoder(order: str, activation: str) -> nn.TransformerEncoder:
    one = torch_layer(nn.TransformerEncoderLayer, order, activation)
    return nn.TransformerEncoder(one, LAYERS, torch_norm(order), enable_nested_tensor=False)


def torch_decoder(order: str, activation: str) -> nn.TransformerDecoder:
    return nn.TransformerDecoder(torch_layer(nn.TransformerDecoderLayer, order, activation), LAYERS, torch_norm(order))


# nn.MultiheadAttention


def self_attention(causal: bool) -> tuple[Any, nn.MultiheadAttention, Pairs]:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    ours = HeadsConfig(heads=HEADS).self_attention(WIDTH, Causal() if causal else Full(), None).double()
    pairs = attention(ours, theirs)
    same_weights(pairs, theirs)
    return ours, theirs, pairs


def test_self_attention_over_padded_rows_is_that_of_torch():
    ours, theirs, pairs = self_attention(causal=False)
    x = vectors(SOURCE)
    mine = ours(x, context(SOURCE, lengths=LENGTHS), LayerState())
    other, _ = theirs(x, x, x, key_padding_mask=PADDING)
    torch.testing.assert_close(mine, other, **EXACT)
    assert_same_gradients(pairs, loss, mine, other)


def test_causal_self_attention_is_that_of_torch():
    ours, theirs, pairs = self_attention(causal=True)
    x = vectors(TARGET)
    mine = ours(x, context(TARGET), LayerState())
    other, _ = theirs(x, x, x, attn_mask=LATER)
    torch.testing.assert_close(mine, other, **EXACT)
    assert_same_gradients(pairs, loss, mine, other)


def test_the_weights_a_watcher_sees_are_those_torch_returns():
    ours, theirs, _ = self_attention(causal=False)
    x = vectors(SOURCE)
    seen: list[Tensor] = []
    watched = context(SOURCE, lengths=LENGTHS, watch=lambda module, weights: seen.append(weights))
    ours(x, watched, LayerState())
    _, weights = theirs(x, x, x, key_padding_mask=PADDING, average_attn_weights=False)
    torch.testing.assert_close(seen[0], weights, **EXACT)


def test_attention_without_biases_is_that_of_torch():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, bias=False, dtype=torch.float64)
    ours = HeadsConfig(heads=HEADS, bias=False).self_attention(WIDTH, Full(), None).double()
    three = (ours.query, ours.source.key, ours.source.value)
    pairs = [([part.weight for part in three], theirs.in_proj_weight), ([ours.output.weight], theirs.out_proj.weight)]
    same_weights(pairs, theirs)
    x = vectors(SOURCE)
    torch.testing.assert_close(ours(x, context(SOURCE), LayerState()), theirs(x, x, x)[0], **EXACT)


# nn.TransformerEncoder and nn.TransformerDecoder


@orders
@activations
def test_an_encoder_over_padded_rows_is_that_of_torch(order, activation):
    theirs = torch_encoder(order, activation)
    ours = Stack(settings(order, activation), WIDTH, NoPositionConfig(), causal=False).double()
    pairs = layers(ours, theirs)
    same_weights(pairs, theirs)
    mine_x, other_x = vectors(SOURCE), vectors(SOURCE)
    mine = ours(mine_x, context(SOURCE, lengths=LENGTHS), ours.states())
    other = theirs(other_x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(mine, other, **EXACT)
    assert_same_gradients(pairs, loss, mine, other)
    torch.testing.assert_close(mine_x.grad, other_x.grad, **EXACT)


@orders
@activations
def test_a_causal_stack_is_torch_s_encoder_behind_a_triangle(order, activation):
    theirs = torch_encoder(order, activation)
    ours = Stack(settings(order, activation), WIDTH, NoPositionConfig(), causal=True).double()
    pairs = layers(ours, theirs)
    same_weights(pairs, theirs)
    x = vectors(TARGET)
    mine = ours(x, context(TARGET), ours.states())
    other = theirs(x, mask=LATER)
    torch.testing.assert_close(mine, other, **EXACT)
    assert_same_gradients(pairs, loss, mine, other)


@orders
@activations
def test_a_decoder_over_a_padded_memory_is_that_of_torch(order, activation):
    theirs = torch_decoder(order, activation)
    ours = Stack(settings(order, activation), WIDTH, NoPositionConfig(), causal=True, memory="layer").double()
    pairs = layers(ours, theirs)
    same_weights(pairs, theirs)
    x, mine_memory, other_memory = vectors(TARGET), vectors(SOURCE, 1), vectors(SOURCE, 1)
    seen = context(TARGET, memory=Lengths(LENGTHS))
    mine = ours(x, seen, ours.states(mine_memory))
    other = theirs(x, other_memory, tgt_mask=LATER, memory_key_padding_mask=PADDING)
    torch.testing.assert_close(mine, other, **EXACT)
    assert_same_gradients(pairs, loss, mine, other)
    torch.testing.assert_close(mine_memory.grad, other_memory.grad, **EXACT)


# nn.Transformer


@orders
@activations
def test_an_encoder_decoder_is_torch_s_transformer_between_embeddings(order, activation):
    """Padded on both sides. Post-norm ends without a norm here, so PyTorch's last norms are left out there."""
    stacks = {"encoder": settings(order, activation), "decoder": settings(order, activation)}
    plain = EmbeddingConfig(scale=False, dropout=0)
    ours = build(encoder_decoder(**stacks, position=NoPositionConfig(), embedding=plain))
    theirs = nn.Transformer(
        WIDTH,
        HEADS,
        custom_encoder=torch_encoder(order, activation),
        custom_decoder=torch_decoder(order, activation),
        batch_first=True,
    )
    pairs = layers(ours.encoder, theirs.encoder) + layers(ours.decoder, theirs.decoder)
    same_weights(pairs, theirs)
    words = ours.vocabulary.weight.detach().clone().requires_grad_()

    source, target = ids(ROWS, SOURCE, seed=1), ids(ROWS, TARGET, seed=2)
    mine = ours(source, target, source_lengths=LENGTHS, target_lengths=TARGET_LENGTHS)
    written = theirs(
        words[source],
        words[target],
        tgt_mask=LATER,
        src_key_padding_mask=PADDING,
        tgt_key_padding_mask=TARGET_PADDING,
        memory_key_padding_mask=PADDING,
    )
    other = written @ words.mT
    assert mine.shape == (ROWS, TARGET, VOCABULARY)
    real = ~TARGET_PADDING  # behind a row's end the two see different padding
    torch.testing.assert_close(mine[real], other[real], **EXACT)
    assert_same_gradients(pairs, loss, mine[real], other[real])
    torch.testing.assert_close(ours.vocabulary.weight.grad, words.grad, **EXACT)
