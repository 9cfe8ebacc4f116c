"""The fast form of a model for training on a GPU has the losses and gradients of the plain one.

Its kernels run here in Triton's interpreter.
"""

import pytest

pytest.importorskip("triton")

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from regard.attention import HeadsConfig
from regard.attention.position import LearnedConfig, RotaryConfig
from regard.fast.swift_training import FusedStack, for_training, stacked_weights
from regard.fast.unscored import Unscored
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
)
from regard.train.loss import word_loss
from regard.train.lowered import Lowered

SIZE = 30


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's kernels be taken on a CPU."""
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)


def stack(heads: HeadsConfig | None = None, dropout: float = 0.0, **more: Any) -> StackConfig:
    more.setdefault("feed_forward", FeedForwardConfig(hidden=24))
    return StackConfig(layers=2, attention=heads or HeadsConfig(heads=2), dropout=dropout, **more)


def translator(kind: StackConfig, **more: Any) -> EncoderDecoder:
    torch.manual_seed(3)
    embedding = {"embedding": {"dropout": 0.0}}
    config = EncoderDecoderConfig.read(
        {"vocabulary": SIZE, "width": 16, "encoder": kind.plain(), "decoder": kind.plain(), **embedding, **more}
    )
    model = config.build().train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


KINDS = {
    "pre-norm": stack(),
    "post-norm": stack(order="post"),
    "one key head": stack(HeadsConfig(heads=2, key_heads=1)),
    "no biases": stack(
        HeadsConfig(heads=4, bias=False),
        feed_forward=FeedForwardConfig(hidden=24, bias=False),
        norm=NormConfig(bias=False),
    ),
    "rms norm": stack(norm=NormConfig(kind="rms")),
    "gated": stack(feed_forward=FeedForwardConfig(hidden=24, activation="swiglu")),
    "gelu": stack(feed_forward=FeedForwardConfig(hidden=24, activation="gelu")),
    "gelu by tanh": stack(feed_forward=FeedForwardConfig(hidden=24, activation="gelu-tanh")),
    "values of another width": stack(HeadsConfig(heads=2, value_width=5)),
    "what the kernels do not know": stack(HeadsConfig(heads=2, similarity="cosine")),
}
SOURCE = torch.tensor([[5, 6, 7, 8, 9], [4, 5, 0, 0, 0], [11, 12, 13, 0, 0]])
TARGET = torch.tensor([[1, 6, 7], [1, 8, 9], [1, 4, 0]])
LENGTHS = {"source_lengths": torch.tensor([5, 2, 3]), "target_lengths": torch.tensor([3, 3, 2])}


def slopes(model: Any, called: Any, *inputs: Tensor, **more: Any) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = called(*inputs, **more)
    torch.manual_seed(1)
    (logits * torch.randn_like(logits)).sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check(model: Any, *inputs: Tensor, **more: Any) -> None:
    twin = for_training(model)
    assert twin is not model
    wanted, plain = slopes(model, model, *inputs, **more)
    found, fast = slopes(model, twin, *inputs, **more)
    assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)
    assert plain.keys() == fast.keys()
    for name, slope in plain.items():
        assert torch.allclose(fast[name], slope, atol=1e-4 * max(1.0, float(slope.abs().max()))), name


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_logits_and_gradients_are_the_same(kind: StackConfig) -> None:
    check(translator(kind), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize("bias", [True, False])
def test_a_feed_forward_that_bends_inside_of_its_products_is_the_same(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products themselves are a GPU's; here they are put together from PyTorch's."""
    taken = []

    def bent_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        taken.append("forward")
        before = functional.linear(x, weight, bias)
        return functional.gelu(before, approximate="tanh"), before

    def product_bent_back(slope: Tensor, weight: Tensor, before: Tensor) -> Tensor:
        taken.append("back")
        with torch.enable_grad():
            before = before.detach().requires_grad_()
            bent = functional.gelu(before, approximate="tanh")
            return torch.autograd.grad(bent, before, slope @ weight)[0]

    library = "regard.fast.cublas_lt."
    monkeypatch.setattr(library + "knows", lambda x, widen, given, narrow: (given is not None) is bias)
    monkeypatch.setattr(library + "bent_product", bent_product)
    monkeypatch.setattr(library + "product_bent_back", product_bent_back)
    feed_forward = FeedForwardConfig(hidden=24, activation="gelu-tanh", bias=bias)
    check(translator(stack(feed_forward=feed_forward)), SOURCE, TARGET, **LENGTHS)
    assert taken == ["forward"] * 4 + ["back"] * 4


def check_late(model: Any) -> None:
    """The loss where words are scored by the loss itself."""
    words = torch.randint(3, SIZE, TARGET.shape, generator=torch.Generator().manual_seed(2))
    found = []
    for called in (model, for_training(model, late=True)):
        model.zero_grad()
        loss = word_loss(called(SOURCE, TARGET, **LENGTHS), words, LENGTHS["target_lengths"], 0.1)
        (3 * loss.total).backward()
        found.append((loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}))
    (plain, wanted), (late, slopes) = found
    torch.testing.assert_close(late.total, plain.total)
    torch.testing.assert_close(late.plain, plain.plain)
    assert late.count == plain.count
    assert slopes.keys() == wanted.keys()
    for name, slope in wanted.items():
        assert torch.allclose(slopes[name], slope, atol=1e-4 * max(1.0, float(slope.abs().max()))), name


@pytest.mark.parametrize("more", [{}, {"tie": False}, {"output_bias": True}, {"source_vocabulary": SIZE}], ids=str)
def test_the_loss_of_words_that_are_scored_late_is_the_same(more: dict[str, Any]) -> None:
    model = translator(stack(), **more)
    check_late(model)
    assert isinstance(for_training(model, late=True)(SOURCE, TARGET, **LENGTHS), Unscored)


def test_words_are_scored_some_at_a_time_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.train.triton_loss._CELLS", 4 * SIZE)
    check_late(translator(stack(), output_bias=True))


def test_rows_without_padding_and_a_memory_for_all_layers() -> None:
    check(translator(stack()), SOURCE[:1], TARGET[:1])
    check(translator(stack(), memory="shared"), SOURCE, TARGET, **LENGTHS)


def test_more_words_than_a_block_has() -> None:
    torch.manual_seed(2)
    source, target = torch.randint(3, SIZE, (1, 40)), torch.randint(3, SIZE, (1, 19))
    check(translator(StackConfig(layers=1, attention=HeadsConfig(heads=1), dropout=0.0)), source, target)


@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])])
@pytest.mark.parametrize("position", [None, RotaryConfig(), LearnedConfig(limit=9), LearnedConfig(limit=5)], ids=str)
def test_a_language_model(documents: Tensor | None, position: Any) -> None:
    torch.manual_seed(1)
    more = {} if position is None else {"position": position}
    config = LanguageModelConfig(vocabulary=SIZE, width=16, decoder=stack(), embedding={"dropout": 0.0}, **more)
    check(config.build().train(), SOURCE, documents=documents)


@pytest.mark.parametrize("words", [5, 200])
def test_weights_of_query_key_and_value_are_not_copied_where_they_lie_as_asked_for(
    words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within and beyond the length that attention in one program has."""
    torch.manual_seed(1)
    config = LanguageModelConfig(vocabulary=SIZE, width=64, decoder=stack(HeadsConfig(heads=1)))
    model = config.build().eval()
    twin = for_training(model)
    lowered = Lowered(twin, torch.float32, first=stacked_weights(twin))
    ids = torch.randint(3, SIZE, (1, words))
    wanted = model(ids)

    def refuse(tensors: Any, *more: Any, **settings: Any) -> Tensor:
        raise AssertionError("weights are copied")

    monkeypatch.setattr(torch, "cat", refuse)
    torch.testing.assert_close(lowered(ids), wanted, rtol=1e-4, atol=1e-4)


def test_the_twin_takes_given_weights_in_another_precision() -> None:
    model = translator(stack())
    twin = for_training(model)
    weights = {name: parameter.to(torch.float16) for name, parameter in model.named_parameters()}
    found = functional_call(twin, weights, (SOURCE, TARGET), LENGTHS)
    wanted = functional_call(model, weights, (SOURCE, TARGET), LENGTHS)
    assert found.dtype == torch.float16
    assert torch.allclose(found.float(), wanted.float(), atol=0.02)


def test_dropout_has_its_share_and_its_gradient_is_that_of_what_was_kept() -> None:
    from regard.fast.triton_training import Chance, join

    torch.manual_seed(0)
    x, change = torch.zeros(60, 64), torch.ones(60, 64, requires_grad=True)
    seed, weight = torch.tensor([7]), torch.ones(64)
    total, _ = join(x, change, weight, None, 1e-5, before=True, centred=True, chance=Chance(0.3, seed, 1))
    kept = total.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.03)
    assert torch.allclose(total[kept], torch.tensor(1 / 0.7))
    total.sum().backward()
    assert change.grad is not None
    assert torch.allclose(change.grad, kept / 0.7)
    again, _ = join(x, change, weight, None, 1e-5, before=True, centred=True, chance=Chance(0.3, seed, 1))
    other, _ = join(x, change, weight, None, 1e-5, before=True, centred=True, chance=Chance(0.3, seed, 2))
    assert torch.equal(again != 0, kept)
    assert not torch.equal(other != 0, kept)


def test_dropout_of_attention_has_the_gradient_of_what_it_computes() -> None:
    from regard.fast.triton_training import Chance, Shape, attend_self

    torch.manual_seed(0)
    made = torch.randn(2, 4, 3 * 8, requires_grad=True)
    chance, shape = Chance(0.4, torch.tensor([3]), 5), Shape(2, 2, 4, causal=True)

    def value(given: Tensor) -> Tensor:
        return (attend_self(given, None, shape, chance) * factor).sum()

    factor = torch.randn(2, 4, 8)
    value(made).backward()
    assert made.grad is not None
    direction = torch.randn_like(made)
    step = 1e-2
    with torch.no_grad():
        measured = (value(made + step * direction) - value(made - step * direction)) / (2 * step)
    assert float((made.grad * direction).sum()) == pytest.approx(float(measured), rel=2e-2)
    plain = attend_self(made, None, shape, None)
    assert not torch.allclose(attend_self(made, None, shape, chance), plain)


def test_dropped_words_are_others_in_every_pass() -> None:
    model = translator(stack(dropout=0.5))
    twin = for_training(model)
    first, second = (twin(SOURCE, TARGET, **LENGTHS) for _ in range(2))
    assert not torch.allclose(first, second)
    model.eval()
    assert torch.allclose(twin(SOURCE, TARGET, **LENGTHS), model(SOURCE, TARGET, **LENGTHS), atol=1e-4)


def test_a_twin_shares_everything_and_changes_nothing() -> None:
    model = translator(stack())
    twin = for_training(model)
    assert isinstance(twin.encoder, FusedStack)
    assert type(model.encoder) is not FusedStack
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(one is other for one, other in zip(twin.parameters(), model.parameters(), strict=True))


def test_whoever_watches_sees_every_weight() -> None:
    twin = for_training(translator(stack()))
    seen: list[Tensor] = []
    twin(SOURCE, TARGET, **LENGTHS, watch=lambda _, weights: seen.append(weights))
    assert len(seen) == 6
