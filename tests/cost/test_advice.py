"""Advice if training does not fit into memory, and detection of the hardware."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from regard import UserError
from regard.cost import (
    HARDWARE,
    USABLE_MEMORY,
    Hardware,
    TrainingSetup,
    Workload,
    check_model_fits,
    detect_hardware,
    memory_advice,
)
from regard.cost.estimate import estimate
from regard.model import transformer_base
from tests.cost.support import advised_batch_tokens, base_cost, gpt2, small_language_model, stack

T4 = HARDWARE["t4"]


def gpu(memory: float) -> Hardware:
    return Hardware("some GPU", float32_flops=1e13, bfloat16_flops=1e14, bandwidth=1e12, memory=int(memory))


# Advice


def test_no_advice_if_training_fits() -> None:
    assert memory_advice(base_cost(), HARDWARE["h200"]) is None


def test_unknown_memory_gives_no_advice() -> None:
    assert memory_advice(base_cost(), replace(T4, memory=0)) is None


@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_advised_batch_tokens_fit_and_one_more_row_does_not(activation_checkpointing: bool) -> None:
    captured = activation_checkpointing
    too_many = 32 * (23040 if activation_checkpointing else 2304)
    cost = base_cost(activation_checkpointing=activation_checkpointing, batch_tokens=too_many)
    tokens = advised_batch_tokens(memory_advice(cost, T4, cuda_graphs=captured))
    fits, exceeds = (
        base_cost(activation_checkpointing=activation_checkpointing, batch_tokens=size).peak_bytes(
            T4, cuda_graphs=captured
        )
        for size in (tokens, tokens + 32)
    )
    assert fits <= USABLE_MEMORY * T4.memory < exceeds


@pytest.mark.parametrize(
    "workload", [Workload(2304, 32, 20), Workload(2304, 32, 32, forward_passes=2)], ids=["unequal sides", "R-Drop"]
)
def test_advised_batch_tokens_fit(workload: Workload) -> None:
    setup, config = TrainingSetup("bfloat16"), transformer_base(32768)
    tokens = advised_batch_tokens(memory_advice(estimate(config, workload, setup), T4))
    assert memory_advice(estimate(config, replace(workload, batch_tokens=tokens), setup), T4) is None


def test_advice_keeps_the_step_size_with_grad_accumulation() -> None:
    advice = memory_advice(base_cost(batch_tokens=32 * 2200, grad_accumulation=3), T4)
    assert "train.grad_accumulation at 6" in (advice or "")


def test_advice_names_bfloat16_if_that_is_enough() -> None:
    advice = memory_advice(base_cost("float32"), gpu(12e9))
    assert "train.precision to bfloat16, which needs about 7.4 GB" in (advice or "")


def test_advice_names_activation_checkpointing_if_that_is_enough() -> None:
    needed = base_cost(activation_checkpointing=True).tensor_bytes
    advice = memory_advice(base_cost(), gpu(1.01 * needed / USABLE_MEMORY))
    assert advice is not None
    assert advice.endswith(f", or train.activation_checkpointing to true, which needs about {needed / 1e9:.1f} GB.")
    too_little = memory_advice(base_cost(), gpu(0.99 * needed / USABLE_MEMORY))
    assert "train.activation_checkpointing" not in (too_little or "")


def test_advice_does_not_name_settings_already_in_use() -> None:
    advice = memory_advice(base_cost("float32", activation_checkpointing=True), gpu(3.9e9))
    assert advice is not None
    assert "train.activation_checkpointing" not in advice


def test_advice_when_only_activation_checkpointing_fits_one_row() -> None:
    config = small_language_model(stack(layers=64))
    without, with_checkpointing = (
        estimate(config, Workload(1, 4096), TrainingSetup("bfloat16", activation_checkpointing=flag))
        for flag in (False, True)
    )
    advice = memory_advice(without, gpu(1.01 * with_checkpointing.tensor_bytes / USABLE_MEMORY)) or ""
    assert "not even one row" in advice
    assert "set train.activation_checkpointing to true, which needs about" in advice
    assert advice.endswith("; or choose a smaller model, shorter rows or a larger device.")


def test_advice_when_no_batch_is_small_enough() -> None:
    cost = estimate(gpt2(layers=64, width=32768), Workload(1, 8), TrainingSetup("bfloat16"))
    assert "not even one row of 8 tokens" in (memory_advice(cost, HARDWARE["h200"]) or "")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_model_is_refused_exactly_where_one_row_does_not_fit(device: Literal["cpu", "cuda"]) -> None:
    workload, setup = Workload(100, 25, 25, batch_tokens=4096), TrainingSetup("float32", device=device)
    config = transformer_base(37_000)
    needed = estimate(config, Workload(1, 25, 25), setup).tensor_bytes
    for enough in (needed, 0):  # 0 is unknown
        check_model_fits(config, workload, setup, enough)
    with pytest.raises(UserError, match=rf"{estimate(config, workload, setup).parameters:,} parameters.*model\.width"):
        check_model_fits(config, workload, setup, needed - 1)


# Hardware


def test_cpu_is_timed() -> None:
    hardware = detect_hardware(torch.device("cpu"))
    assert hardware.memory > 1 << 28
    assert 1e8 < hardware.float32_flops < 1e15
    assert 1e6 < hardware.bfloat16_flops < 1e15
    assert 1e7 < hardware.bandwidth < 1e14


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
    ],
)
def test_gpu_is_known_by_name_with_the_memory_of_the_device(
    name: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Properties:
        total_memory = 12345

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert detect_hardware(torch.device("cuda")) == replace(HARDWARE[known], memory=12345)


def test_timing_a_full_device_takes_smaller_matrices_and_ends_in_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[int] = []
    room = 256

    def measure(device: torch.device, side: int) -> tuple[float, float, float]:
        sides.append(side)
        if side > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1.0, 2.0, 3.0

    monkeypatch.setattr("regard.cost.hardware._measure", measure)
    assert detect_hardware(torch.device("cpu")).bandwidth == 3.0
    assert sides == [1024, 256]
    room = 0
    with pytest.raises(UserError, match="no memory left"):
        detect_hardware(torch.device("cpu"))
