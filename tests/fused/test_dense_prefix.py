"""Stacks with a dense prefix give the same results in every fused form."""

import pytest
import torch
from torch import nn

from regard.attention import MultiHeadConfig
from regard.fused.cpu_decoder import CpuDecoder, make_cpu_decoder
from regard.fused.cpu_forward import FusedStep, UnfusedStep
from regard.fused.cuda_decoder import CudaDecoder
from regard.fused.support import cpu_decoder_unsupported_reason, stack_unsupported_reason
from regard.fused.training import fuse_for_training
from regard.model import EncoderDecoderConfig, LanguageModelConfig, SpecialTokensConfig, StackConfig
from regard.model.feed_forward import FeedForwardConfig
from tests.model.small_models import with_dense_prefix, with_experts

pytestmark = pytest.mark.start_early(12)

VOCAB_SIZE = 80
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
SPECIAL_TOKENS = SpecialTokensConfig(pad=0, bos=1, eos=2)
PLAIN = StackConfig(
    layers=3, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=24), dropout=0.0
)
KINDS = {
    "narrower": with_dense_prefix(PLAIN, layers=2, hidden=9),
    "wider": with_dense_prefix(PLAIN, hidden=40),
    "gelu": with_dense_prefix(PLAIN, activation="gelu"),
    "gated": with_dense_prefix(PLAIN, activation="swiglu", bias=False),
    "same": with_dense_prefix(PLAIN),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def build_randomized(config):
    torch.manual_seed(0)
    model = config.build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + name.endswith("norm.weight"))
    return model


def translator(kind):
    return build_randomized(
        EncoderDecoderConfig(vocab_size=VOCAB_SIZE, width=16, encoder=kind, decoder=kind, special_tokens=SPECIAL_TOKENS)
    )


def decode(model, sources, count=5):
    """Logits of `count` steps with fixed tokens."""
    cache, tokens = model.prefill(sources, count)
    outputs = []
    for number in range(count):
        logits, cache = model.step(tokens[:, None], cache)
        outputs.append(logits)
        tokens = torch.full_like(tokens, 5 + number)
    return torch.cat(outputs, dim=1)


@every_kind
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_cpu_decoder_equals_unfused(kind, precision):
    pytest.importorskip("numba")
    model = translator(kind)
    fused = CpuDecoder(model, precision)
    sources = [[7, 8, 9], [10, 11, 12, 13, 14], [15]]
    error = (decode(fused, sources) - decode(model, sources)).abs()
    assert error.max() < (1e-4 if precision == "float32" else 0.5)
    assert error.mean() < (1e-5 if precision == "float32" else 0.1)


def test_steps_are_fused_only_for_layers_of_the_same_size():
    pytest.importorskip("numba")
    step_types = {name: type(CpuDecoder(translator(kind)).decode_step) for name, kind in KINDS.items()}
    assert step_types == {name: FusedStep if name == "same" else UnfusedStep for name in KINDS}


@every_kind
def test_gradients_of_training_on_a_cpu_equal_unfused(kind):
    pytest.importorskip("numba")
    model = translator(kind)
    assert stack_unsupported_reason(model.decoder) is None
    source, target = torch.randint(3, VOCAB_SIZE, (3, 6)), torch.randint(3, VOCAB_SIZE, (3, 5))
    grads = []
    for forward in (model, fuse_for_training(model)):
        loss = nn.functional.cross_entropy(forward(source, target).flatten(0, 1), target.flatten())
        grads.append(torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@every_kind
def test_cuda_decoder_equals_unfused(kind, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)
    model = translator(kind)
    sources = [[7, 8, 9], [10, 11]]
    torch.testing.assert_close(decode(CudaDecoder(model), sources, 3), decode(model, sources, 3), **CLOSE)


def test_experts_after_a_dense_prefix_are_not_supported():
    model = build_randomized(
        LanguageModelConfig(vocab_size=VOCAB_SIZE, width=16, decoder=with_dense_prefix(with_experts(PLAIN)))
    )
    reason = cpu_decoder_unsupported_reason(model)
    assert reason is not None
    assert "feed-forward" in reason or "numba" in reason
    assert make_cpu_decoder(model) is model
