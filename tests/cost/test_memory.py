"""Estimated memory of training autoregressive models, against the bytes that autograd saves and that CUDA reported."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from regard.attention import LearnedConfig, MultiHeadConfig
from regard.cost import HARDWARE, TrainingSetup, Workload, estimate, workspace_bytes
from regard.cost.memory import DEFERRED_BLOCK, LOSS_CHUNK
from regard.model import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    StackConfig,
    transformer_base,
)
from regard.train import OptimizerConfig, cross_entropy
from tests.cost.support import (
    CAPTURE_WORKSPACES,
    EVERY_SAMPLE,
    SavedTensors,
    base_cost,
    deepseek,
    gpt2,
    measured_peak,
    random_ids,
    translator,
    workload_for,
)
from tests.model.small_models import SAMPLES

CPU = TrainingSetup("float32", device="cpu")
BFLOAT16 = TrainingSetup("bfloat16")
H200 = HARDWARE["h200"]

# Activations


def saved_bytes(config: ModelConfig, workload: Workload) -> int:
    """Bytes that autograd saves for the unfused model and its loss, with padding in some rows."""
    model, ids = config.build().train(), random_ids(config, workload)
    lengths = torch.full((workload.batch_size,), workload.target_length).sub_(torch.arange(workload.batch_size) % 3)
    padding = {}
    if workload.source_length:
        padding = {"target_lengths": lengths, "source_lengths": lengths.clamp(max=workload.source_length)}
    with SavedTensors(model.parameters()) as saved:
        cross_entropy(model(*ids, **padding), ids[-1], lengths, label_smoothing=0.1)
    return saved.bytes


@pytest.mark.parametrize(
    ("config", "workload"),
    [
        pytest.param(translator(64, 2, 300), Workload(8, 12, 10), id="small"),
        pytest.param(translator(128, 3, 2000), Workload(16, 24, 32), id="larger"),
        pytest.param(translator(64, 2, 300, norm_position="post"), Workload(8, 12, 10), id="post-norm"),
        pytest.param(gpt2(layers=2, width=128, vocab_size=500), Workload(4, 64), id="language model"),
        pytest.param(deepseek(64, 2), Workload(4, 32), id="latent attention and experts"),
    ],
)
def test_activations_equal_what_autograd_saves(config: ModelConfig, workload: Workload) -> None:
    assert estimate(config, workload, CPU).activation_bytes == pytest.approx(saved_bytes(config, workload), rel=0.01)


def without_dropout(config: ModelConfig) -> ModelConfig:
    """The config without dropout, so that attention is fused on a CPU too."""
    off = {"dropout": 0.0}
    values = config.plain()
    for name in {"encoder", "decoder"} & set(values):
        stack = values[name]
        values[name] |= off | {part: stack[part] | off for part in ("attention", "feed_forward")}
    return type(config).read(values)


@pytest.mark.one_in(2)
@EVERY_SAMPLE
@pytest.mark.parametrize("dropout", [True, False], ids=["with dropout", "without"])
def test_activations_of_every_sample_are_near_what_autograd_saves(config: ModelConfig, dropout: bool) -> None:
    config = config if dropout else without_dropout(config)
    workload = workload_for(config, 16, 10, 10)
    assert estimate(config, workload, CPU).activation_bytes == pytest.approx(saved_bytes(config, workload), rel=0.05)


def test_gpu_saves_byte_masks_and_no_attention_weights() -> None:
    config, workload = SAMPLES["language-model"]["plain"], Workload(16, 10)
    gpu, cpu = (estimate(config, workload, replace(CPU, device=device, fused=False)) for device in ("cuda", "cpu"))
    values, hidden, weights = 16 * 10 * 16, 16 * 10 * 24, 16 * 4 * 10 * 10
    masks = values + 2 * (2 * values + hidden)
    log_sum_exps = 2 * 16 * 10 * 4
    assert cpu.activation_bytes - gpu.activation_bytes == 3 * masks + 2 * 3 * 4 * weights - 4 * log_sum_exps


# The loss


def test_chunk_size_is_that_of_the_loss() -> None:
    from regard.train import loss

    assert loss._CHUNK_LOGITS == LOSS_CHUNK


def test_temporaries_depend_on_the_loss_kernel() -> None:
    costs = [
        base_cost().with_setup(replace(BFLOAT16, fused=False, loss=kernel))
        for kernel in ("chunked", "fused", "in_place")
    ]
    assert len({cost.activation_bytes for cost in costs}) == 1
    logits, grads = 2 * 768 * 32 * 32768, 2 * 512 * (768 * 32 + 32768)
    assert [cost.temporary_bytes for cost in costs] == [logits + 16 * 2**23, logits, grads]
    assert base_cost().temporary_bytes == logits + grads + 768 * 32 * (2 * 512 + 8)


def test_deferred_logits_exist_one_block_at_a_time() -> None:
    """A batch of twice the size has two blocks of logits, each as large as the single block of the other."""
    batch_size = DEFERRED_BLOCK // 2**15 // 32
    one, two = (
        estimate(transformer_base(2**15), Workload(rows, 32, 32), BFLOAT16).temporary_bytes
        for rows in (batch_size, 2 * batch_size)
    )
    tokens = batch_size * 32
    assert one == 2 * (DEFERRED_BLOCK + 2 * tokens * 512 + 2**15 * 512) + 8 * tokens
    assert two - one == tokens * (2 * 2 * 512 + 8)


# Peak


def test_small_batch_of_a_large_model_peaks_when_all_gradients_exist() -> None:
    """Gradients of the bfloat16 copies, a second one of the embedding matrix, and their sum."""
    cost = estimate(gpt2(), Workload(1, 8), BFLOAT16)
    assert cost.activation_bytes + cost.temporary_bytes == 2 * (cost.parameters + 2 * 50304 * 768)


def test_large_batch_with_a_small_vocabulary_peaks_when_backward_begins() -> None:
    cost = estimate(translator(128, 3, 100), Workload(512, 16, 16), BFLOAT16)
    assert cost.temporary_bytes == 2 * (100 * 128 + 2 * 512 * 16 * 512)


def test_memory_holds_the_largest_batch_and_time_counts_the_mean_one() -> None:
    mean, full = (base_cost(batch_tokens=tokens) for tokens in (None, 2 * 768 * 32))
    assert full.activation_bytes == pytest.approx(
        2 * mean.activation_bytes, rel=0.01
    )  # except for concatenated weights
    assert full.minutes(H200) == mean.minutes(H200)


def test_grad_accumulation_adds_only_a_float32_copy_of_bfloat16_gradients() -> None:
    for precision, copy in (("bfloat16", 4), ("float32", 0)):
        one, many = base_cost(precision), base_cost(precision, grad_accumulation=8)
        assert many.tensor_bytes - one.tensor_bytes == copy * one.parameters


@pytest.mark.parametrize("config", [translator(64, 2, 300), deepseek(64, 2)], ids=["translator", "experts"])
@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_optimizer_bytes_equal_the_optimizer_s_state(kind: str, config: ModelConfig) -> None:
    model, workload = config.build(), workload_for(config, 2, 3, 3)
    optimizer = OptimizerConfig.read({"kind": kind}).build(model)
    model(*random_ids(config, workload)).sum().backward()
    optimizer.step(0.1)
    state = sum(tensor.nbytes for tensor in optimizer.state_dict().values() if tensor.dim())
    assert estimate(config, workload, TrainingSetup("float32", kind)).optimizer_bytes == state


def test_cuda_graphs_need_workspaces_on_three_streams() -> None:
    assert [workspace_bytes(H200, cuda_graphs=captured) for captured in (False, True)] == [2 * 2**25, 2 * 3 * 2**25]
    assert workspace_bytes(HARDWARE["cpu-2-cores"], cuda_graphs=True) == 0


@pytest.mark.parametrize(
    ("precision", "grad_accumulation", "bytes_per_parameter"),
    [("bfloat16", 1, 0), ("bfloat16", 2, 4), ("float32", 1, 4), ("float32", 2, 4)],
)
def test_capture_copies_gradients(precision: Any, grad_accumulation: int, bytes_per_parameter: int) -> None:
    """Not in bfloat16 with one pass per step, which overwrites the previous gradients."""
    cpu, cost = HARDWARE["cpu-2-cores"], base_cost(precision, grad_accumulation=grad_accumulation)
    extra = cost.peak_bytes(H200, cuda_graphs=True) - cost.peak_bytes(H200) - 2 * 2 * 2**25
    assert extra == bytes_per_parameter * cost.parameters
    assert cost.peak_bytes(cpu, cuda_graphs=True) == cost.peak_bytes(cpu)


# Measured peaks


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_peak_of_unfused_steps_is_what_cuda_reported(precision: Any) -> None:
    """One model and shape, a chunked loss, after many passes captured on separate streams."""
    measured = measured_peak(precision)
    cost = base_cost().with_setup(TrainingSetup(precision, fused=False, loss="chunked"))
    peak = cost.tensor_bytes + CAPTURE_WORKSPACES * H200.workspace
    assert peak == pytest.approx(measured, rel=0.03)
    # That benchmark frees gradients before forward, so they do not exist at the peak.
    assert peak - cost.gradient_bytes == pytest.approx(measured, rel=0.005)


def test_difference_between_precisions_is_what_cuda_reported() -> None:
    """Other allocations of the process are the same in both and cancel out."""
    wide, narrow = (
        base_cost().with_setup(TrainingSetup(precision, fused=False, loss="fused")).tensor_bytes
        for precision in ("float32", "bfloat16")
    )
    assert wide - narrow == pytest.approx(measured_peak("float32") - measured_peak("bfloat16"), rel=0.005)


def benchmark_models() -> dict[str, tuple[ModelConfig, Workload]]:
    """The models of benchmarks/train_gpu.py."""
    base = StackConfig(
        attention=MultiHeadConfig(dropout=0.1),
        feed_forward=FeedForwardConfig(dropout=0.1),
        norm_position="post",
        dropout=0.1,
    )
    stack = StackConfig(
        layers=12,
        attention=MultiHeadConfig(heads=12, bias=False),
        feed_forward=FeedForwardConfig(hidden=3072, activation="gelu", bias=False),
        dropout=0.0,
    )
    language_model = LanguageModelConfig(
        vocab_size=50304,
        width=768,
        decoder=stack,
        position=LearnedConfig(max_length=1024),
        embedding=EmbeddingConfig(scale=False, dropout=0.0),
    )
    return {
        "base": (EncoderDecoderConfig(vocab_size=32768, encoder=base, decoder=base), Workload(768, 32, 32)),
        "GPT-2": (language_model, Workload(32, 1024)),
    }


@pytest.mark.parametrize(("name", "measured"), [("base", 6.54), ("GPT-2", 12.0)])
def test_peak_of_fused_steps_is_what_cuda_reported(name: str, measured: float) -> None:
    """GiB on an H200 in bfloat16, captured in the first step, with batches of one shape.

    At that time there is no optimizer state, no gradient to copy, and no matmul on the main stream.
    """
    cost = estimate(*benchmark_models()[name], BFLOAT16)
    first_step = cost.tensor_bytes - cost.optimizer_bytes + 2 * 2 * H200.workspace
    assert first_step / 2**30 == pytest.approx(measured, rel=0.01)
