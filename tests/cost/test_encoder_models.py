"""The cost of encoders and vision transformers, against PyTorch's FLOP counter and the bytes that autograd saves."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import LearnedConfig, MultiHeadConfig
from regard.cost import HARDWARE, TrainingSetup, Workload, estimate, memory_advice
from regard.cost.encoder_models import EncoderModelConfig, predictions
from regard.cost.fused_forward import fused_forward_cost
from regard.data.images.augment import Augmented
from regard.errors import UserError
from regard.fused.training import fuse_for_training
from regard.model import (
    ClassificationHeadConfig,
    EmbeddingConfig,
    EncoderConfig,
    FeedForwardConfig,
    MaskedLMHeadConfig,
    NormConfig,
    StackConfig,
    TokenClassificationHeadConfig,
    VisionTransformerConfig,
    count_parameters,
)
from regard.task.image_classification.task import class_loss
from regard.train import cross_entropy
from tests.cost.support import SavedTensors, advised_batch_tokens
from tests.model.small_models import ENCODER_SAMPLES

FLOAT32, BFLOAT16 = TrainingSetup("float32"), TrainingSetup("bfloat16")
CPU = replace(FLOAT32, device="cpu")
EVERY_SAMPLE = pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=f"{kind}, {name}")
        for kind, configs in ENCODER_SAMPLES.items()
        for name, config in configs.items()
    ],
)


def workload_for(config: EncoderModelConfig, rows: int, tokens: int, **more: Any) -> Workload:
    return Workload(rows, config.sequence_length if isinstance(config, VisionTransformerConfig) else tokens, **more)


def random_input(config: EncoderModelConfig, workload: Workload) -> Tensor:
    if isinstance(config, VisionTransformerConfig):
        return torch.rand(workload.batch_size, config.channels, *config.size)
    return torch.randint(0, config.vocab_size, (workload.batch_size, workload.target_length))


def masked_positions(workload: Workload) -> dict[str, Tensor]:
    """Some positions of each row, for a masked LM."""
    if workload.predicted_tokens is None:
        return {}
    rows = [torch.randperm(workload.target_length)[: workload.predicted_tokens] for _ in range(workload.batch_size)]
    return {"positions": torch.stack(rows)}


def attention_hook(attention: Any, weights: Tensor) -> None:
    """With a hook, attention uses the reference implementation, whose matmuls PyTorch's counter knows."""


def stack(width: int, layers: int, **more: Any) -> StackConfig:
    feed_forward = FeedForwardConfig(hidden=4 * width, activation="gelu")
    return StackConfig(layers=layers, attention=MultiHeadConfig(heads=4), feed_forward=feed_forward, **more)


def bert(width: int, layers: int, vocab_size: int, **more: Any) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=vocab_size,
        width=width,
        encoder=stack(width, layers, norm_position="post"),
        position=LearnedConfig(max_length=512),
        embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
        **more,
    )


LARGER: dict[str, tuple[EncoderModelConfig, Workload]] = {
    "masked LM": (bert(64, 3, 2000, head=MaskedLMHeadConfig()), Workload(4, 64, predicted_tokens=16)),
    "masked LM, every token": (bert(64, 3, 2000, head=MaskedLMHeadConfig()), Workload(4, 64)),
    "token classification": (
        bert(128, 2, 900, head=TokenClassificationHeadConfig(labels=tuple(map(str, range(40))))),
        Workload(6, 30),
    ),
    "classification": (
        bert(64, 4, 300, head=ClassificationHeadConfig(labels=("a", "b"), pooling="mean")),
        Workload(8, 50),
    ),
    "long texts": (bert(64, 2, 300, head=ClassificationHeadConfig(labels=("a", "b"))), Workload(2, 250)),
    "images": (
        VisionTransformerConfig(image_size=28, patch_size=4, channels=1, width=64, encoder=stack(64, 3), classes=10),
        Workload(8, 50),
    ),
    "large images, mean pooling": (
        VisionTransformerConfig(
            image_size=64, patch_size=8, width=96, encoder=stack(96, 4), pooling="mean", classes=100
        ),
        Workload(4, 64),
    ),
}
EVERY_LARGER = pytest.mark.parametrize(("config", "workload"), LARGER.values(), ids=LARGER.keys())


# Parameters and FLOPs


def test_non_embedding_parameters_leave_out_the_token_embedding() -> None:
    cost = estimate(bert(64, 2, 500, head=MaskedLMHeadConfig()), Workload(1, 4), FLOAT32)
    assert cost.non_embedding_parameters == cost.parameters - 500 * 64
    images = estimate(LARGER["images"][0], Workload(1, 50), FLOAT32)
    assert images.non_embedding_parameters == images.parameters


@EVERY_SAMPLE
@pytest.mark.parametrize(("rows", "tokens"), [(3, 7), (1, 18)])
def test_parameters_and_forward_flops_equal_pytorch_s(config: EncoderModelConfig, rows: int, tokens: int) -> None:
    workload, model = workload_for(config, rows, tokens), config.build().train()
    with FlopCounterMode(display=False) as counter:
        model(random_input(config, workload), attention_hook=attention_hook)
    cost = estimate(config, workload, FLOAT32)
    assert cost.parameters == count_parameters(model)
    assert cost.forward_flops_per_step == counter.get_total_flops()


MASKED_LMS = [config for config in ENCODER_SAMPLES["encoder"].values() if isinstance(config.head, MaskedLMHeadConfig)]  # type: ignore[union-attr]


@pytest.mark.parametrize("config", MASKED_LMS)
@pytest.mark.parametrize("predicted_tokens", [1, 4, 9])
def test_only_predicted_tokens_are_scored(config: EncoderConfig, predicted_tokens: int) -> None:
    workload = Workload(3, 9, predicted_tokens=predicted_tokens)
    with FlopCounterMode(display=False) as counter:
        config.build().train()(
            random_input(config, workload), **masked_positions(workload), attention_hook=attention_hook
        )
    assert estimate(config, workload, FLOAT32).forward_flops_per_step == counter.get_total_flops()


@EVERY_LARGER
def test_flops_of_larger_models_are_near_pytorch_s(config: EncoderModelConfig, workload: Workload) -> None:
    """Backward is a little less than twice forward: the gradient of the pixels is not needed."""
    model = config.build().train()
    with FlopCounterMode(display=False) as forward:
        logits = model(random_input(config, workload), attention_hook=attention_hook, **masked_positions(workload))
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    cost = estimate(config, replace(workload, grad_accumulation=3), FLOAT32)
    counted = forward.get_total_flops()
    assert cost.forward_flops_per_step == pytest.approx(3 * counted, rel=0.02)
    assert cost.flops_per_step == pytest.approx(3 * (counted + backward.get_total_flops()), rel=0.02)
    source, target = cost.flops_per_token
    assert source == 0
    assert 3 * workload.batch_size * workload.target_length * target == pytest.approx(cost.forward_flops_per_step)


def test_image_of_another_size_has_another_number_of_patches() -> None:
    config = LARGER["images"][0]
    with FlopCounterMode(display=False) as counter:
        config.build()(torch.rand(2, 1, 20, 24), attention_hook=attention_hook)
    assert estimate(config, Workload(2, 1 + 5 * 6), FLOAT32).forward_flops_per_step == counter.get_total_flops()


# Memory


def saved_bytes(config: EncoderModelConfig, workload: Workload, model: Any = None) -> int:
    """Bytes that autograd saves up to the loss, without parameters."""
    model = config.build().train() if model is None else model
    count, classes = predictions(config, workload.target_length, workload.predicted_tokens)
    inputs, rows = random_input(config, workload), workload.batch_size
    with SavedTensors(model.parameters()) as saved:
        if isinstance(config, VisionTransformerConfig):
            labels = torch.randint(0, classes, (rows,))
            class_loss(model(inputs), Augmented(inputs, labels, labels, torch.ones(rows)), 0.1)
        else:
            lengths = torch.full((rows,), workload.target_length).sub_(torch.arange(rows) % 3)
            logits = model(inputs, lengths=lengths, **masked_positions(workload))
            targets = torch.randint(0, classes, (rows, count))
            cross_entropy(logits.reshape(rows, count, classes), targets, None, 0.1)
    return saved.bytes


@EVERY_LARGER
def test_activations_equal_what_autograd_saves(config: EncoderModelConfig, workload: Workload) -> None:
    assert estimate(config, workload, CPU).activation_bytes == pytest.approx(saved_bytes(config, workload), rel=0.01)


def without_dropout(config: EncoderModelConfig) -> EncoderModelConfig:
    """The config without dropout, so that attention is fused on a CPU too."""
    off = {"dropout": 0.0}
    values = config.plain()
    encoder = values["encoder"]
    values["encoder"] |= off | {part: encoder[part] | off for part in ("attention", "feed_forward")}
    if isinstance(config, VisionTransformerConfig):
        values |= off
    elif "dropout" in values["head"]:
        values["head"] |= off
    return type(config).read(values)


@EVERY_SAMPLE
@pytest.mark.parametrize("dropout", [True, False], ids=["with dropout", "without"])
def test_activations_of_every_sample_are_near_what_autograd_saves(config: EncoderModelConfig, dropout: bool) -> None:
    config = config if dropout else without_dropout(config)
    if not predictions(config, 10)[1]:
        pytest.skip("without a head there is nothing to train on")
    workload = workload_for(config, 16, 10)
    assert estimate(config, workload, CPU).activation_bytes == pytest.approx(saved_bytes(config, workload), rel=0.05)


@EVERY_LARGER
def test_activation_checkpointing_saves_layer_inputs(config: EncoderModelConfig, workload: Workload) -> None:
    model = config.build().train()
    model.encoder.uses_checkpointing = True
    without, checkpointed = (
        estimate(config, workload, replace(CPU, activation_checkpointing=flag)) for flag in (False, True)
    )
    assert checkpointed.activation_bytes == pytest.approx(saved_bytes(config, workload, model), rel=0.02)
    assert checkpointed.activation_bytes < without.activation_bytes / 2
    assert without.flops_per_step < checkpointed.flops_per_step < 4 / 3 * without.flops_per_step


@pytest.mark.one_in(2)
@EVERY_LARGER
def test_fused_model_saves_about_the_estimated_bytes(
    config: EncoderModelConfig, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's interpreter, on short texts only: longer ones use PyTorch's attention."""
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)
    if isinstance(config, VisionTransformerConfig):  # fewer patches: the interpreter is slow
        config = config.model_copy(update={"image_size": 3 * config.patch_size})
    short = workload_for(config, 2, 8, predicted_tokens=None if workload.predicted_tokens is None else 3)
    estimated = fused_forward_cost(config, short.shape, "cpu", deferred_logits=False).bytes("float32", "cpu")
    count, classes = predictions(config, short.target_length, short.predicted_tokens)
    logits = 4 * short.batch_size * count * classes
    model = config.build().train()
    fused = fuse_for_training(model, fused_loss=True)
    assert type(fused.encoder) is not type(model.encoder)
    assert estimated + logits == pytest.approx(saved_bytes(config, short, fused), rel=0.05)


def test_gpu_trains_fused_with_logits_overwritten_by_their_gradient() -> None:
    cost = estimate(*LARGER["images"], BFLOAT16)
    assert (cost.setup.fused, cost.setup.loss, cost.setup.has_bfloat16_copies) == (True, "in_place", True)
    cpu = cost.on(HARDWARE["cpu-2-cores"]).setup
    assert (cpu.fused, cpu.loss) == (False, "chunked")


@EVERY_LARGER
def test_advised_batch_tokens_fit(config: EncoderModelConfig, workload: Workload) -> None:
    too_many = replace(workload, batch_size=200_000)
    tokens = advised_batch_tokens(memory_advice(estimate(config, too_many, BFLOAT16), HARDWARE["t4"]))
    fitting = replace(workload, batch_size=tokens // workload.target_length)
    assert memory_advice(estimate(config, fitting, BFLOAT16), HARDWARE["t4"]) is None


# Errors


def test_encoder_model_has_no_kv_cache() -> None:
    cost = estimate(*LARGER["token classification"], FLOAT32)
    assert not cost.is_autoregressive
    for ask in (lambda: cost.kv_cache_bytes(), lambda: cost.kv_cache_tokens, lambda: cost.generated_token_flops()):
        with pytest.raises(UserError, match="kind 'encoder' does not generate"):
            ask()


def test_encoder_model_has_no_source() -> None:
    with pytest.raises(UserError, match="An encoder–decoder has a source"):
        estimate(LARGER["token classification"][0], Workload(1, 8, 8), FLOAT32)


def test_image_without_a_patch_is_refused() -> None:
    with pytest.raises(UserError, match="at least one patch"):
        estimate(LARGER["images"][0], Workload(1, 1), FLOAT32)
