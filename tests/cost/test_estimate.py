"""Costs known beforehand, against what is counted, kept and measured when models really run."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import HeadsConfig, LatentConfig, RotaryConfig
from regard.attention.position import LearnedConfig
from regard.cost import (
    HARDWARE,
    USABLE,
    Cost,
    Hardware,
    Work,
    advice_for_memory,
    estimate,
    this_hardware,
    workspace_bytes,
)
from regard.cost.memory import LATE_CELLS, LOSS_CELLS
from regard.errors import UserError
from regard.model import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    StackConfig,
    count_parameters,
    transformer_base,
    transformer_big,
)
from regard.model.experts import ExpertsConfig
from regard.train import OptimiserConfig, word_loss
from tests.model.small_models import SAMPLES

EVERY_SAMPLE = pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=f"{kind}, {name}")
        for kind, configs in SAMPLES.items()
        for name, config in configs.items()
    ],
)
SHAPES = pytest.mark.parametrize("shape", [(3, 7, 5), (1, 18, 20)], ids=str)


def work_for(config: ModelConfig, rows: int, source: int, target: int, **more: Any) -> Work:
    return Work(rows, target, source if isinstance(config, EncoderDecoderConfig) else 0, **more)


def inputs(config: ModelConfig, work: Work) -> tuple[Tensor, ...]:
    sizes = [config.vocabulary]
    if isinstance(config, EncoderDecoderConfig):
        sizes.insert(0, config.source_vocabulary or config.vocabulary)
    lengths = [work.source, work.target][-len(sizes) :]
    return tuple(torch.randint(0, size, (work.rows, length)) for size, length in zip(sizes, lengths, strict=True))


def translator(width: int, layers: int, vocabulary: int, **more: Any) -> EncoderDecoderConfig:
    stack = StackConfig(
        layers=layers, attention=HeadsConfig(heads=4), feed_forward=FeedForwardConfig(hidden=4 * width), **more
    )
    return EncoderDecoderConfig(vocabulary=vocabulary, width=width, encoder=stack, decoder=stack)


def gpt2(layers: int = 12, width: int = 768, vocabulary: int = 50304) -> LanguageModelConfig:
    stack = StackConfig(
        layers=layers,
        attention=HeadsConfig(heads=width // 64),
        feed_forward=FeedForwardConfig(hidden=4 * width, activation="gelu"),
    )
    return LanguageModelConfig(vocabulary=vocabulary, width=width, decoder=stack)


def base_cost(**work: Any) -> Cost:
    return estimate(transformer_base(32768), Work(768, 32, 32, **work), precision="bf16")


# Parameters


@EVERY_SAMPLE
def test_parameters_are_those_of_the_built_model(config: ModelConfig) -> None:
    cost = estimate(config, work_for(config, 1, 4, 4), precision="fp32")
    assert cost.parameters == count_parameters(config.build())


def test_parameters_without_word_vectors_leave_out_every_table() -> None:
    own = translator(16, 1, 50)
    apart = EncoderDecoderConfig(**{**dict(own), "source_vocabulary": 70, "tie": False})
    costs = [estimate(config, Work(1, 4, 4), precision="fp32") for config in (own, apart)]
    assert costs[0].non_embedding == costs[0].parameters - 50 * 16
    assert costs[1].non_embedding == costs[1].parameters - (50 + 70 + 50) * 16 == costs[0].non_embedding


def test_a_model_too_large_for_any_machine_is_counted_in_no_time() -> None:
    begin = time.perf_counter()
    cost = estimate(gpt2(layers=64, width=32768), Work(1, 8), precision="bf16")
    assert cost.parameters > 800e9
    assert time.perf_counter() - begin < 5


# Arithmetic


@EVERY_SAMPLE
@SHAPES
def test_forward_flops_are_those_pytorch_counts(config: ModelConfig, shape: tuple[int, int, int]) -> None:
    work = work_for(config, *shape)
    model = config.build().train()
    with FlopCounterMode(display=False) as counter:
        # With a watch attention takes the readable way: the counter does not know the fused one on a CPU.
        model(*inputs(config, work), watch=lambda attention, weights: None)
    assert estimate(config, work, precision="fp32").forward_flops_per_step == counter.get_total_flops()


@EVERY_SAMPLE
def test_backward_takes_twice_the_flops_of_forward(config: ModelConfig) -> None:
    work = work_for(config, 3, 7, 5)
    model = config.build().train()
    with FlopCounterMode(display=False) as counter:
        model(*inputs(config, work), watch=lambda attention, weights: None).sum().backward()
    assert estimate(config, work, precision="fp32").flops_per_step == counter.get_total_flops()


def gated(width: int, layers: int, **more: Any) -> StackConfig:
    heads = HeadsConfig(heads=8, key_heads=2, bias=False)
    feed_forward = FeedForwardConfig(hidden=3 * width, activation="swiglu", bias=False)
    return StackConfig(layers=layers, attention=heads, feed_forward=feed_forward, **more)


def latents(**more: Any) -> LatentConfig:
    return LatentConfig(**{"heads": 8, "latent": 32, "rotary_width": 8, "head_width": 16} | more)


def deep_seek(width: int, layers: int) -> LanguageModelConfig:
    """In miniature: latents of queries too, and experts of which each token meets few."""
    experts = ExpertsConfig(hidden=width, activation="swiglu", bias=False, experts=16, active=3, shared=1)
    stack = StackConfig(layers=layers, attention=latents(query_latent=48), feed_forward=experts)
    return LanguageModelConfig(vocabulary=1000, width=width, decoder=stack, position=RotaryConfig())


UNLIKE: dict[str, tuple[ModelConfig, Work]] = {
    "translator": (translator(128, 3, 2000), Work(4, 40, 30)),
    "grouped heads, gated, untied": (
        LanguageModelConfig(vocabulary=3000, width=128, decoder=gated(128, 4), tie=False),
        Work(2, 200),
    ),
    "deep encoder, shallow decoder, shared memory": (
        EncoderDecoderConfig(
            vocabulary=1500,
            source_vocabulary=900,
            width=64,
            encoder=gated(64, 8),
            decoder=gated(64, 2),
            memory="shared",
            tie=False,
        ),
        Work(3, 20, 90),
    ),
    "long and narrow": (gpt2(layers=2, width=64, vocabulary=100), Work(1, 250)),
    "latents and experts": (deep_seek(64, 3), Work(2, 100)),
}
EVERY_UNLIKE = pytest.mark.parametrize(
    ("config", "work"), [pytest.param(*pair, id=name) for name, pair in UNLIKE.items()]
)


@EVERY_UNLIKE
def test_flops_of_unlike_models_are_within_two_percent_of_pytorch_s_counter(config: ModelConfig, work: Work) -> None:
    model = config.build().train()
    with FlopCounterMode(display=False) as forward:
        scores = model(*inputs(config, work), watch=lambda attention, weights: None)
    with FlopCounterMode(display=False) as backward:
        scores.sum().backward()
    cost = estimate(config, work, precision="fp32")
    assert cost.forward_flops_per_step == pytest.approx(forward.get_total_flops(), rel=0.02)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert cost.flops_per_step == pytest.approx(both, rel=0.02)


@EVERY_SAMPLE
@pytest.mark.parametrize("length", [1, 7])
def test_a_generated_token_takes_the_flops_pytorch_counts(config: ModelConfig, length: int) -> None:
    model = config.build().eval()
    ids = inputs(config, work_for(config, 1, 5, length))
    cache = model.start(ids[0], 20) if len(ids) == 2 else model.start(1, 20)
    if length > 1:
        model.step(ids[-1][:, :-1], cache)
    with FlopCounterMode(display=False) as counter:
        model.step(ids[-1][:, -1:], cache, watch=lambda attention, weights: None)
    cost = estimate(config, work_for(config, 1, 5, length), precision="fp32")
    assert cost.generated_token_flops(room=20) == counter.get_total_flops()


@pytest.mark.parametrize("room", [None, 5, 40])
@pytest.mark.parametrize("length", [1, 4, 30])
@pytest.mark.parametrize("name", ["sliding", "dilated and global", "latent in a window"])
def test_a_token_in_a_window_looks_at_all_its_slots(name: str, length: int, room: int | None) -> None:
    config = SAMPLES["language-model"][name]
    model, words = config.build().eval(), torch.randint(0, config.vocabulary, (1, length))
    cache = model.start(1, max(length, room or 0))
    for word in words.split(1, dim=1):
        with FlopCounterMode(display=False) as counter:
            model.step(word, cache, watch=lambda attention, weights: None)
    cost = estimate(config, Work(1, length), precision="fp32")
    assert cost.generated_token_flops(room=room) == counter.get_total_flops()


@pytest.mark.parametrize("latent", [2, 200])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_a_token_behind_latents_takes_the_order_with_fewer_products(latent: int, length: int) -> None:
    heads = latents(latent=latent, dropout=0.0)
    stack = StackConfig(layers=1, attention=heads, feed_forward=FeedForwardConfig(hidden=8))
    config = LanguageModelConfig(vocabulary=11, width=16, decoder=stack, position=RotaryConfig())
    model, words = config.build().eval(), torch.randint(0, 11, (1, length))
    counted = {}
    for form in (None, "naive", "absorbed"):
        for attention in model.decoder.attention():
            attention.form = form
        cache = model.start(1, length)
        for word in words.split(1, dim=1):
            with FlopCounterMode(display=False) as counter:
                model.step(word, cache, watch=lambda attention, weights: None)
        counted[form] = counter.get_total_flops()
    said = estimate(config, Work(1, length), precision="fp32").generated_token_flops()
    assert said == counted[None] == min(counted["naive"], counted["absorbed"])


def test_latents_of_deepseek_v2_take_the_cache_that_was_published() -> None:
    """576 numbers a token and layer, where 128 heads of keys and values as wide as its own would take 32,768."""
    widths = {"heads": 128, "head_width": 128, "value_width": 128}
    stacks = [
        StackConfig(layers=60, attention=attention)
        for attention in (latents(**widths, latent=512, rotary_width=64), HeadsConfig(**widths))
    ]
    caches = [
        estimate(
            LanguageModelConfig(vocabulary=100, width=5120, decoder=stack, position=RotaryConfig()),
            Work(1, 8),
            precision="bf16",
        ).cache_bytes_per_token
        for stack in stacks
    ]
    assert caches == [(60 * 576 * 2, 0), (60 * 32_768 * 2, 0)]


def test_more_experts_take_no_more_flops_but_those_of_the_router() -> None:
    few, many = (
        StackConfig(layers=2, feed_forward=ExpertsConfig(hidden=64, experts=experts, active=2)) for experts in (4, 32)
    )
    costs = [
        estimate(LanguageModelConfig(vocabulary=50, width=32, decoder=stack), Work(3, 5), precision="fp32")
        for stack in (few, many)
    ]
    assert costs[1].forward_flops_per_step - costs[0].forward_flops_per_step == 2 * 2 * 3 * 5 * 32 * (32 - 4)
    assert costs[1].parameters - costs[0].parameters == 2 * (32 - 4) * (32 + 2 * 32 * 64 + 64 + 32)


@EVERY_SAMPLE
@pytest.mark.parametrize("length", [2, 12])
def test_the_cache_of_a_text_takes_as_much_as_said(config: ModelConfig, length: int) -> None:
    """What a window has left behind is not kept."""
    model, work = config.build().eval(), work_for(config, 1, 5, length)
    ids = inputs(config, work)
    cache = model.start(ids[0], length) if len(ids) == 2 else model.start(1, length)
    model.step(ids[-1], cache)
    pairs = [pair for layer in cache.layers for pair in (layer.own.tensors, layer.memory) if pair is not None]
    there = {id(tensor): tensor.nbytes for pair in pairs for tensor in pair}
    assert estimate(config, work, precision="fp32").cache_bytes() == sum(there.values())


@EVERY_SAMPLE
def test_the_cache_grows_by_as_much_as_said(config: ModelConfig) -> None:
    model = config.build().eval()
    cost = estimate(config, work_for(config, 1, 5, 4), precision="fp32")
    assert cost.cache_bytes_per_token[0] == model.bytes_a_position()
    if isinstance(config, EncoderDecoderConfig):
        pairs = model.start(inputs(config, work_for(config, 1, 5, 4))[0], 8).layers
        there = {id(tensor): tensor.nbytes for layer in pairs for tensor in layer.memory}
        assert cost.cache_bytes_per_token[1] * 5 == sum(there.values())


@EVERY_UNLIKE
def test_tokens_of_both_sides_add_up_to_a_step(config: ModelConfig, work: Work) -> None:
    cost = estimate(config, replace(work, accumulate=3), precision="fp32")
    source, target = cost.flops_per_token
    assert 3 * work.rows * (source * work.source + target * work.target) == pytest.approx(cost.forward_flops_per_step)
    assert (source > 0) == (work.source > 0)


def test_attention_s_share_is_what_length_adds() -> None:
    """Twice the length: every other product does as much for each token, attention twice as much."""
    short, long = (estimate(gpt2(2, 64, 100), Work(1, length), precision="fp32") for length in (100, 200))
    rest = (1 - short.attention_share) * short.flops_per_token[1]
    assert long.flops_per_token[1] - rest == pytest.approx(2 * short.attention_share * short.flops_per_token[1])


def test_long_local_attention_counts_only_the_keys_in_reach() -> None:
    stack = StackConfig(layers=1, attention=HeadsConfig(heads=2, pattern="sliding(100)"))
    config, work = LanguageModelConfig(vocabulary=11, width=32, decoder=stack), Work(2, 1500)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        config.build()(*inputs(config, work))  # in strips, each of them by products the counter knows
    assert estimate(config, work, precision="fp32").forward_flops_per_step == counter.get_total_flops()


def test_a_step_has_its_micro_batches_and_training_its_steps() -> None:
    one, all_of_them = base_cost(), base_cost(steps=10, accumulate=4)
    assert all_of_them.flops_per_step == 4 * one.flops_per_step
    assert all_of_them.total_flops == 40 * one.total_flops


def test_the_paper_s_big_model_agrees_with_six_flops_a_parameter_and_token() -> None:
    """C ≈ 6ND (Kaplan et al. 2020, §2.1), where each side's tokens meet that side's parameters."""
    cost = estimate(transformer_big(37000), Work(1000, 25, 25), precision="bf16")
    assert cost.flops_per_step == pytest.approx(6 * cost.parameters * 25_000, rel=0.02)


# Memory


def kept_bytes(config: ModelConfig, work: Work) -> int:
    """Bytes of all that autograd really keeps, parameters left out."""
    model = config.build().train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}  # by storage; holding the tensors keeps an address from being used again

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = tensor
        return tensor

    ids = inputs(config, work)
    lengths = torch.full((work.rows,), work.target).sub_(torch.arange(work.rows) % 3)
    padded = {"target_lengths": lengths, "source_lengths": lengths.clamp(max=work.source)} if work.source else {}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        word_loss(model(*ids, **padded), ids[-1], lengths, smoothing=0.1)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    ("config", "work"),
    [
        pytest.param(translator(64, 2, 300), Work(8, 12, 10), id="small"),
        pytest.param(translator(128, 3, 2000), Work(16, 24, 32), id="larger"),
        pytest.param(translator(64, 2, 300, order="post"), Work(8, 12, 10), id="post-norm"),
        pytest.param(gpt2(layers=2, width=128, vocabulary=500), Work(4, 64), id="language model"),
        pytest.param(deep_seek(64, 2), Work(4, 32), id="latents and experts"),
    ],
)
def test_activations_are_what_autograd_keeps(config: ModelConfig, work: Work) -> None:
    cost = estimate(config, work, precision="fp32", device="cpu")
    assert cost.activations_bytes == pytest.approx(kept_bytes(config, work), rel=0.01)


def without_dropout(config: ModelConfig) -> ModelConfig:
    """The same, so that attention is fused on a CPU too."""
    still = {"dropout": 0.0}
    plain = config.plain()
    for name in {"encoder", "decoder"} & set(plain):
        stack = plain[name]
        plain[name] |= still | {part: stack[part] | still for part in ("attention", "feed_forward")}
    return type(config).read(plain)


@EVERY_SAMPLE
@pytest.mark.parametrize("dropout", [True, False], ids=["with dropout", "without"])
def test_activations_of_every_model_come_near_what_autograd_keeps(config: ModelConfig, dropout: bool) -> None:
    config = config if dropout else without_dropout(config)
    work = work_for(config, 16, 10, 10)
    cost = estimate(config, work, precision="fp32", device="cpu")
    assert cost.activations_bytes == pytest.approx(kept_bytes(config, work), rel=0.05)


def test_a_gpu_keeps_a_byte_for_each_mask_and_no_weights_of_attention() -> None:
    config, work = SAMPLES["language-model"]["plain"], Work(16, 10)
    ours, theirs = (estimate(config, work, precision="fp32", device=device, form="plain") for device in ("cuda", "cpu"))
    cells, hidden, weights = 16 * 10 * 16, 16 * 10 * 24, 16 * 4 * 10 * 10
    masks = cells + 2 * (2 * cells + hidden)
    sums = 2 * 16 * 10 * 4
    assert theirs.activations_bytes - ours.activations_bytes == 3 * masks + 2 * 3 * 4 * weights - 4 * sums


MEASURED = json.loads((Path(__file__).parents[2] / "benchmarks/results/capture-gpu.json").read_text(encoding="utf-8"))
PIECES = 66
"""Of the library's workspace, in the process that was measured: 33 streams of two threads each."""


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_peak_memory_of_the_plain_form_is_what_cuda_reported(precision: Any) -> None:
    """One model, one shape, the loss taken some rows at a time, after many passes recorded on streams of their own."""
    seen = measured_peak(precision)
    cost = estimate(transformer_base(32768), Work(768, 32, 32), precision=precision, form="plain", loss="rows")
    peak = cost.memory + PIECES * HARDWARE["h200"].workspace
    assert peak == pytest.approx(seen, rel=0.03)
    # That benchmark lets go of gradients before forward, so they are not there when most is held.
    assert peak - cost.gradients_bytes == pytest.approx(seen, rel=0.005)


def test_what_has_a_precision_is_what_cuda_reported() -> None:
    """Whatever else a process holds is the same in both: it falls out of the difference."""
    costs = [
        estimate(transformer_base(32768), Work(768, 32, 32), precision=kind, form="plain", loss="kernel").memory
        for kind in ("fp32", "bf16")
    ]
    seen = measured_peak("fp32") - measured_peak("bf16")
    assert costs[0] - costs[1] == pytest.approx(seen, rel=0.005)


def measured_peak(precision: str) -> int:
    name = f"peak memory of the base model in {precision}, 768 × 32"
    (case,) = [case for case in MEASURED["cases"] if case["case"] == name]
    return int(case["seen_bytes"])


def test_the_loss_looks_at_as_many_logits_as_is_said() -> None:
    from regard.train import loss

    assert loss._CELLS == LOSS_CELLS


def test_training_takes_the_fast_form_on_a_gpu_and_the_plain_one_elsewhere() -> None:
    config, work = transformer_base(32768), Work(768, 32, 32)
    alone, shared, cut = (
        estimate(config, work, precision="bf16", processes=processes, shards=shards)
        for processes, shards in ((1, 1), (4, 1), (4, 4))
    )
    assert [(cost.form, cost.loss) for cost in (alone, shared, cut)] == [
        ("fast", "late"),
        ("fast", "over"),
        ("plain", "over"),
    ]
    assert [cost.lowered for cost in (alone, shared, cut)] == [True, False, False]
    twice = estimate(config, replace(work, passes=2), precision="bf16")
    assert (twice.form, twice.loss, twice.lowered) == ("fast", "over", True)
    elsewhere = alone.on(HARDWARE["cpu-2-cores"])
    assert (elsewhere.form, elsewhere.loss) == ("plain", "rows")
    other = alone.on(replace(HARDWARE["h200"], captures=False))
    assert (other.form, other.loss) == ("plain", "over")
    assert elsewhere.on(HARDWARE["h200"]) == alone


def test_a_model_without_residual_sums_has_no_fast_form() -> None:
    config = translator(64, 2, 300, order="none")
    assert estimate(config, Work(8, 12, 10), precision="bf16").form == "plain"


def test_words_that_the_loss_scores_are_there_a_piece_at_a_time() -> None:
    """A batch of twice the size has its scores in two pieces, each as large as all of the other's."""
    half = Work(LATE_CELLS // 2**15 // 32, 32, 32)
    one, two = (
        estimate(transformer_base(2**15), work, precision="bf16").loss_bytes
        for work in (half, replace(half, rows=2 * half.rows))
    )
    cells = half.rows * 32
    assert one == 2 * (LATE_CELLS + 2 * cells * 512 + 2**15 * 512) + 8 * cells
    assert two - one == cells * (2 * 2 * 512 + 8)


def test_a_few_words_of_a_large_model_hold_most_when_all_gradients_are_there() -> None:
    """Those of the copies in bf16, a second one of the table of words, and the sum of both."""
    cost = estimate(gpt2(), Work(1, 8), precision="bf16")
    assert cost.activations_bytes + cost.loss_bytes == 2 * (cost.parameters + 2 * 50304 * 768)


def test_a_large_batch_of_few_words_holds_most_when_the_way_back_begins() -> None:
    cost = estimate(translator(128, 3, 100), Work(512, 16, 16), precision="bf16")
    assert cost.loss_bytes == 2 * (100 * 128 + 2 * 512 * 16 * 512)


def test_recording_sets_aside_what_each_stream_needs() -> None:
    plain, recorded = (workspace_bytes(HARDWARE["h200"], captured=captured) for captured in (False, True))
    assert (plain, recorded) == (2 * 2**25, 2 * 3 * 2**25)
    assert workspace_bytes(HARDWARE["cpu-2-cores"], captured=True) == 0


def test_recording_keeps_gradients_aside() -> None:
    """Not so in bf16 where a step has one pass, which takes the place of what the step before left."""
    machine, slow = HARDWARE["h200"], HARDWARE["cpu-2-cores"]
    aside = {}
    for precision in ("bf16", "fp32"):
        for accumulate in (1, 2):
            cost = base_cost(accumulate=accumulate).anew(precision=precision)
            more = cost.peak(machine, captured=True) - cost.peak(machine)
            aside[precision, accumulate] = (more - 2 * 2 * 2**25) / cost.parameters
            assert cost.peak(slow, captured=True) == cost.peak(slow)
    assert aside == {("bf16", 1): 0, ("bf16", 2): 4, ("fp32", 1): 4, ("fp32", 2): 4}


def train_gpu_models() -> dict[str, tuple[ModelConfig, Work]]:
    """The models of benchmarks/train_gpu.py."""
    base = StackConfig(
        attention=HeadsConfig(dropout=0.1), feed_forward=FeedForwardConfig(dropout=0.1), order="post", dropout=0.1
    )
    still = StackConfig(
        layers=12,
        attention=HeadsConfig(heads=12, bias=False),
        feed_forward=FeedForwardConfig(hidden=3072, activation="gelu", bias=False),
        dropout=0.0,
    )
    text = LanguageModelConfig(
        vocabulary=50304,
        width=768,
        decoder=still,
        position=LearnedConfig(limit=1024),
        embedding=EmbeddingConfig(scale=False, dropout=0.0),
    )
    return {
        "base": (EncoderDecoderConfig(vocabulary=32768, encoder=base, decoder=base), Work(768, 32, 32)),
        "GPT-2": (text, Work(32, 1024)),
    }


@pytest.mark.parametrize(("name", "seen"), [("base", 6.54), ("GPT-2", 12.0)])
def test_peak_memory_of_the_fast_form_is_what_cuda_reported(name: str, seen: float) -> None:
    """GiB on an H200 in bf16, measured by benchmarks/train_gpu.py: recorded in the first step, of one shape.

    Then there is nothing of the optimiser yet, no gradient to keep aside, and no product on the main stream.
    """
    config, work = train_gpu_models()[name]
    cost, machine = estimate(config, work, precision="bf16"), HARDWARE["h200"]
    first = cost.memory - cost.optimiser_bytes + 2 * 2 * machine.workspace
    assert first / 2**30 == pytest.approx(seen, rel=0.01)


@pytest.mark.parametrize("config", [translator(64, 2, 300), deep_seek(64, 2)], ids=["translator", "experts"])
@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_the_optimiser_remembers_as_much_as_said(kind: str, config: ModelConfig) -> None:
    model, work = config.build(), work_for(config, 2, 3, 3)
    optimiser = OptimiserConfig.read({"kind": kind}).build(model)
    model(*inputs(config, work)).sum().backward()
    optimiser.step(0.1)
    kept = sum(tensor.nbytes for tensor in optimiser.memory().values() if tensor.dim())
    assert estimate(config, work, precision="fp32", optimiser=kind).optimiser_bytes == kept


def test_memory_must_hold_the_largest_batch_and_time_the_mean_one() -> None:
    mean, full = (base_cost(tokens=tokens) for tokens in (None, 2 * 768 * 32))
    assert full.activations_bytes == pytest.approx(2 * mean.activations_bytes, rel=0.01)  # weights side by side
    assert full.minutes(HARDWARE["h200"]) == mean.minutes(HARDWARE["h200"])


def test_micro_batches_take_no_more_memory_than_one_but_for_what_is_added_in_float32() -> None:
    one, many = base_cost(), base_cost(accumulate=8)
    assert many.memory - one.memory == 4 * one.parameters
    one, many = one.anew(precision="fp32"), many.anew(precision="fp32")
    assert many.memory == one.memory


# Minutes


@pytest.mark.parametrize(
    ("config", "work", "precision", "machine", "seconds"),
    [
        pytest.param(transformer_base(32768), Work(768, 32, 32), "bf16", "h200", (0.0357, 0.0611), id="base"),
        pytest.param(transformer_base(32768), Work(768, 32, 32), "fp32", "h200", (0.232, 0.232), id="base in float32"),
        pytest.param(translator(256, 4, 8000), Work(512, 16, 16), "bf16", "h200", (0.0207, 0.0300), id="small"),
        pytest.param(gpt2(), Work(32, 1024), "bf16", "h200", (0.0631, 0.1108), id="GPT-2"),
        pytest.param(translator(256, 3, 8000), Work(64, 16, 16), "fp32", "cpu-2-cores", (0.602, 0.811), id="CPU"),
        pytest.param(gpt2(4, 128, 65), Work(12, 64), "fp32", "cpu-2-cores", (0.072, 0.082), id="CPU, characters"),
    ],
)
def test_the_range_holds_what_was_measured(
    config: ModelConfig, work: Work, precision: Any, machine: str, seconds: tuple[float, float]
) -> None:
    """Seconds of a step, which the constants in `Hardware` were fitted to: this guards them, it does not prove them.

    H200: this package compiled and eager (the faster GPT-2 is nanoGPT compiled). CPU: the fastest and the slowest of
    seven toolkits on a translation model, 1,702 and 1,262 words a second taken as batches of 64 × 16, and nanoGPT.
    """
    low, high = (60 * minutes for minutes in estimate(config, work, precision=precision).minutes(HARDWARE[machine]))
    assert low <= seconds[0] <= seconds[1] <= high
    assert high < 15 * low  # and still says something


@pytest.mark.parametrize(
    ("config", "work", "seconds"),
    [
        pytest.param(transformer_base(32768), Work(768, 32, 32), 0.0602, id="base"),
        pytest.param(translator(256, 4, 8000), Work(512, 16, 16), 0.0101, id="small"),
        pytest.param(translator(64, 2, 1000), Work(32, 16, 16), 0.00216, id="tiny"),
    ],
)
def test_the_range_of_captured_steps_holds_what_was_measured(config: ModelConfig, work: Work, seconds: float) -> None:
    """Seconds of a step on an H200, forward and backward recorded in a CUDA graph."""
    low, high = (
        60 * part for part in estimate(config, work, precision="bf16").minutes(HARDWARE["h200"], captured=True)
    )
    assert low <= seconds <= high < 4 * low


@EVERY_SAMPLE
def test_capturing_never_costs_time(config: ModelConfig) -> None:
    cost = estimate(config, work_for(config, 8, 10, 10), precision="bf16")
    for machine in HARDWARE.values():
        assert cost.minutes(machine, captured=True)[1] <= cost.minutes(machine)[1]


def test_a_tiny_model_waits_for_its_launches_not_for_arithmetic() -> None:
    slow = replace(HARDWARE["h200"], bf16=1e14)
    cost = estimate(translator(16, 2, 50), Work(4, 8, 8), precision="bf16")
    assert cost.minutes(slow) == cost.minutes(HARDWARE["h200"])


# Processes


def test_processes_share_whole_micro_batches_or_parts_of_each() -> None:
    work = Work(100, 10, 10, accumulate=4, tokens=2000)
    assert work.shared(2) == replace(work, accumulate=2)
    assert work.shared(3) == replace(work, rows=34, tokens=667)
    assert work.shared(8) == replace(work, rows=13, tokens=250)


def test_a_shared_step_is_as_large_and_each_process_holds_less() -> None:
    one, eight = (
        estimate(transformer_base(32768), Work(768, 32, 32), precision="bf16", processes=number) for number in (1, 8)
    )
    assert eight.flops_per_step == one.flops_per_step
    assert eight.lasting_bytes == one.lasting_bytes + 4 * one.parameters  # the buckets of gradients
    logits = 2 * 96 * 32 * (32768 + 512)  # and the vectors that are scored, which one process lets go of
    weights = 2 * 48 * 512**2  # of query, key and value below each other, which in one process lie so
    assert eight.activations_bytes == one.activations_bytes / 8 + weights + logits
    machine = HARDWARE["h200"]
    assert one.minutes(machine)[0] / 8 < eight.minutes(machine)[0] < one.minutes(machine)[0]


def test_weights_that_are_shared_out_take_a_part_each() -> None:
    config, work = gpt2(), Work(8, 1024)
    whole, shared = (
        estimate(config, work, precision="bf16", processes=4, shards=shards, form="plain") for shards in (1, 4)
    )
    assert shared.optimiser_bytes == whole.optimiser_bytes // 4
    assert shared.gradients_bytes == whole.parameters
    block = 12 * 768 * 768 + 13 * 768
    outside = whole.parameters - 12 * block
    assert shared.weights_bytes == whole.parameters + 2 * (outside + 2 * block)
    assert shared.activations_bytes == whole.activations_bytes
    assert shared.exchanged_bytes_per_step == whole.exchanged_bytes_per_step == 6 * whole.parameters


def test_how_the_loss_is_taken_decides_what_it_holds() -> None:
    config, work = transformer_base(32768), Work(768, 32, 32)
    ways = ("rows", "kernel", "over")
    costs = [estimate(config, work, precision="bf16", form="plain", loss=way) for way in ways]
    assert len({cost.activations_bytes for cost in costs}) == 1
    logits, slopes = 2 * 768 * 32 * 32768, 2 * 512 * (768 * 32 + 32768)
    assert [cost.loss_bytes for cost in costs] == [logits + 16 * 2**23, logits, slopes]
    late = base_cost()
    assert late.loss_bytes == logits + slopes + 768 * 32 * (2 * 512 + 8)


def test_a_slow_link_holds_several_processes_up() -> None:
    cost = estimate(transformer_base(32768), Work(768, 32, 32), precision="bf16", processes=2)
    machine = replace(HARDWARE["h200"], link=1e9)
    assert 60 * cost.minutes(machine)[0] == pytest.approx(4 * cost.parameters / 1e9)


def test_no_process_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1 process"):
        estimate(gpt2(), Work(1, 8), precision="fp32", processes=0)
    with pytest.raises(UserError, match="groups of equal size"):
        estimate(gpt2(), Work(1, 8), precision="fp32", processes=4, shards=3)


# Hardware


def test_this_machine_has_rates_and_memory() -> None:
    machine = this_hardware(torch.device("cpu"))
    assert machine.memory > 1 << 28
    assert 1e8 < machine.fp32 < 1e15
    assert 1e6 < machine.bf16 < 1e15
    assert 1e7 < machine.bandwidth < 1e14


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
    ],
)
def test_a_gpu_is_known_by_its_name_and_has_its_own_memory(
    name: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Properties:
        total_memory = 12345

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert this_hardware(torch.device("cuda")) == replace(HARDWARE[known], memory=12345)


# Words


def test_what_fits_needs_no_advice() -> None:
    assert advice_for_memory(base_cost(), HARDWARE["h200"]) is None


def test_unknown_memory_gives_no_advice() -> None:
    assert advice_for_memory(base_cost(), replace(HARDWARE["t4"], memory=0)) is None


def test_the_advised_tokens_fit_and_one_row_more_does_not() -> None:
    machine = HARDWARE["t4"]
    advice = advice_for_memory(base_cost(tokens=32 * 2304), machine)
    assert advice is not None
    tokens = int(advice.split("train.tokens to ")[1].split()[0].replace(",", ""))
    peaks = [base_cost(tokens=size).peak(machine) for size in (tokens, tokens + 32)]
    assert peaks[0] <= USABLE * machine.memory < peaks[1]


def test_the_advised_tokens_fit_where_sides_differ_in_length() -> None:
    machine, work = HARDWARE["t4"], Work(2304, 32, 20)
    advice = advice_for_memory(estimate(transformer_base(32768), work, precision="bf16"), machine)
    assert advice is not None
    tokens = int(advice.split("train.tokens to ")[1].split()[0].replace(",", ""))
    cost = estimate(transformer_base(32768), replace(work, tokens=tokens), precision="bf16")
    assert advice_for_memory(cost, machine) is None


def test_advice_names_the_micro_batches_of_as_large_a_step() -> None:
    advice = advice_for_memory(base_cost(tokens=32 * 2200, accumulate=3), HARDWARE["t4"])
    assert advice is not None
    assert "train.accumulate at 6" in advice


def test_advice_names_bf16_where_it_is_enough() -> None:
    machine = Hardware("some card", fp32=1e13, bf16=1e14, bandwidth=1e12, memory=int(12e9))
    cost = estimate(transformer_base(32768), Work(768, 32, 32), precision="fp32")
    assert "train.precision to bf16, which takes about 7.4 GB" in (advice_for_memory(cost, machine) or "")


def test_advice_says_when_no_batch_is_small_enough() -> None:
    cost = estimate(gpt2(layers=64, width=32768), Work(1, 8), precision="bf16")
    assert "not even one row of 8 tokens" in (advice_for_memory(cost, HARDWARE["h200"]) or "")


def test_a_cost_is_one_line_for_a_person() -> None:
    cost = base_cost(steps=100_000)
    assert cost.describe(HARDWARE["h200"]) == (
        "60,878,848 parameters (44.1 M without word vectors) · 905.5 PFLOP in all · about 7.4 GB of memory · "
        "0.7–2.1 hours on h200"
    )
    assert cost.describe(replace(HARDWARE["h200"], workspace=0)).startswith(str(cost))


@pytest.mark.parametrize(
    ("steps", "unit"), [(1, "seconds"), (2_000, "minutes"), (200_000, "hours"), (20_000_000, "days")]
)
def test_time_is_told_in_the_unit_that_suits_it(steps: int, unit: str) -> None:
    assert base_cost(steps=steps).describe(HARDWARE["h200"]).endswith(f" {unit} on h200")


# Mistakes


def test_a_source_is_for_encoder_decoders_only() -> None:
    with pytest.raises(UserError, match="language model has none"):
        estimate(gpt2(), Work(1, 8, 8), precision="fp32")
    with pytest.raises(UserError, match="encoder–decoder has a source"):
        estimate(translator(16, 1, 50), Work(1, 8), precision="fp32")


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"target": 0}, {"steps": 0}, {"accumulate": 0}, {"source": -1}])
def test_work_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least 1"):
        Work(**{"rows": 1, "target": 1, **wrong})


def test_rows_longer_than_the_budget_are_refused() -> None:
    with pytest.raises(UserError, match="does not fit"):
        Work(1, 10, 20, tokens=19)


@pytest.mark.parametrize("wrong", [{"precision": "fp8"}, {"precision": "fp32", "optimiser": "sgd"}])
def test_an_unknown_choice_is_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match="choose"):
        estimate(gpt2(), Work(1, 8), **wrong)


def test_two_passes_cost_what_twice_the_rows_cost() -> None:
    config = translator(64, 2, 300)
    twice, more = Work(8, 12, 10, passes=2), Work(16, 12, 10)
    costs = [estimate(config, work, precision="fp32", loss="over") for work in (twice, more)]
    assert costs[0].memory == costs[1].memory
    assert costs[0].flops_per_step == costs[1].flops_per_step
    assert costs[0].minutes(HARDWARE["h200"]) == costs[1].minutes(HARDWARE["h200"])


def test_the_advised_tokens_are_those_of_one_pass() -> None:
    machine, work = HARDWARE["t4"], Work(2304, 32, 32, passes=2)
    advice = advice_for_memory(estimate(transformer_base(32768), work, precision="bf16"), machine)
    assert advice is not None
    tokens = int(advice.split("train.tokens to ")[1].split()[0].replace(",", ""))
    fitting = estimate(transformer_base(32768), replace(work, tokens=tokens), precision="bf16")
    assert advice_for_memory(fitting, machine) is None
