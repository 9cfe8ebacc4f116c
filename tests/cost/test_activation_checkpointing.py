"""The cost of training with activation checkpointing, against models that really recompute their layers."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import LatentAttentionConfig
from regard.attention.positions.config import RotaryConfig
from regard.cost import HARDWARE, BatchShape, Report, TrainingSetup, Workload, estimate
from regard.cost.forward import stack_costs
from regard.cost.fused_forward import fused_stack_costs, is_capturable, uses_torch_dropout
from regard.cost.memory import batch_bytes
from regard.cost.op_cost import StackCost
from regard.fused.layers import concatenated_weights
from regard.fused.training import can_capture_checkpointing, fuse_for_training
from regard.model import FeedForwardConfig, ModelConfig, NormConfig, transformer_base
from regard.model.mixture_of_experts import MixtureOfExpertsConfig
from regard.train.loss import cross_entropy
from regard.train.mixed_precision import MixedPrecisionModel
from tests.cost.support import (
    EVERY_SAMPLE,
    SMALL,
    LiveTensors,
    base_cost,
    latent_stack,
    moe_stack,
    random_ids,
    small_language_model,
    small_translator,
    stack,
    workload_for,
)
from tests.model.small_models import norm_order, with_dense_prefix

H200 = HARDWARE["h200"]
CHECKPOINTING = TrainingSetup("bfloat16", activation_checkpointing=True)


@pytest.fixture
def interpret_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Triton's kernels in its interpreter."""
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the unfused model, by hiding the packages of the fused CPU kernels."""
    monkeypatch.setattr("regard.kernels.dispatch.has_numba", lambda: False)


MODELS: dict[str, ModelConfig] = {
    "pre-norm": small_translator(stack()),
    "post-norm": small_translator(stack(norm_position="post")),
    "gated": small_translator(stack("swiglu")),
    "deeper encoder": small_translator(stack(), encoder=stack(layers=4)),
    "shared cross_kv, grouped-query": small_translator(stack(attention={"kv_heads": 1}), cross_kv="shared"),
    "cosine": small_translator(stack(attention={"similarity": "cosine"})),
    "latent": small_translator(latent_stack()),
    "latent, shared cross_kv": small_translator(latent_stack(), cross_kv="shared"),
    "experts": small_translator(moe_stack()),
    "wide dense prefix before experts": small_translator(with_dense_prefix(moe_stack(layers=3), hidden=99)),
    "narrow dense prefix": small_language_model(with_dense_prefix(stack(layers=3), hidden=7, activation="gelu")),
    "language model": small_language_model(stack()),
    "language model, post-norm, gelu": small_language_model(stack("gelu", norm_position="post")),
    "RMSNorm, no biases": small_language_model(stack("silu", attention={"bias": False}, norm=NormConfig(kind="rms"))),
}
EVERY_MODEL = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


# Activations


def live_bytes(model: nn.Module, forward: Any, ids: list[Tensor]) -> int:
    """Bytes alive between forward and backward, without weights and the output but with the ids."""
    copies = forward.copies if isinstance(forward, MixedPrecisionModel) else []
    with LiveTensors([*model.parameters(), *copies]) as live:
        output = forward(*ids)
        gc.collect()  # Triton's interpreter leaves reference cycles behind
        size = live.bytes
    result: Tensor = output if isinstance(output, Tensor) else output.x
    return size - result.untyped_storage().nbytes() + sum(each.nbytes for each in ids)


def with_both_stacks(costs: tuple[StackCost, StackCost]) -> StackCost:
    """Encoder and decoder in one, with the last layer of each recomputed."""
    source, target = costs
    return StackCost(
        source.layers + target.layers,
        source.outside + target.outside,
        source.checkpointed + target.checkpointed,
        (source.recomputed[-1] + target.recomputed[-1],),
    )


def assert_fused_model_saves_the_estimate(config: ModelConfig, deferred_logits: bool = True) -> None:
    # The norm of latents is not fused: on a CPU it saves float32 in any precision.
    exact = isinstance(config.decoder.attention, LatentAttentionConfig)
    model = config.build().train()
    forward: Any = fuse_for_training(model, fused_loss=deferred_logits, activation_checkpointing=True)
    if not exact:
        adjacent = concatenated_weights(forward) if deferred_logits else ()
        forward = MixedPrecisionModel(forward, torch.float16, adjacent=adjacent)
    estimated = with_both_stacks(fused_stack_costs(config, SMALL, "cpu", deferred_logits=deferred_logits)).checkpointed
    saved = live_bytes(model, forward, random_ids(config, SMALL))
    assert estimated.bytes("float32" if exact else "bfloat16", "cpu") == saved


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("interpret_triton")
@EVERY_MODEL
def test_fused_model_saves_the_estimated_bytes(config: ModelConfig) -> None:
    assert_fused_model_saves_the_estimate(config)


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("interpret_triton")
@pytest.mark.parametrize("name", ["pre-norm", "cosine", "narrow dense prefix"])
def test_fused_model_without_deferred_logits_saves_the_estimated_bytes(name: str) -> None:
    assert_fused_model_saves_the_estimate(MODELS[name], deferred_logits=False)


@pytest.mark.usefixtures("interpret_triton")
@pytest.mark.parametrize("cross_kv", ["per_layer", "shared"])
def test_fused_model_saves_the_estimated_bytes_of_long_texts(cross_kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_max_fused_length(monkeypatch, 2)
    assert_fused_model_saves_the_estimate(small_translator(stack(), cross_kv=cross_kv))


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("unfused")
@EVERY_MODEL
def test_unfused_model_saves_the_estimated_bytes(config: ModelConfig) -> None:
    model = config.build().train()
    estimated = with_both_stacks(stack_costs(config, SMALL, "cpu")).checkpointed.bytes("float32", "cpu")
    forward = fuse_for_training(model, activation_checkpointing=True)
    assert estimated == live_bytes(model, forward, random_ids(config, SMALL))


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("unfused")
@EVERY_SAMPLE
def test_every_sample_saves_about_the_estimated_bytes(config: ModelConfig) -> None:
    model, batch = config.build().train(), BatchShape(2, 5, 7)
    estimated = with_both_stacks(stack_costs(config, batch, "cpu")).checkpointed.bytes("float32", "cpu")
    forward = fuse_for_training(model, activation_checkpointing=True)
    assert estimated == pytest.approx(live_bytes(model, forward, random_ids(config, batch)), rel=0.05)


@pytest.mark.parametrize("fused", [False, True])
@EVERY_MODEL
def test_single_recomputed_layer_saves_the_estimated_bytes(config: ModelConfig, fused: bool) -> None:
    """On a GPU, whose attention takes or saves keys and values as projected."""
    values = config.plain()
    for name in {"encoder", "decoder"} & set(values):
        values[name] |= {"layers": 1, "dense_prefix": None}
    single = type(config).read(values)
    costs = (
        fused_stack_costs(single, SMALL, "cuda", deferred_logits=True) if fused else stack_costs(single, SMALL, "cuda")
    )
    cost = with_both_stacks(costs)
    saved = cost.checkpointed + cost.recomputed[-1]
    assert saved.bytes("bfloat16", "cuda") == cost.total.bytes("bfloat16", "cuda")


# Peak


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize("activation_checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["language model", "translator"])
@pytest.mark.parametrize("variant", ["plain", "latent", "experts", "wide first layer", "narrow first layer"])
def test_peak_is_near_the_estimate(variant: str, kind: str, activation_checkpointing: bool) -> None:
    """For the unfused model on a CPU, with the gradients of the weights already allocated."""
    changes: dict[str, Any] = {"feed_forward": FeedForwardConfig(hidden=128)}
    if variant == "latent":
        changes["attention"] = latent_stack().attention
    if variant == "experts":
        changes["feed_forward"] = MixtureOfExpertsConfig(hidden=64, experts=4, shared_experts=1)
    layers = stack(layers=6, attention={"heads": 4}).model_copy(update=changes)
    if "first layer" in variant:
        layers = with_dense_prefix(layers, hidden=256 if "wide" in variant else 32)
    config = small_language_model(layers) if kind == "language model" else small_translator(layers)
    workload, model = workload_for(config, 64, 16, 16), config.build().train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    ids = random_ids(config, workload)
    forward = fuse_for_training(model, activation_checkpointing=activation_checkpointing)
    with LiveTensors([*model.parameters(), *grads]) as live:
        cross_entropy(forward(*ids), ids[-1], None, 0.1).total.backward()
    setup = TrainingSetup("float32", device="cpu", activation_checkpointing=activation_checkpointing)
    cost = estimate(config, workload, setup)
    measured = live.peak + sum(each.nbytes for each in ids)
    assert cost.activation_bytes + cost.temporary_bytes == pytest.approx(measured, rel=0.07)


def test_only_layer_inputs_and_cross_attention_keys_are_saved() -> None:
    values, layers, size = 768 * 32 * 512, 6, 2
    inputs, keys_and_values = 2 * layers * values, layers * 2 * values
    ids_and_statistics = 2 * 768 * 32 * 8
    pre_norm = transformer_base(32768).decoder.norm_position == "pre"
    final_norms = values * size + (2 * 768 * 32 * 8 if pre_norm else 0)  # the encoder's output
    saved = base_cost(activation_checkpointing=True).activation_bytes
    assert saved == size * (inputs + keys_and_values) + ids_and_statistics + final_norms


def test_recomputed_layer_counts_when_backward_begins() -> None:
    """In addition to the gradients of the last hidden states and the embedding; the vocabulary and logits are small."""
    config, batch = small_language_model(stack()), BatchShape(512, 16)
    _, target = fused_stack_costs(config, batch, "cuda", deferred_logits=True)
    saved, temporary = batch_bytes(config, batch, CHECKPOINTING.resolved(config, Workload(512, 16)))
    assert saved == target.checkpointed.bytes("bfloat16", "cuda")
    assert temporary == target.recomputed[-1].bytes("bfloat16", "cuda") + 2 * (60 * 32 + 2 * 512 * 16 * 48)


def test_largest_recomputed_layer_counts() -> None:
    large = stack().model_copy(update={"feed_forward": FeedForwardConfig(hidden=480)})
    config, batch = small_translator(stack(), encoder=large), BatchShape(64, 16, 16)
    encoder, decoder = (
        cost.recomputed[-1].bytes("bfloat16", "cuda")
        for cost in fused_stack_costs(config, batch, "cuda", deferred_logits=True)
    )
    assert encoder > decoder
    _, temporary = batch_bytes(config, batch, CHECKPOINTING.resolved(config, Workload(64, 16, 16)))
    assert temporary == encoder + 2 * (60 * 32 + 2 * 64 * 16 * 48)


def test_logits_count_if_they_take_more_than_a_recomputed_layer() -> None:
    assert base_cost(activation_checkpointing=True).temporary_bytes == base_cost().temporary_bytes


@pytest.mark.parametrize("fused", [False, True])
@EVERY_MODEL
def test_checkpointing_saves_memory(config: ModelConfig, fused: bool) -> None:
    workload = workload_for(config, 64, 7, 5)
    without, checkpointed = (
        estimate(config, workload, replace(CHECKPOINTING, fused=fused, activation_checkpointing=flag))
        for flag in (False, True)
    )
    assert checkpointed.activation_bytes < without.activation_bytes
    assert checkpointed.tensor_bytes < without.tensor_bytes
    assert checkpointed.model_state_bytes == without.model_state_bytes


# CUDA graphs


def set_max_fused_length(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Make longer texts use PyTorch's attention, in the kernels and in the estimate."""
    monkeypatch.setattr("regard.kernels.cuda.attention.MAX_LENGTH", length)
    monkeypatch.setattr("regard.cost.fused_forward.MAX_LENGTH", length)


TORCH_DROPOUT: dict[str, tuple[ModelConfig, tuple[bool, bool]]] = {
    "short texts": (small_translator(stack()), (False, False)),
    "gated": (small_translator(stack("swiglu")), (True, True)),
    "gated without dropout": (small_translator(stack("swiglu", dropout=0.0)), (False, False)),
    "gated decoder": (small_translator(stack(), decoder=stack("geglu")), (False, True)),
    "cosine encoder": (small_translator(stack(), encoder=stack(attention={"similarity": "cosine"})), (True, False)),
    "RoPE": (small_language_model(stack(), position=RotaryConfig()), (False, True)),
    "RoPE without dropout": (small_language_model(stack(dropout=0.0), position=RotaryConfig()), (False, False)),
    "window": (small_language_model(stack(attention={"pattern": "sliding(2)"})), (False, True)),
    "no output projection": (small_language_model(stack(attention={"output_projection": False})), (False, True)),
    "latent decoder": (small_translator(stack(), decoder=latent_stack()), (False, True)),
    "latent without dropout": (small_translator(latent_stack(0.0)), (False, False)),
    "experts in the encoder": (small_translator(stack(), encoder=moe_stack()), (True, False)),
    "experts without dropout": (small_language_model(moe_stack(dropout=0.0)), (False, False)),
}


def dropout_of_the_fused_model(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Whether the encoder and decoder layers use PyTorch's dropout, according to the fused model."""
    results: list[bool] = []

    def spy(*args: Any, preserve_rng: bool) -> tuple[Tensor, Tensor]:
        results.append(preserve_rng)
        return args[3], args[4]

    monkeypatch.setattr("regard.fused.cuda_stack.checkpointed_pair", spy)
    fuse_for_training(config.build().train(), activation_checkpointing=True)(*random_ids(config, SMALL))
    return any(results[:-2]), any(results[-2:])


@pytest.mark.usefixtures("interpret_triton")
@pytest.mark.parametrize(("config", "expected"), TORCH_DROPOUT.values(), ids=TORCH_DROPOUT.keys())
def test_layers_with_torch_dropout_are_detected(
    config: ModelConfig, expected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert uses_torch_dropout(config, SMALL) == expected == dropout_of_the_fused_model(config, monkeypatch)


@pytest.mark.usefixtures("interpret_triton")
@pytest.mark.parametrize(("max_length", "expected"), [(2, (True, True)), (3, (True, True)), (4, (False, False))])
def test_layers_over_long_texts_use_torch_dropout(
    max_length: int, expected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_max_fused_length(monkeypatch, max_length)
    config = small_translator(stack())
    assert uses_torch_dropout(config, SMALL) == expected == dropout_of_the_fused_model(config, monkeypatch)


def test_captured_layers_with_torch_dropout_save_everything() -> None:
    config = small_translator(stack(), decoder=stack("swiglu"))
    cost = estimate(config, workload_for(config, 2, 4, 3), CHECKPOINTING)
    captured = cost.on(H200, cuda_graphs=True)
    without = cost.with_setup(replace(CHECKPOINTING, activation_checkpointing=False))
    encoder, _ = fused_stack_costs(config, SMALL, "cuda", deferred_logits=True)
    spared = (encoder.total + encoder.checkpointed * -1).bytes("bfloat16", "cuda")
    assert cost.activation_bytes < captured.activation_bytes == without.activation_bytes - spared
    assert captured.recomputed_flops == (cost.recomputed_flops[0], 0)
    overhead = captured.overhead_bytes(H200, cuda_graphs=True)
    assert cost.peak_bytes(H200, cuda_graphs=True) == captured.tensor_bytes + overhead
    assert cost.describe(H200, cuda_graphs=True) != cost.describe(H200)


def test_capture_changes_nothing_with_fused_dropout() -> None:
    cost = base_cost(activation_checkpointing=True)
    assert cost.on(H200, cuda_graphs=True) == replace(cost, setup=replace(cost.setup, cuda_graphs=True))


@pytest.mark.usefixtures("interpret_triton")
@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("orders", [("pre", "pre"), ("none", "pre"), ("post", "none")])
def test_capturable_models_are_detected_from_the_config(orders: tuple[str, str], dropout: float) -> None:
    encoder, decoder = (stack(**norm_order(order), dropout=dropout) for order in orders)
    config = small_translator(decoder, encoder=encoder)
    capturable = can_capture_checkpointing(config.build().train())
    assert is_capturable(config) == capturable == ("none" not in orders or not dropout)
    workload = workload_for(config, 2, 4, 3)
    assert estimate(config, workload, CHECKPOINTING).supports_cuda_graphs == capturable
    assert estimate(config, workload, TrainingSetup("bfloat16")).supports_cuda_graphs


def test_several_processes_capture_nothing() -> None:
    setup = TrainingSetup("bfloat16", processes=2)
    assert not estimate(transformer_base(100), Workload(8, 4, 4), setup).supports_cuda_graphs


# FLOPs and time


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("unfused")
@EVERY_SAMPLE
def test_recomputed_flops_equal_pytorch_s(config: ModelConfig) -> None:
    workload = workload_for(config, 2, 7, 5)
    for flag in (False, True):
        forward = fuse_for_training(config.build().train(), activation_checkpointing=flag)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            forward(*random_ids(config, workload)).sum().backward()
        cost = estimate(config, workload, TrainingSetup("float32", activation_checkpointing=flag))
        assert cost.flops_per_step == counter.get_total_flops()


def test_layers_cost_a_third_more_and_the_rest_the_same() -> None:
    without, checkpointed = (base_cost(activation_checkpointing=flag, grad_accumulation=3) for flag in (False, True))
    tokens, layers, width = 768 * 32, 6, 512
    logits, cross_keys_and_values = 2 * tokens * width * 32768, layers * 2 * tokens * width * 2 * width
    assert checkpointed.forward_flops_per_step == without.forward_flops_per_step
    recomputed = without.forward_flops_per_step - 3 * (logits + cross_keys_and_values)
    assert checkpointed.flops_per_step - without.flops_per_step == recomputed
    source, target = checkpointed.training_flops_per_token
    assert 3 * tokens * (source + target) == pytest.approx(checkpointed.flops_per_step)
    assert without.training_flops_per_token == tuple(3 * each for each in without.flops_per_token)


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("hardware", ["h200", "cpu-2-cores"])
def test_checkpointing_costs_at_most_a_third_more_time(hardware: str, cuda_graphs: bool) -> None:
    without, checkpointed = (
        base_cost(activation_checkpointing=flag).minutes(HARDWARE[hardware], cuda_graphs=cuda_graphs)
        for flag in (False, True)
    )
    for once, twice in zip(without, checkpointed, strict=True):
        assert once < twice <= 4 / 3 * once


def test_report_mentions_checkpointing() -> None:
    without, checkpointed = (
        Report(base_cost(activation_checkpointing=flag), H200, cuda_graphs=True) for flag in (False, True)
    )
    assert [report.to_dict()["activation_checkpointing"] for report in (without, checkpointed)] == [False, True]
    assert "with activation checkpointing" in checkpointed.table()
    assert "with activation checkpointing" not in without.table()
