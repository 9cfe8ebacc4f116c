"""The backend of a search: the PyTorch model or a fused decoder, and the error if a precision is not available."""

import pytest
import torch

pytest.importorskip("numba")

from regard import UserError
from regard.attention.positions.config import SinusoidalConfig
from regard.fused.cpu_decoder import CpuDecoder
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, SpecialTokensConfig, StackConfig
from regard.task import backend as module
from regard.task.backend import CPU_THRESHOLDS, Backend


def model(**more: object) -> EncoderDecoder:
    stack = StackConfig(layers=1, feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)
    tokens = SpecialTokensConfig(pad=0, bos=1, eos=2)
    values = {"vocab_size": 80, "width": 16, "encoder": stack, "decoder": stack, "special_tokens": tokens, **more}
    return EncoderDecoderConfig(**values).build().eval()


@pytest.fixture(params=[True, False], ids=["compiled before", "never compiled"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(module.cpu_decoder, "is_compiled", lambda: request.param)
    return bool(request.param)


def test_cores_are_watched_where_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(module, "watch_cores", lambda: calls.append("watched"))
    Backend(model())
    assert calls


def test_many_inputs_use_the_fused_decoder(compiled: bool) -> None:
    backend = Backend(model())
    enough = CPU_THRESHOLDS[0 if compiled else 1]
    assert backend.decoder_model(enough - 1) is backend.model
    assert isinstance(backend.decoder_model(enough), CpuDecoder)
    assert backend.decoder_model(enough) is backend.decoder_model(10 * enough)


def test_fused_decoder_can_be_forced_or_disabled(compiled: bool) -> None:
    backend = Backend(model())
    backend.fused = True
    assert isinstance(backend.decoder_model(1), CpuDecoder)
    backend.fused = False
    assert backend.decoder_model(10**6) is backend.model


def test_unsupported_model_uses_the_pytorch_model(compiled: bool) -> None:
    backend = Backend(model(position=SinusoidalConfig(combine="concatenate", features=8), tie_weights=False))
    backend.fused = True
    assert not backend.uses_fused(10**6)
    assert backend.decoder_model(10**6) is backend.model


def test_int8_always_uses_the_fused_decoder(compiled: bool) -> None:
    backend = Backend(model())
    backend.precision = "int8"
    assert backend.decoder_model(1).precision == "int8"
    backend.precision = "float32"
    assert backend.decoder_model(10**6).precision == "float32"


def test_unavailable_precision_is_an_error() -> None:
    backend = Backend(model())
    backend.precision = "bfloat16"
    with pytest.raises(UserError, match="bfloat16 is for CUDA"):
        backend.decoder_model(1)
    backend.precision, backend.fused = "int8", False
    with pytest.raises(UserError, match="needs fused kernels"):
        backend.decoder_model(1)
    unsupported = Backend(model(position=SinusoidalConfig(combine="concatenate", features=8), tie_weights=False))
    unsupported.precision = "int8"
    with pytest.raises(UserError, match=r"int8 is not available: .*positions"):
        unsupported.decoder_model(1)


def test_reset_builds_a_new_decoder() -> None:
    backend = Backend(model())
    backend.fused = True
    before = backend.decoder_model(1)
    with torch.no_grad():
        backend.model.embed_tokens.weight.mul_(2)
    backend.reset()
    assert backend.decoder_model(1) is not before
