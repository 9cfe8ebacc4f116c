"""Helpers for tests of the fused decoders: small models, and a comparison of logits with the unfused model."""

from typing import Any

import torch

from regard.attention import MultiHeadConfig
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    NormConfig,
    SpecialTokensConfig,
    StackConfig,
)

EOS = 2
SPECIAL_TOKENS = SpecialTokensConfig(pad=0, bos=1, eos=EOS)


def stack(heads: MultiHeadConfig | None = None, **more: Any) -> StackConfig:
    more.setdefault("feed_forward", FeedForwardConfig(hidden=48))
    return StackConfig(layers=2, attention=heads or MultiHeadConfig(heads=4), dropout=0.0, **more)


STACKS = {
    "pre-norm": stack(),
    "post-norm": stack(norm_position="post"),
    "one kv head": stack(MultiHeadConfig(heads=4, kv_heads=1)),
    "two kv heads": stack(MultiHeadConfig(heads=4, kv_heads=2)),
    "no biases": stack(
        MultiHeadConfig(heads=2, bias=False),
        feed_forward=FeedForwardConfig(hidden=40, bias=False),
        norm=NormConfig(bias=False),
    ),
    "rms norm": stack(norm=NormConfig(kind="rms")),
    "gelu": stack(feed_forward=FeedForwardConfig(hidden=48, activation="gelu")),
    "gated": stack(feed_forward=FeedForwardConfig(hidden=48, activation="swiglu")),
}


def build_translator(vocab_size: int, config: StackConfig | None = None, **more: Any) -> EncoderDecoder:
    torch.manual_seed(3)
    config = config or stack()
    model_config = EncoderDecoderConfig(
        vocab_size=vocab_size,
        width=32,
        encoder=config,
        decoder=config,
        special_tokens=SPECIAL_TOKENS,
        output_bias=True,
        **more,
    )
    return randomize(model_config.build())


def randomize(model: Any) -> Any:
    """Make outputs diverse and EOS likely; biases and norms are random, so that ignoring one changes the logits."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.embed_tokens.weight.mul_(4)
        model.lm_head_bias[EOS] += 6
    return model.eval()


def check_logits(fused: Any, model: Any, sources: list[list[int]], steps: int, capacity: int | None = None) -> None:
    """Compare the logits of this many steps with random tokens; the caches have room for `capacity` steps."""
    with torch.inference_mode():
        cache, token = model.prefill(sources, capacity or steps)
        fused_cache, same = fused.prefill(sources, capacity or steps)
        assert torch.equal(token, same)
        for _ in range(steps):
            expected, cache = model.step(token[:, None], cache)
            actual, fused_cache = fused.step(token[:, None], fused_cache)
            assert torch.allclose(actual, expected, atol=2e-4, rtol=1e-4)
            token = torch.randint(3, model.config.vocab_size, token.shape)
