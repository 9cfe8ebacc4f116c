"""The fast form of a writer for a GPU gives what the plain one gives. Its kernels run here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

from typing import Any

import torch

from regard.attention import HeadsConfig
from regard.attention.position import LearnedConfig, NoPositionConfig, RotaryConfig, SinusoidalConfig
from regard.fast.swift_gpu import SwiftGpu
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
    TokensConfig,
)

SIZE, END = 90, 2
TOKENS = TokensConfig(padding=0, start=1, end=END)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's kernels be taken on a CPU."""
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)


def stack(heads: HeadsConfig | None = None, **more: Any) -> StackConfig:
    more.setdefault("feed_forward", FeedForwardConfig(hidden=48))
    return StackConfig(layers=2, attention=heads or HeadsConfig(heads=4), dropout=0.0, **more)


def translator(kind: StackConfig | None = None, **more: Any) -> EncoderDecoder:
    torch.manual_seed(3)
    kind = kind or stack()
    config = EncoderDecoderConfig(
        vocabulary=SIZE, width=32, encoder=kind, decoder=kind, tokens=TOKENS, output_bias=True, **more
    )
    return lively(config.build())


def lively(model: Any) -> Any:
    """Outputs that differ and end sooner or later; random biases and norms, so that none can be forgotten."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.vocabulary.weight.mul_(4)
        model.output_bias[END] += 6
    return model.eval()


KINDS = {
    "pre-norm": stack(),
    "post-norm": stack(order="post"),
    "one key head": stack(HeadsConfig(heads=4, key_heads=1)),
    "two key heads": stack(HeadsConfig(heads=4, key_heads=2)),
    "narrow heads": stack(HeadsConfig(heads=4, head_width=6)),
    "no biases": stack(
        HeadsConfig(heads=2, bias=False),
        feed_forward=FeedForwardConfig(hidden=40, bias=False),
        norm=NormConfig(bias=False),
    ),
    "rms norm": stack(norm=NormConfig(kind="rms")),
    "gelu": stack(feed_forward=FeedForwardConfig(hidden=48, activation="gelu")),
    "gated": stack(feed_forward=FeedForwardConfig(hidden=48, activation="swiglu")),
}


def check_logits(model: Any, sources: list[list[int]], steps: int) -> None:
    fast = SwiftGpu(model)
    with torch.inference_mode():
        plain, token = model.begin(sources, steps)
        quick, same = fast.begin(sources, steps)
        assert torch.equal(token, same)
        for _ in range(steps):
            wanted, plain = model.step(token[:, None], plain)
            found, quick = fast.step(token[:, None], quick)
            assert torch.allclose(found, wanted, atol=2e-4, rtol=1e-4)
            token = torch.randint(3, SIZE, token.shape)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_steps_give_the_same_logits(kind: StackConfig) -> None:
    check_logits(translator(kind), [[5, 6, 7, 8, 9], [80], [7] * 12], 4)


@pytest.mark.parametrize(
    "position",
    [
        SinusoidalConfig(),
        SinusoidalConfig(layout="halves"),
        LearnedConfig(limit=40),
        RotaryConfig(),
        NoPositionConfig(),
    ],
    ids=str,
)
def test_positions_are_the_same(position: Any) -> None:
    check_logits(translator(position=position), [[5, 6, 7], [8]], 3)


def test_texts_longer_than_a_block_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.triton_kernels._SHAPES", ((2**31, 1, 1),))
    check_logits(translator(), [[5, 6, 7] * 7, [8]], 18)  # a block has 16


def test_a_memory_for_all_layers() -> None:
    check_logits(translator(memory="shared"), [[5, 6, 7], [8]], 3)


@pytest.mark.parametrize("position", [LearnedConfig(limit=40), RotaryConfig()], ids=str)
@pytest.mark.parametrize("prompts", [[[5]], [[5, 6, 7, 8], [9], []]], ids=["one", "ragged"])
def test_a_language_model_goes_on_with_its_prompts(prompts: list[list[int]], position: Any) -> None:
    torch.manual_seed(1)
    config = LanguageModelConfig(
        vocabulary=SIZE, width=32, decoder=stack(), tokens=TOKENS, output_bias=True, position=position
    )
    check_logits(lively(config.build()), prompts, 3)


@pytest.mark.parametrize(("size", "count"), [(90, 1), (90, 8), (4096, 4), (5000, 1), (9000, 10)])
def test_the_greatest_scores_are_found_in_parts(size: int, count: int) -> None:
    from regard.decode.triton_kernels import best_tokens

    torch.manual_seed(size)
    logits = 3 * torch.randn(5, size)
    logits[1, : size - count] = float("-inf")
    logits[2] = logits[2].round()  # many alike
    scores, tokens, normaliser = best_tokens(logits, count)
    wanted = logits.topk(count, dim=1).values
    assert torch.equal(scores, wanted)
    assert torch.equal(logits.gather(1, tokens), wanted)
    assert all(len(set(row)) == count for row in tokens.tolist())
    assert torch.allclose(normaliser, logits.logsumexp(dim=1, keepdim=True), atol=1e-5)
