"""The fast form of a model for training on a CPU has the losses and gradients of the plain one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

pytest.importorskip("numba")

from regard.attention import HeadsConfig
from regard.attention.position import RotaryConfig
from regard.fast.packed_stack import PackedStack
from regard.fast.packed_training import (
    Chance,
    Places,
    Shape,
    attend_other,
    attend_self,
    drop,
    join,
    product,
)
from regard.fast.swift_training import for_training, why_not, why_plain
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

SIZE = 30


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


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


def with_dropout(share: float) -> EncoderDecoder:
    heads, wide = HeadsConfig(heads=2, dropout=share), FeedForwardConfig(hidden=24, dropout=share)
    return translator(stack(heads, share, feed_forward=wide), embedding={"dropout": share})


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
    "another bend": stack(feed_forward=FeedForwardConfig(hidden=24, activation="gelu")),
    "what the kernels do not know": stack(HeadsConfig(heads=2, similarity="cosine")),
    "a window": stack(HeadsConfig(heads=2, pattern="sliding(2)")),
    "no output product": stack(HeadsConfig(heads=2, output=False)),
}
SOURCE = torch.tensor([[5, 6, 7, 8, 9], [4, 5, 0, 0, 0], [11, 12, 13, 0, 0]])
TARGET = torch.tensor([[1, 6, 7], [1, 8, 9], [1, 4, 0]])
LENGTHS = {"source_lengths": torch.tensor([5, 2, 3]), "target_lengths": torch.tensor([3, 3, 2])}


def batch(rows: int, words: int, seed: int = 5) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Rows of many lengths, those of one word among them."""
    torch.manual_seed(seed)
    source, target = torch.randint(3, SIZE, (rows, words)), torch.randint(3, SIZE, (rows, words + 3))
    lengths, others = torch.randint(1, words + 1, (rows,)), torch.randint(1, words + 4, (rows,))
    lengths[0], others[0] = 1, 1
    return source, target, {"source_lengths": lengths, "target_lengths": others}


def slopes(model: Any, called: Any, *inputs: Tensor, **more: Any) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = called(*inputs, **more)
    torch.manual_seed(1)
    (logits * torch.randn_like(logits)).sum().backward()
    return logits.detach(), gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, slope in wanted.items():
        assert torch.allclose(found[name], slope, atol=1e-4 * max(1.0, float(slope.abs().max()))), name


def check(model: Any, *inputs: Tensor, **more: Any) -> None:
    twin = for_training(model)
    assert twin is not model
    wanted, plain = slopes(model, model, *inputs, **more)
    found, fast = slopes(model, twin, *inputs, **more)
    assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)
    same(fast, plain)


def check_late(model: Any, source: Tensor, target: Tensor, **lengths: Tensor) -> None:
    """The loss where words are scored by the loss itself, and padding is nowhere."""
    words = torch.randint(3, SIZE, target.shape, generator=torch.Generator().manual_seed(2))
    losses, found = [], []
    for called in (model, for_training(model, late=True)):
        model.zero_grad()
        loss = word_loss(called(source, target, **lengths), words, lengths.get("target_lengths"), 0.1)
        (3 * loss.total).backward()
        losses.append(loss)
        found.append(gradients(model))
    torch.testing.assert_close(losses[1].total, losses[0].total)
    torch.testing.assert_close(losses[1].plain, losses[0].plain)
    assert losses[1].count == losses[0].count
    same(found[1], found[0])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_logits_and_gradients_are_the_same(kind: StackConfig) -> None:
    check(translator(kind), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize("even", [1, 4, 64], ids=lambda even: f"even to {even}")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_the_loss_of_words_that_are_scored_late_is_the_same(
    kind: StackConfig, even: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.fast.packed_training._EVEN", even)
    check_late(translator(kind), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize("more", [{"tie": False}, {"output_bias": True}, {"source_vocabulary": SIZE}], ids=str)
def test_every_way_out_can_be_late(more: dict[str, Any]) -> None:
    check_late(translator(stack(), **more), SOURCE, TARGET, **LENGTHS)


def test_many_rows_of_many_lengths(threads: int) -> None:
    source, target, lengths = batch(70, 19)
    check(translator(stack()), source, target, **lengths)
    check_late(translator(stack()), source, target, **lengths)
    check_late(translator(stack(order="post")), source, target, **lengths)


def test_every_number_is_made_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(make: Any) -> Any:
        def empty(*sizes: Any, **more: Any) -> Tensor:
            made: Tensor = make(*sizes, **more)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return empty

    source, target, lengths = batch(70, 19)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    check_late(translator(stack()), source, target, **lengths)


def test_whatever_the_lengths_packed_words_come_in_few_counts() -> None:
    torch.manual_seed(0)
    counts = []
    for _ in range(200):
        places = Places(60, 30, torch.randint(20, 31, (60,)))
        counts.append(len(places.pack(torch.ones(60, 30, 1))))
        assert 0 <= counts[-1] - places.count < 64
    assert len(set(counts)) <= 4
    full = Places(60, 30, torch.tensor([29, *[30] * 59]))
    assert len(full.pack(torch.ones(60, 30, 1))) == 60 * 30  # there is no more padding than that


def test_packed_words_come_back_to_where_they_stood() -> None:
    torch.manual_seed(0)
    x, lengths = torch.randn(9, 20, 3), torch.randint(0, 16, (9,))
    places = Places(9, 20, lengths)
    back = places.unpack(places.pack(x))
    inside = torch.arange(20) < lengths[:, None]
    assert torch.equal(back[inside], x[inside])
    assert torch.equal(places.pack(x)[: places.count], x[inside])


def test_rows_without_padding_and_a_memory_for_all_layers() -> None:
    check(translator(stack()), SOURCE[:1], TARGET[:1])
    check(translator(stack(), memory="shared"), SOURCE, TARGET, **LENGTHS)
    check_late(translator(stack(), memory="shared"), SOURCE, TARGET, **LENGTHS)


def test_one_word_of_one_row() -> None:
    check(translator(stack()), SOURCE[:1, :1], TARGET[:1, :1])
    check_late(translator(stack()), SOURCE[:1, :1], TARGET[:1, :1])


def test_rows_of_nothing_but_padding() -> None:
    lengths = {"source_lengths": torch.tensor([5, 0, 3]), "target_lengths": torch.tensor([3, 0, 2])}
    check_late(translator(stack()), SOURCE, TARGET, **lengths)


def test_without_shared_threads_and_without_one_dnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.team._parallel", lambda: None)
    monkeypatch.setattr("regard.fast.one_dnn._THERE", False)
    source, target, lengths = batch(40, 9)
    check_late(translator(stack()), source, target, **lengths)


def test_texts_longer_than_the_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fast.packed_stack.LONGEST", 4)
    check(translator(stack()), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])])
@pytest.mark.parametrize("position", [None, RotaryConfig()], ids=str)
def test_a_language_model(documents: Tensor | None, position: Any) -> None:
    torch.manual_seed(1)
    more = {} if position is None else {"position": position}
    config = LanguageModelConfig(vocabulary=SIZE, width=16, decoder=stack(), embedding={"dropout": 0.0}, **more)
    check(config.build().train(), SOURCE, documents=documents)


def test_frozen_weights_get_no_gradient() -> None:
    model = translator(stack())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("decoder" in name or "norm" in name)
    check(model, SOURCE, TARGET, **LENGTHS)
    check_late(model, SOURCE, TARGET, **LENGTHS)


def test_the_twin_takes_given_weights_in_another_precision() -> None:
    model = translator(stack())
    weights = {name: parameter.to(torch.bfloat16) for name, parameter in model.named_parameters()}
    wanted = functional_call(model, weights, (SOURCE, TARGET), LENGTHS)
    for late in (False, True):
        found = functional_call(for_training(model, late=late), weights, (SOURCE, TARGET), LENGTHS)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, wanted)


def test_a_model_in_another_precision_is_left_alone() -> None:
    model = translator(stack()).double()
    assert for_training(model) is model
    assert "float64" in str(why_not(model.encoder))


def test_why_a_run_is_plain_is_known() -> None:
    model = translator(stack())
    assert why_plain(model, "fp32") is None
    assert why_plain(model, "bf16") == "on a CPU it is for float32, and this run is in bf16"
    assert why_plain(translator(stack(order="none")), "fp32") == "a layer has no residual sum"
    assert why_plain(nn.Linear(2, 2), "fp32") == "it has no stack of layers"


def test_a_twin_shares_everything_and_changes_nothing() -> None:
    model = translator(stack())
    for twin in (for_training(model), for_training(model, late=True)):
        assert isinstance(twin.encoder, PackedStack)
        assert [name for name, _ in twin.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert all(one is other for one, other in zip(twin.parameters(), model.parameters(), strict=True))
        assert for_training(twin) is twin
    assert type(model.encoder) is not PackedStack
    assert isinstance(model(SOURCE, TARGET), Tensor)
    assert isinstance(twin(SOURCE, TARGET), Unscored)


def test_whoever_watches_sees_every_weight() -> None:
    twin = for_training(translator(stack()))
    seen: list[Tensor] = []
    twin(SOURCE, TARGET, **LENGTHS, watch=lambda _, weights: seen.append(weights))
    assert len(seen) == 6


def test_the_twin_decodes_as_the_model_does() -> None:
    model = translator(stack()).eval()
    twin = for_training(model, late=True)
    found, wanted = (
        each.step(TARGET[:, :1], each.start(SOURCE, 4, LENGTHS["source_lengths"]))[0] for each in (twin, model)
    )
    torch.testing.assert_close(found, wanted)


# Chance


def test_dropout_has_its_share_and_its_gradient_is_that_of_what_was_kept(threads: int) -> None:
    x = torch.ones(600, 64, requires_grad=True)
    made = drop(x, Chance(0.3, 7, 1))
    kept = made.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.01)
    assert float(kept.float().mean(dim=0).std()) == pytest.approx((0.21 / 600) ** 0.5, rel=0.3)
    assert float(kept.float().mean(dim=1).std()) == pytest.approx((0.21 / 64) ** 0.5, rel=0.3)
    assert torch.allclose(made[kept], torch.tensor(1 / 0.7))
    made.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, kept / 0.7)


def test_what_is_dropped_depends_on_the_seed_and_on_the_call() -> None:
    x = torch.ones(300, 64)
    masks = [drop(x, Chance(0.5, seed, call)) != 0 for seed, call in ((7, 1), (7, 1), (7, 2), (8, 1))]
    assert torch.equal(masks[0], masks[1])
    for other in masks[2:]:
        assert float((masks[0] == other).float().mean()) == pytest.approx(0.5, abs=0.02)


def test_a_dropped_change_is_not_added_and_has_no_gradient() -> None:
    x, change = torch.zeros(100, 64), torch.ones(100, 64, requires_grad=True)
    total, _ = join(x, change, torch.ones(64), None, 1e-5, centred=True, chance=Chance(0.3, 7, 1))
    kept = total.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.03)
    total.sum().backward()
    assert change.grad is not None
    assert torch.allclose(change.grad, kept / 0.7)


def as_measured(value: Any, given: Tensor) -> None:
    """A gradient beside what a step into some direction really changes."""
    given.grad = None
    value(given).backward()
    assert given.grad is not None
    direction, step = torch.randn_like(given), 1e-2
    with torch.no_grad():
        measured = (value(given + step * direction) - value(given - step * direction)) / (2 * step)
    assert float((given.grad * direction).sum()) == pytest.approx(float(measured), rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_of_attention_has_the_gradient_of_what_it_computes(causal: bool, key_heads: int) -> None:
    torch.manual_seed(0)
    places = Places(3, 7, torch.tensor([4, 1, 7]))
    made = torch.randn(12, 8 + 2 * 4 * key_heads, requires_grad=True)
    chance, shape, factor = Chance(0.4, 3, 5), Shape(2, key_heads, 4, causal), torch.randn(12, 8)
    as_measured(lambda given: (attend_self(given, places, shape, chance) * factor).sum(), made)
    assert not torch.allclose(attend_self(made, places, shape, chance), attend_self(made, places, shape, None))


def test_dropout_of_attention_to_another_text_has_the_gradient_of_what_it_computes() -> None:
    torch.manual_seed(0)
    places, others = Places(3, 7, torch.tensor([4, 1, 7])), Places(3, 6, torch.tensor([6, 2, 1]))
    query, both = torch.randn(12, 8, requires_grad=True), torch.randn(9, 16, requires_grad=True)
    chance, shape, factor = Chance(0.4, 3, 5), Shape(2, 2, 4, False), torch.randn(12, 8)
    as_measured(lambda given: (attend_other(given, both, places, others, shape, chance) * factor).sum(), query)
    as_measured(lambda given: (attend_other(query, given, places, others, shape, chance) * factor).sum(), both)


def test_attention_drops_its_share() -> None:
    places, size = Places(40, 20, None), 4
    made = torch.cat((torch.zeros(800, 2 * size), torch.ones(800, size)), dim=1)  # every key has the same share
    mixed = attend_self(made, places, Shape(1, 1, size, False), Chance(0.25, 3, 5))[:, 0]
    assert float(mixed.mean()) == pytest.approx(1.0, abs=0.01)
    assert float(mixed.var()) == pytest.approx(0.25 / 0.75 / 20, rel=0.15)


def test_a_model_with_dropout_has_the_gradient_of_what_it_computes() -> None:
    model = with_dropout(0.3)
    twin = for_training(model, late=True)
    words = torch.randint(3, SIZE, TARGET.shape)

    def value() -> Tensor:
        torch.manual_seed(4)
        return word_loss(twin(SOURCE, TARGET, **LENGTHS), words, LENGTHS["target_lengths"], 0.1).total

    value().backward()
    found, measured = 0.0, 0.0
    for parameter in model.parameters():
        assert parameter.grad is not None
        direction, kept = torch.randn_like(parameter), parameter.detach().clone()
        ends = []
        for step in (3e-3, -3e-3):
            with torch.no_grad():
                parameter.copy_(kept + step * direction)
                ends.append(float(value()))
        with torch.no_grad():
            parameter.copy_(kept)
        found += float((parameter.grad * direction).sum())
        measured += (ends[0] - ends[1]) / 6e-3
    assert found == pytest.approx(measured, rel=3e-2)


def test_the_same_seed_gives_the_same_bits_and_other_threads_the_same_to_rounding() -> None:
    model = with_dropout(0.3)
    twin = for_training(model)
    source, target, lengths = batch(40, 12)
    before, results = torch.get_num_threads(), []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        torch.manual_seed(9)
        results.append(slopes(model, twin, source, target, **lengths))
    torch.set_num_threads(before)
    for logits, found in results[1:]:
        torch.testing.assert_close(logits, results[0][0])
        for name, slope in found.items():
            torch.testing.assert_close(slope, results[0][1][name], rtol=1e-4, atol=1e-4)
    assert torch.equal(results[1][0], results[2][0])
    assert all(torch.equal(slope, results[2][1][name]) for name, slope in results[1][1].items())


def test_dropped_words_are_others_in_every_pass_and_none_in_evaluation() -> None:
    model = with_dropout(0.5)
    twin = for_training(model)
    first, second = (twin(SOURCE, TARGET, **LENGTHS) for _ in range(2))
    assert not torch.allclose(first, second)
    model.eval()
    assert torch.allclose(twin(SOURCE, TARGET, **LENGTHS), model(SOURCE, TARGET, **LENGTHS), atol=1e-4)


# Beside PyTorch


@pytest.mark.parametrize("bias", [True, False])
def test_products_are_pytorchs(bias: bool) -> None:
    torch.manual_seed(0)
    x, linear = torch.randn(37, 16, requires_grad=True), nn.Linear(16, 24, bias=bias)
    given = [x, *linear.parameters()]
    factor = torch.randn(37, 24)
    wanted = torch.autograd.grad((linear(x) * factor).sum(), given)
    found = torch.autograd.grad((product(x, linear.weight, linear.bias) * factor).sum(), given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_hundred_steps_end_where_the_plain_model_ends() -> None:
    source, target, lengths = batch(12, 8)
    words = target.roll(-1, dims=1)
    ends = []
    for fast in (False, True):
        model = translator(stack())
        called = for_training(model, late=True) if fast else model
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(100):
            loss = word_loss(called(source, target, **lengths), words, lengths["target_lengths"], 0.1)
            loss.mean.backward()
            optimiser.step()
            optimiser.zero_grad()
        ends.append(loss.mean.item())
    assert ends[0] < 2.8
    assert ends[1] == pytest.approx(ends[0], abs=1e-4)
