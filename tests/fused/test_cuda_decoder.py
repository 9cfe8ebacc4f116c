"""The fused CUDA decoder equals the unfused model. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from regard.attention import MultiHeadConfig
from regard.attention.positions.config import LearnedConfig, NoPositionConfig, RotaryConfig, SinusoidalConfig
from regard.fused.cuda_decoder import CudaDecoder, EncoderGraph
from regard.model import EncoderDecoder, LanguageModelConfig, StackConfig
from tests.fused.decoder_harness import SPECIAL_TOKENS, STACKS, build_translator, check_logits, randomize, stack

pytestmark = pytest.mark.start_early(12)

VOCAB_SIZE = 90


@pytest.fixture(autouse=True)
def interpret_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Triton kernels in the interpreter."""
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)


def translator(kind: StackConfig | None = None, **more: Any) -> EncoderDecoder:
    return build_translator(VOCAB_SIZE, kind, **more)


def check_cuda_logits(model: Any, sources: list[list[int]], steps: int) -> None:
    check_logits(CudaDecoder(model), model, sources, steps)


KINDS = {**STACKS, "narrow heads": stack(MultiHeadConfig(heads=4, head_dim=6))}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_logits_equal_unfused(kind: StackConfig) -> None:
    check_cuda_logits(translator(kind), [[5, 6, 7, 8, 9], [80], [7] * 12], 4)


@pytest.mark.parametrize(
    "position",
    [
        SinusoidalConfig(),
        SinusoidalConfig(layout="halves"),
        LearnedConfig(max_length=40),
        RotaryConfig(),
        NoPositionConfig(),
    ],
    ids=str,
)
def test_every_position_equals_unfused(position: Any) -> None:
    check_cuda_logits(translator(position=position), [[5, 6, 7], [8]], 3)


def test_sequences_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.kernels.cuda.decode_attention._BLOCK_SIZES", ((2**31, 1, 1),))
    check_cuda_logits(translator(), [[5, 6, 7] * 7, [8]], 18)  # a block has 16 positions


def test_shared_cross_kv() -> None:
    check_cuda_logits(translator(cross_kv="shared"), [[5, 6, 7], [8]], 3)


@pytest.mark.parametrize("position", [LearnedConfig(max_length=40), RotaryConfig()], ids=str)
@pytest.mark.parametrize("prompts", [[[5]], [[5, 6, 7, 8], [9], []]], ids=["one", "ragged"])
def test_language_model_continues_prompts(prompts: list[list[int]], position: Any) -> None:
    torch.manual_seed(1)
    config = LanguageModelConfig(
        vocab_size=VOCAB_SIZE,
        width=32,
        decoder=stack(),
        special_tokens=SPECIAL_TOKENS,
        output_bias=True,
        position=position,
    )
    check_cuda_logits(randomize(config.build()), prompts, 3)


class SharedGraph:
    """A stand-in for a captured encoder: like a CUDA graph, it reads and writes the same tensors every time."""

    def __init__(self, decoder: CudaDecoder[Any], encoder: EncoderGraph) -> None:
        self.decoder, self.encoder = decoder, encoder

    def replay(self) -> None:
        time.sleep(0.001)  # so that other threads run
        self.encoder.cross_kv.copy_(self.decoder._encode_uncaptured(self.encoder.ids, self.encoder.lengths))
        time.sleep(0.001)


def test_threads_share_an_encoder_graph() -> None:
    decoder = CudaDecoder(translator())
    inputs = [(torch.full((1, 4), 5 + number), torch.tensor([4])) for number in range(6)]
    expected = [decoder._encode_uncaptured(*each) for each in inputs]
    encoder = EncoderGraph()
    encoder.ids, encoder.lengths, encoder.cross_kv = inputs[0][0].clone(), torch.tensor([4]), expected[0].clone()
    encoder.graph = SharedGraph(decoder, encoder)  # type: ignore[assignment]
    decoder.encoder_graphs[(1, 4)] = encoder
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            for found, wanted in zip(pool.map(lambda each: decoder._encode(*each), inputs), expected, strict=True):
                assert torch.equal(found, wanted)
