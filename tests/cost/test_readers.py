"""Costs of models that read, known beforehand, against what is counted and kept when they really run."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import HeadsConfig, LearnedConfig
from regard.cost import HARDWARE, Work, advice_for_memory, estimate
from regard.cost.fast import fast_forward
from regard.cost.readers import ReaderConfig, answers
from regard.data.augment import Augmented
from regard.errors import UserError
from regard.fast.swift_training import for_training
from regard.model import (
    ClassifyConfig,
    EmbeddingConfig,
    EncoderConfig,
    FeedForwardConfig,
    FillConfig,
    NormConfig,
    StackConfig,
    TagConfig,
    VisionTransformerConfig,
    count_parameters,
)
from regard.task.pictures import class_loss
from regard.train import word_loss
from tests.model.small_models import READERS

EVERY_READER = pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=f"{kind}, {name}")
        for kind, configs in READERS.items()
        for name, config in configs.items()
    ],
)


def work_for(config: ReaderConfig, rows: int, tokens: int, **more: Any) -> Work:
    return Work(rows, config.tokens if isinstance(config, VisionTransformerConfig) else tokens, **more)


def given(config: ReaderConfig, work: Work) -> Tensor:
    if isinstance(config, VisionTransformerConfig):
        return torch.rand(work.rows, config.channels, *config.size)
    return torch.randint(0, config.vocabulary, (work.rows, work.target))


def places(work: Work) -> Tensor:
    """Some cells of each row."""
    return torch.stack([torch.randperm(work.target)[: work.asked] for _ in range(work.rows)])


def stack(width: int, layers: int, **more: Any) -> StackConfig:
    feed_forward = FeedForwardConfig(hidden=4 * width, activation="gelu")
    return StackConfig(layers=layers, attention=HeadsConfig(heads=4), feed_forward=feed_forward, **more)


def bert(width: int, layers: int, vocabulary: int, **more: Any) -> EncoderConfig:
    return EncoderConfig(
        vocabulary=vocabulary,
        width=width,
        encoder=stack(width, layers, order="post"),
        position=LearnedConfig(limit=512),
        embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
        **more,
    )


UNLIKE: dict[str, tuple[ReaderConfig, Work]] = {
    "gaps": (bert(64, 3, 2000, head=FillConfig()), Work(4, 64, asked=16)),
    "gaps at every token": (bert(64, 3, 2000, head=FillConfig()), Work(4, 64)),
    "tags": (bert(128, 2, 900, head=TagConfig(labels=tuple(map(str, range(40))))), Work(6, 30)),
    "labels": (bert(64, 4, 300, head=ClassifyConfig(labels=("a", "b"), pooling="mean")), Work(8, 50)),
    "long texts": (bert(64, 2, 300, head=ClassifyConfig(labels=("a", "b"))), Work(2, 250)),
    "pictures": (
        VisionTransformerConfig(image=28, patch=4, channels=1, width=64, encoder=stack(64, 3), classes=10),
        Work(8, 50),
    ),
    "large pictures, the mean": (
        VisionTransformerConfig(image=64, patch=8, width=96, encoder=stack(96, 4), pooling="mean", classes=100),
        Work(4, 64),
    ),
}
EVERY_UNLIKE = pytest.mark.parametrize(
    ("config", "work"), [pytest.param(*pair, id=name) for name, pair in UNLIKE.items()]
)


# Parameters


@EVERY_READER
def test_parameters_are_those_of_the_built_model(config: ReaderConfig) -> None:
    cost = estimate(config, work_for(config, 1, 4), precision="fp32")
    assert cost.parameters == count_parameters(config.build())


def test_parameters_without_word_vectors_leave_out_the_table_of_words() -> None:
    cost = estimate(bert(64, 2, 500, head=FillConfig()), Work(1, 4), precision="fp32")
    assert cost.non_embedding == cost.parameters - 500 * 64
    pictures = estimate(UNLIKE["pictures"][0], Work(1, 50), precision="fp32")
    assert pictures.non_embedding == pictures.parameters


# Arithmetic


@EVERY_READER
@pytest.mark.parametrize(("rows", "tokens"), [(3, 7), (1, 18)])
def test_forward_flops_are_those_pytorch_counts(config: ReaderConfig, rows: int, tokens: int) -> None:
    work = work_for(config, rows, tokens)
    with FlopCounterMode(display=False) as counter:
        # With a watch attention takes the readable way: the counter does not know the fused one on a CPU.
        config.build().train()(given(config, work), watch=lambda attention, weights: None)
    assert estimate(config, work, precision="fp32").forward_flops_per_step == counter.get_total_flops()


@pytest.mark.parametrize("config", [config for config in READERS["encoder"].values() if config.head.kind == "fill"])  # type: ignore[union-attr]
@pytest.mark.parametrize("asked", [1, 4, 9])
def test_only_words_that_are_asked_for_are_scored(config: EncoderConfig, asked: int) -> None:
    work = Work(3, 9, asked=asked)
    with FlopCounterMode(display=False) as counter:
        config.build().train()(given(config, work), places=places(work), watch=lambda attention, weights: None)
    assert estimate(config, work, precision="fp32").forward_flops_per_step == counter.get_total_flops()


@EVERY_UNLIKE
def test_flops_of_unlike_models_are_within_two_percent_of_pytorch_s_counter(config: ReaderConfig, work: Work) -> None:
    """Not twice as many backward to the last: nobody asks for gradients of pixels."""
    model = config.build().train()
    more = {"places": places(work)} if work.asked else {}
    with FlopCounterMode(display=False) as forward:
        scores = model(given(config, work), watch=lambda attention, weights: None, **more)
    with FlopCounterMode(display=False) as backward:
        scores.sum().backward()
    cost = estimate(config, work, precision="fp32")
    assert cost.forward_flops_per_step == pytest.approx(forward.get_total_flops(), rel=0.02)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert cost.flops_per_step == pytest.approx(both, rel=0.02)


@EVERY_UNLIKE
def test_tokens_add_up_to_a_step(config: ReaderConfig, work: Work) -> None:
    cost = estimate(config, Work(work.rows, work.target, accumulate=3, asked=work.asked), precision="fp32")
    source, target = cost.flops_per_token
    assert source == 0
    assert 3 * work.rows * work.target * target == pytest.approx(cost.forward_flops_per_step)


def test_a_picture_of_another_size_has_another_number_of_patches() -> None:
    config = UNLIKE["pictures"][0]
    work = Work(2, 1 + 5 * 6)
    with FlopCounterMode(display=False) as counter:
        config.build()(torch.rand(2, 1, 20, 24), watch=lambda attention, weights: None)
    assert estimate(config, work, precision="fp32").forward_flops_per_step == counter.get_total_flops()


# Memory


def kept_bytes(config: ReaderConfig, work: Work, model: Any = None) -> int:
    """Bytes of all that autograd really keeps until the loss is there, parameters left out."""
    model = config.build().train() if model is None else model
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}  # by storage; holding the tensors keeps an address from being used again

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = tensor
        return tensor

    cells, classes = answers(config, work.target, work.asked)
    inputs = given(config, work)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if isinstance(config, VisionTransformerConfig):
            labels = torch.randint(0, classes, (work.rows,))
            class_loss(model(inputs), Augmented(inputs, labels, labels, torch.ones(work.rows)), 0.1)
        else:
            lengths = torch.full((work.rows,), work.target).sub_(torch.arange(work.rows) % 3)
            more = {"places": places(work)} if work.asked else {}
            scores = model(inputs, lengths=lengths, **more)
            wanted = torch.randint(0, classes, (work.rows, cells))
            word_loss(scores.reshape(work.rows, cells, classes), wanted, None, 0.1)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@EVERY_UNLIKE
def test_activations_are_what_autograd_keeps(config: ReaderConfig, work: Work) -> None:
    cost = estimate(config, work, precision="fp32", device="cpu")
    assert cost.activations_bytes == pytest.approx(kept_bytes(config, work), rel=0.01)


def without_dropout(config: ReaderConfig) -> ReaderConfig:
    """The same, so that attention is fused on a CPU too."""
    still = {"dropout": 0.0}
    plain = config.plain()
    encoder = plain["encoder"]
    plain["encoder"] |= still | {part: encoder[part] | still for part in ("attention", "feed_forward")}
    if isinstance(config, VisionTransformerConfig):
        plain |= still
    elif "dropout" in plain["head"]:
        plain["head"] |= still
    return type(config).read(plain)


@EVERY_READER
@pytest.mark.parametrize("dropout", [True, False], ids=["with dropout", "without"])
def test_activations_of_every_model_come_near_what_autograd_keeps(config: ReaderConfig, dropout: bool) -> None:
    config = config if dropout else without_dropout(config)
    if not answers(config, 10)[1]:
        pytest.skip("without a head there is nothing to train on")
    work = work_for(config, 16, 10)
    cost = estimate(config, work, precision="fp32", device="cpu")
    assert cost.activations_bytes == pytest.approx(kept_bytes(config, work), rel=0.05)


@EVERY_UNLIKE
def test_layers_computed_again_keep_what_enters_them(config: ReaderConfig, work: Work) -> None:
    model = config.build().train()
    model.encoder.recomputes = True
    again = estimate(config, work, precision="fp32", device="cpu", recompute=True)
    assert again.activations_bytes == pytest.approx(kept_bytes(config, work, model), rel=0.02)
    once = estimate(config, work, precision="fp32", device="cpu")
    assert again.activations_bytes < once.activations_bytes / 2
    assert once.flops_per_step < again.flops_per_step < 4 / 3 * once.flops_per_step


@EVERY_UNLIKE
def test_the_fast_form_keeps_what_autograd_keeps(
    config: ReaderConfig, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels run here in Triton's interpreter. PyTorch's own attention over longer texts is left out."""
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)
    short = work_for(config, 2, 12, asked=None if work.asked is None else 4)
    said = fast_forward(config, short.rows, 0, short.target, "cpu", asked=short.asked, late=False).bytes("fp32", "cpu")
    cells, classes = answers(config, short.target, short.asked)
    scores = 4 * short.rows * cells * classes
    fast = for_training(config.build().train(), late=True)
    assert type(fast.encoder).__name__ == "FusedStack"
    assert said + scores == pytest.approx(kept_bytes(config, short, fast), rel=0.05)


def test_training_takes_the_fast_form_on_a_gpu_with_scores_written_over() -> None:
    config, work = UNLIKE["pictures"]
    alone = estimate(config, work, precision="bf16")
    assert (alone.form, alone.loss, alone.lowered) == ("fast", "over", True)
    assert (alone.on(HARDWARE["cpu-2-cores"]).form, alone.on(HARDWARE["cpu-2-cores"]).loss) == ("plain", "rows")


@EVERY_UNLIKE
def test_what_does_not_fit_is_told_how_it_would(config: ReaderConfig, work: Work) -> None:
    many = Work(200_000, work.target, asked=work.asked)
    advice = advice_for_memory(estimate(config, many, precision="bf16"), HARDWARE["t4"])
    assert advice is not None
    tokens = int(advice.split("train.tokens to ")[1].split()[0].replace(",", ""))
    fitting = Work(tokens // work.target, work.target, asked=work.asked)
    assert advice_for_memory(estimate(config, fitting, precision="bf16"), HARDWARE["t4"]) is None


# What is not there


def test_a_model_that_reads_has_no_cache() -> None:
    cost = estimate(*UNLIKE["tags"], precision="fp32")
    assert not cost.writes
    for ask in (lambda: cost.cache_bytes(), lambda: cost.cache_tokens, lambda: cost.generated_token_flops()):
        with pytest.raises(UserError, match="kind 'encoder' writes nothing"):
            ask()


def test_a_model_that_reads_has_no_source() -> None:
    with pytest.raises(UserError, match="An encoder–decoder has a source"):
        estimate(UNLIKE["tags"][0], Work(1, 8, 8), precision="fp32")


def test_a_picture_without_a_patch_is_refused() -> None:
    with pytest.raises(UserError, match="at least one patch"):
        estimate(UNLIKE["pictures"][0], Work(1, 1), precision="fp32")
