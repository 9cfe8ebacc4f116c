"""Estimated parameters, FLOPs and KV caches of autoregressive models, against what PyTorch counts and allocates."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import LatentAttentionConfig, MultiHeadConfig, RotaryConfig
from regard.cost import TrainingSetup, Workload, estimate
from regard.model import (
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    StackConfig,
    count_parameters,
    transformer_big,
)
from regard.model.mixture_of_experts import MixtureOfExpertsConfig
from tests.cost.support import EVERY_SAMPLE, base_cost, deepseek, gpt2, random_ids, translator, workload_for
from tests.model.small_models import SAMPLES

FLOAT32 = TrainingSetup("float32")


def attention_hook(attention: Any, weights: Tensor) -> None:
    """With a hook, attention uses the reference implementation, whose matmuls PyTorch's counter knows."""


# Parameters


def test_non_embedding_parameters_leave_out_every_embedding_matrix() -> None:
    tied = translator(16, 1, 50)
    separate = EncoderDecoderConfig(**{**dict(tied), "source_vocab_size": 70, "tie_weights": False})
    one, three = (estimate(config, Workload(1, 4, 4), FLOAT32) for config in (tied, separate))
    assert one.non_embedding_parameters == one.parameters - 50 * 16
    assert three.non_embedding_parameters == three.parameters - (50 + 70 + 50) * 16 == one.non_embedding_parameters


def test_estimate_of_a_huge_model_allocates_nothing() -> None:
    start = time.perf_counter()
    cost = estimate(gpt2(layers=64, width=32768), Workload(1, 8), TrainingSetup("bfloat16"))
    assert cost.parameters > 800e9
    assert time.perf_counter() - start < 5


# FLOPs


@pytest.mark.one_in(2)
@EVERY_SAMPLE
@pytest.mark.parametrize("shape", [(3, 7, 5), (1, 18, 20)], ids=str)
def test_parameters_and_flops_equal_pytorch_s(config: ModelConfig, shape: tuple[int, int, int]) -> None:
    workload, model = workload_for(config, *shape), config.build().train()
    with FlopCounterMode(display=False) as forward:
        logits = model(*random_ids(config, workload), attention_hook=attention_hook)
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    cost = estimate(config, workload, FLOAT32)
    assert cost.parameters == count_parameters(model)
    assert cost.forward_flops_per_step == forward.get_total_flops()
    assert cost.flops_per_step == forward.get_total_flops() + backward.get_total_flops()


def _grouped_query_stack(width: int, layers: int) -> StackConfig:
    attention = MultiHeadConfig(heads=8, kv_heads=2, bias=False)
    feed_forward = FeedForwardConfig(hidden=3 * width, activation="swiglu", bias=False)
    return StackConfig(layers=layers, attention=attention, feed_forward=feed_forward)


LARGER: dict[str, tuple[ModelConfig, Workload]] = {
    "translator": (translator(128, 3, 2000), Workload(4, 40, 30)),
    "grouped-query attention, gated, untied": (
        LanguageModelConfig(vocab_size=3000, width=128, decoder=_grouped_query_stack(128, 4), tie_weights=False),
        Workload(2, 200),
    ),
    "deep encoder, shallow decoder, shared cross_kv": (
        EncoderDecoderConfig(
            vocab_size=1500,
            source_vocab_size=900,
            width=64,
            encoder=_grouped_query_stack(64, 8),
            decoder=_grouped_query_stack(64, 2),
            cross_kv="shared",
            tie_weights=False,
        ),
        Workload(3, 20, 90),
    ),
    "long and narrow": (gpt2(layers=2, width=64, vocab_size=100), Workload(1, 250)),
    "latent attention and experts": (deepseek(64, 3), Workload(2, 100)),
}


@pytest.mark.parametrize(("config", "workload"), LARGER.values(), ids=LARGER.keys())
def test_flops_of_larger_models_equal_pytorch_s(config: ModelConfig, workload: Workload) -> None:
    """Approximately: above 256 tokens, attention is counted in blocks."""
    model = config.build().train()
    with FlopCounterMode(display=False) as forward:
        logits = model(*random_ids(config, workload), attention_hook=attention_hook)
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    cost = estimate(config, replace(workload, grad_accumulation=3), FLOAT32)
    counted = forward.get_total_flops()
    assert cost.forward_flops_per_step == pytest.approx(3 * counted, rel=0.02)
    assert cost.flops_per_step == pytest.approx(3 * (counted + backward.get_total_flops()), rel=0.02)
    source, target = cost.flops_per_token
    per_row = source * workload.source_length + target * workload.target_length
    assert 3 * workload.batch_size * per_row == pytest.approx(cost.forward_flops_per_step)
    assert (source > 0) == (workload.source_length > 0)


def test_attention_flops_per_token_double_with_the_length() -> None:
    """At twice the length every other matmul costs the same per token, and attention twice as much."""
    short, long = (estimate(gpt2(2, 64, 100), Workload(1, length), FLOAT32) for length in (100, 200))
    attention = short.attention_fraction * short.flops_per_token[1]
    assert long.flops_per_token[1] - short.flops_per_token[1] == pytest.approx(attention)


def test_sliding_window_counts_only_the_keys_in_the_window() -> None:
    stack = StackConfig(layers=1, attention=MultiHeadConfig(heads=2, pattern="sliding(100)"))
    config, workload = LanguageModelConfig(vocab_size=11, width=32, decoder=stack), Workload(2, 1500)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        config.build()(*random_ids(config, workload))  # in blocks of matmuls that the counter knows
    assert estimate(config, workload, FLOAT32).forward_flops_per_step == counter.get_total_flops()


def test_more_experts_cost_only_the_router_s_flops() -> None:
    few, many = (
        StackConfig(layers=2, feed_forward=MixtureOfExpertsConfig(hidden=64, experts=experts, top_k=2))
        for experts in (4, 32)
    )
    costs = [
        estimate(LanguageModelConfig(vocab_size=50, width=32, decoder=stack), Workload(3, 5), FLOAT32)
        for stack in (few, many)
    ]
    assert costs[1].forward_flops_per_step - costs[0].forward_flops_per_step == 2 * 2 * 3 * 5 * 32 * (32 - 4)
    assert costs[1].parameters - costs[0].parameters == 2 * (32 - 4) * (32 + 2 * 32 * 64 + 64 + 32)


def test_steps_and_grad_accumulation_multiply_flops() -> None:
    one, many = base_cost(), base_cost(steps=10, grad_accumulation=4)
    assert many.flops_per_step == 4 * one.flops_per_step
    assert many.training_flops == 40 * one.training_flops


def test_transformer_big_takes_six_flops_per_parameter_and_token() -> None:
    """C ≈ 6ND (Kaplan et al. 2020, §2.1), with the tokens and parameters of each side."""
    cost = estimate(transformer_big(37000), Workload(1000, 25, 25), TrainingSetup("bfloat16"))
    assert cost.flops_per_step == pytest.approx(6 * cost.parameters * 25_000, rel=0.02)


# Generation


@pytest.mark.one_in(2)
@EVERY_SAMPLE
@pytest.mark.parametrize("length", [1, 7])
def test_generated_token_flops_equal_pytorch_s(config: ModelConfig, length: int) -> None:
    model, workload = config.build().eval(), workload_for(config, 1, 5, length)
    ids = random_ids(config, workload)
    cache = model.start(ids[0], 20) if len(ids) == 2 else model.start(1, 20)
    if length > 1:
        model.step(ids[-1][:, :-1], cache)
    with FlopCounterMode(display=False) as counter:
        model.step(ids[-1][:, -1:], cache, attention_hook=attention_hook)
    cost = estimate(config, workload, FLOAT32)
    assert cost.generated_token_flops(cache_capacity=20) == counter.get_total_flops()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("capacity", [None, 5, 40])
@pytest.mark.parametrize("length", [1, 4, 30])
@pytest.mark.parametrize("name", ["sliding", "dilated and global", "latent in a window"])
def test_generated_token_in_a_window_attends_to_all_slots(name: str, length: int, capacity: int | None) -> None:
    config = SAMPLES["language-model"][name]
    model, ids = config.build().eval(), torch.randint(0, config.vocab_size, (1, length))
    cache = model.start(1, max(length, capacity or 0))
    for token in ids[:, :-1].split(1, dim=1) if length > 1 else ():
        model.step(token, cache)
    with FlopCounterMode(display=False) as counter:
        model.step(ids[:, -1:], cache, attention_hook=attention_hook)
    cost = estimate(config, Workload(1, length), FLOAT32)
    assert cost.generated_token_flops(cache_capacity=capacity) == counter.get_total_flops()


@pytest.mark.parametrize("latent", [2, 200])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_latent_attention_decodes_in_the_order_with_fewer_flops(latent: int, length: int) -> None:
    attention = LatentAttentionConfig(heads=8, kv_latent=latent, rope_head_dim=8, head_dim=16, dropout=0.0)
    stack = StackConfig(layers=1, attention=attention, feed_forward=FeedForwardConfig(hidden=8))
    config = LanguageModelConfig(vocab_size=11, width=16, decoder=stack, position=RotaryConfig())
    model, ids = config.build().eval(), torch.randint(0, 11, (1, length))
    counted = {}
    for form in (None, "naive", "absorbed"):
        for module in model.decoder.self_attention():
            module.form = form
        cache = model.start(1, length)
        if length > 1:
            model.step(ids[:, :-1], cache)
        with FlopCounterMode(display=False) as counter:
            model.step(ids[:, -1:], cache, attention_hook=attention_hook)
        counted[form] = counter.get_total_flops()
    estimated = estimate(config, Workload(1, length), FLOAT32).generated_token_flops()
    assert estimated == counted[None] == min(counted["naive"], counted["absorbed"])


def test_deepseek_v2_has_the_published_kv_cache() -> None:
    """576 values per token and layer, instead of 32,768 for 128 heads of keys and values of the same width."""
    sizes = {"heads": 128, "head_dim": 128, "value_head_dim": 128}
    caches = []
    for attention in (LatentAttentionConfig(**sizes, kv_latent=512, rope_head_dim=64), MultiHeadConfig(**sizes)):
        stack = StackConfig(layers=60, attention=attention)
        config = LanguageModelConfig(vocab_size=100, width=5120, decoder=stack, position=RotaryConfig())
        caches.append(estimate(config, Workload(1, 8), TrainingSetup("bfloat16")).kv_cache_bytes_per_token)
    assert caches == [(60 * 576 * 2, 0), (60 * 32_768 * 2, 0)]


@EVERY_SAMPLE
@pytest.mark.parametrize("length", [2, 12])
def test_kv_cache_bytes_equal_the_allocated_ones(config: ModelConfig, length: int) -> None:
    """Also with a sliding window, whose cache drops older keys."""
    model, workload = config.build().eval(), workload_for(config, 1, 5, length)
    ids = random_ids(config, workload)
    cache = model.start(ids[0], length) if len(ids) == 2 else model.start(1, length)
    model.step(ids[-1], cache)
    pairs = [pair for layer in cache.layers for pair in (layer.self_kv.tensors, layer.cross_kv) if pair is not None]
    allocated = {id(tensor): tensor.nbytes for pair in pairs for tensor in pair}
    cost = estimate(config, workload, FLOAT32)
    assert cost.kv_cache_bytes() == sum(allocated.values())
    generated, source = cost.kv_cache_bytes_per_token
    assert generated == model.kv_bytes_per_token()
    if isinstance(config, EncoderDecoderConfig):
        cross = {id(tensor): tensor.nbytes for layer in cache.layers for tensor in layer.cross_kv}
        assert 5 * source == sum(cross.values())
