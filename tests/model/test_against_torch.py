"""Outputs and gradients equal those of PyTorch's attention and Transformer modules with the same weights.

Everything is in float64; both compute the same formulas in another order, so that only rounding errors remain.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Causal, Context, Full, LayerState, Lengths, MultiHeadConfig, NoPositionConfig
from regard.model import EmbeddingConfig, StackConfig
from regard.model.stack import Stack
from tests.model.small_models import EXACT, VOCAB_SIZE, WIDTH, build, encoder_decoder, ids, norm_order, stack

HEADS, HIDDEN, LAYERS = 4, 24, 2
ROWS, SOURCE, TARGET = 3, 5, 6
LENGTHS = torch.tensor([5, 2, 3])
TARGET_LENGTHS = torch.tensor([4, 6, 1])

# PyTorch's masks are true where a key is masked *out*.
PADDING_MASK = torch.arange(SOURCE) >= LENGTHS[:, None]
TARGET_PADDING_MASK = torch.arange(TARGET) >= TARGET_LENGTHS[:, None]
CAUSAL_MASK = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1)

Pairs = list[tuple[list[Tensor], Tensor]]
"""Each parameter of PyTorch, and those of ours that it is the concatenation of."""

every_order = pytest.mark.parametrize("order", ["pre", "post"])
every_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])


def vectors(tokens: int, seed: int = 0) -> Tensor:
    x = torch.randn(ROWS, tokens, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_()


def context(tokens: int, **more: Any) -> Context:
    return Context(torch.zeros(ROWS, tokens, dtype=torch.long), **more)


def linear(ours: Any, theirs: Any) -> Pairs:
    return [([ours.weight], theirs.weight), ([ours.bias], theirs.bias)]


def attention(ours: Any, theirs: nn.MultiheadAttention) -> Pairs:
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    return [
        ([part.weight for part in projections], theirs.in_proj_weight),
        ([part.bias for part in projections], theirs.in_proj_bias),
        *linear(ours.o_proj, theirs.out_proj),
    ]


def layer(ours: Any, theirs: Any) -> Pairs:
    norms = [theirs.norm1, theirs.norm2] + ([theirs.norm3] if "cross_attn" in ours.names else [])
    pairs = attention(ours.self_attn, theirs.self_attn)
    if "cross_attn" in ours.names:
        pairs += attention(ours.cross_attn, theirs.multihead_attn)
    pairs += linear(ours.feed_forward.up_proj, theirs.linear1)
    pairs += linear(ours.feed_forward.down_proj, theirs.linear2)
    for sublayer, norm in zip(ours.sublayers, norms, strict=True):
        pairs += linear(sublayer.norm, norm)
    return pairs


def layers(ours: Stack, theirs: Any) -> Pairs:
    pairs = [pair for block, other in zip(ours.layers, theirs.layers, strict=True) for pair in layer(block, other)]
    return pairs + (linear(ours.final_norm, theirs.norm) if theirs.norm is not None else [])


def copy_weights(pairs: Pairs, theirs: nn.Module) -> None:
    """Give PyTorch's module random weights, and ours the same; every parameter of PyTorch must be in a pair."""
    assert {id(other) for _, other in pairs} == {id(other) for other in theirs.parameters()}
    torch.manual_seed(0)
    with torch.no_grad():
        for parts, whole in pairs:
            whole.copy_(0.3 * torch.randn_like(whole))
            for part, values in zip(parts, whole.chunk(len(parts)), strict=True):
                part.copy_(values)


def assert_same_gradients(pairs: Pairs, loss: Callable[[Tensor], Tensor], ours: Tensor, theirs: Tensor) -> None:
    loss(ours).backward()
    loss(theirs).backward()
    for parts, whole in pairs:
        torch.testing.assert_close(torch.cat([part.grad for part in parts]), whole.grad, **EXACT)


def loss(y: Tensor) -> Tensor:
    return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()


def settings(order: str, activation: str) -> StackConfig:
    return stack(**norm_order(order), activation=activation, hidden=HIDDEN, layers=LAYERS, heads=HEADS, dropout=0.0)


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
    ours = MultiHeadConfig(heads=HEADS).self_attention(WIDTH, Causal() if causal else Full(), None).double()
    pairs = attention(ours, theirs)
    copy_weights(pairs, theirs)
    return ours, theirs, pairs


def test_self_attention_over_padded_rows_equals_torch():
    ours, theirs, pairs = self_attention(causal=False)
    x = vectors(SOURCE)
    actual = ours(x, context(SOURCE, lengths=LENGTHS), LayerState())
    expected, _ = theirs(x, x, x, key_padding_mask=PADDING_MASK)
    torch.testing.assert_close(actual, expected, **EXACT)
    assert_same_gradients(pairs, loss, actual, expected)


def test_causal_self_attention_equals_torch():
    ours, theirs, pairs = self_attention(causal=True)
    x = vectors(TARGET)
    actual = ours(x, context(TARGET), LayerState())
    expected, _ = theirs(x, x, x, attn_mask=CAUSAL_MASK)
    torch.testing.assert_close(actual, expected, **EXACT)
    assert_same_gradients(pairs, loss, actual, expected)


def test_attention_weights_of_the_hook_equal_torch():
    ours, theirs, _ = self_attention(causal=False)
    x = vectors(SOURCE)
    received: list[Tensor] = []
    hooked = context(SOURCE, lengths=LENGTHS, attention_hook=lambda module, weights: received.append(weights))
    ours(x, hooked, LayerState())
    _, weights = theirs(x, x, x, key_padding_mask=PADDING_MASK, average_attn_weights=False)
    torch.testing.assert_close(received[0], weights, **EXACT)


def test_attention_without_biases_equals_torch():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, bias=False, dtype=torch.float64)
    ours = MultiHeadConfig(heads=HEADS, bias=False).self_attention(WIDTH, Full(), None).double()
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    pairs = [
        ([part.weight for part in projections], theirs.in_proj_weight),
        ([ours.o_proj.weight], theirs.out_proj.weight),
    ]
    copy_weights(pairs, theirs)
    x = vectors(SOURCE)
    torch.testing.assert_close(ours(x, context(SOURCE), LayerState()), theirs(x, x, x)[0], **EXACT)


# nn.TransformerEncoder and nn.TransformerDecoder


@every_order
@every_activation
def test_encoder_over_padded_rows_equals_torch(order, activation):
    theirs = torch_encoder(order, activation)
    ours = Stack(settings(order, activation), WIDTH, NoPositionConfig(), causal=False).double()
    pairs = layers(ours, theirs)
    copy_weights(pairs, theirs)
    our_x, their_x = vectors(SOURCE), vectors(SOURCE)
    actual = ours(our_x, context(SOURCE, lengths=LENGTHS), ours.states())
    expected = theirs(their_x, src_key_padding_mask=PADDING_MASK)
    torch.testing.assert_close(actual, expected, **EXACT)
    assert_same_gradients(pairs, loss, actual, expected)
    torch.testing.assert_close(our_x.grad, their_x.grad, **EXACT)


@every_order
@every_activation
def test_causal_stack_equals_torch_encoder_with_a_causal_mask(order, activation):
    theirs = torch_encoder(order, activation)
    ours = Stack(settings(order, activation), WIDTH, NoPositionConfig(), causal=True).double()
    pairs = layers(ours, theirs)
    copy_weights(pairs, theirs)
    x = vectors(TARGET)
    actual = ours(x, context(TARGET), ours.states())
    expected = theirs(x, mask=CAUSAL_MASK)
    torch.testing.assert_close(actual, expected, **EXACT)
    assert_same_gradients(pairs, loss, actual, expected)


@every_order
@every_activation
def test_decoder_over_a_padded_memory_equals_torch(order, activation):
    theirs = torch_decoder(order, activation)
    ours = Stack(settings(order, activation), WIDTH, NoPositionConfig(), causal=True, cross_kv="per_layer").double()
    pairs = layers(ours, theirs)
    copy_weights(pairs, theirs)
    x, our_memory, their_memory = vectors(TARGET), vectors(SOURCE, 1), vectors(SOURCE, 1)
    cross_context = context(TARGET, memory=Lengths(LENGTHS))
    actual = ours(x, cross_context, ours.states(our_memory))
    expected = theirs(x, their_memory, tgt_mask=CAUSAL_MASK, memory_key_padding_mask=PADDING_MASK)
    torch.testing.assert_close(actual, expected, **EXACT)
    assert_same_gradients(pairs, loss, actual, expected)
    torch.testing.assert_close(our_memory.grad, their_memory.grad, **EXACT)


# nn.Transformer


@every_order
@every_activation
def test_encoder_decoder_equals_torch_transformer(order, activation):
    """With padding on both sides. Our post-norm stacks have no final norm, so PyTorch's final norms are left out."""
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
    copy_weights(pairs, theirs)
    embeddings = ours.embed_tokens.weight.detach().clone().requires_grad_()

    source, target = ids(ROWS, SOURCE, seed=1), ids(ROWS, TARGET, seed=2)
    actual = ours(source, target, source_lengths=LENGTHS, target_lengths=TARGET_LENGTHS)
    decoded = theirs(
        embeddings[source],
        embeddings[target],
        tgt_mask=CAUSAL_MASK,
        src_key_padding_mask=PADDING_MASK,
        tgt_key_padding_mask=TARGET_PADDING_MASK,
        memory_key_padding_mask=PADDING_MASK,
    )
    expected = decoded @ embeddings.mT
    assert actual.shape == (ROWS, TARGET, VOCAB_SIZE)
    real = ~TARGET_PADDING_MASK  # padded queries attend to different keys
    torch.testing.assert_close(actual[real], expected[real], **EXACT)
    assert_same_gradients(pairs, loss, actual[real], expected[real])
    torch.testing.assert_close(ours.embed_tokens.weight.grad, embeddings.grad, **EXACT)
