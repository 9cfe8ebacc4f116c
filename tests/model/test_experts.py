"""Experts: every way of choosing and computing against one written out token by token, and what they must keep to."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import UserError
from regard.attention import Context, LayerState
from regard.fast import swift, swift_gpu
from regard.fast.swift_training import for_training
from regard.model import FeedForwardConfig, StackConfig
from regard.model.experts import Experts, ExpertsConfig, balance_of, gathered, loads
from regard.model.grouped import by_all, grouped, in_one
from regard.model.stack import Stack

from .small_models import EXACT, SAMPLES, build, encoder_decoder, ids, inputs, language_model, stack, with_experts

WIDTH = 6
ROWS, LENGTH = 3, 5
GROUPS: dict[str, dict[str, Any]] = {
    "one group": {},
    "best of groups": {"groups": 4, "active_groups": 2},
    "best two of groups": {"groups": 4, "active_groups": 2, "group_score": "best-two"},
}
WITH_EXPERTS = [
    pytest.param(config, id=f"{kind}: {name}")
    for kind, some in SAMPLES.items()
    for name, config in some.items()
    if "experts" in name
]


def made(seed: int = 0, **settings: Any) -> Experts:
    """A layer with no parameter, and no correction, left where it begins."""
    torch.manual_seed(seed)
    layer = ExpertsConfig(**{"experts": 8, "active": 3, "hidden": 7, **settings}).build(WIDTH).double().eval()
    assert isinstance(layer, Experts)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        if layer.correction is not None:
            layer.correction.add_(0.3 * torch.randn_like(layer.correction))
    return layer


def words(rows: int = ROWS, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randn(rows, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def context(x: Tensor, **more: Any) -> Context:
    return Context(torch.zeros(x.shape[:2], dtype=torch.long), **more)


def run(layer: nn.Module, x: Tensor, **more: Any) -> Tensor:
    y: Tensor = layer(x, context(x, **more), LayerState())
    return y


def one_expert(layer: Experts, number: int) -> nn.Module:
    """An expert as a plain feed-forward that shares its weights."""
    config = layer.config
    dense: Any = FeedForwardConfig(hidden=config.hidden, activation=config.activation, bias=config.bias).build(WIDTH)
    for name in ("widen", "narrow") if layer.gate is None else ("widen", "gate", "narrow"):
        theirs, ours = getattr(dense, name), getattr(layer, name)
        del theirs.weight
        theirs.weight = ours.weight[number]
        if config.bias:
            del theirs.bias
            theirs.bias = ours.bias[number]
    return dense


def written_out(layer: Experts, x: Tensor) -> Tensor:
    """One token after another, as the papers have it."""
    config = layer.config
    experts = [one_expert(layer, number) for number in range(config.experts)]
    rows = []
    for token in x.flatten(0, 1):
        scores = [weight @ token for weight in layer.router.weight]
        if config.gate == "softmax":
            total = sum(torch.exp(score) for score in scores)
            scores = [torch.exp(score) / total for score in scores]
        else:
            scores = [1 / (1 + torch.exp(-score)) for score in scores]
        shift = [0.0] * config.experts if layer.correction is None else layer.correction.tolist()
        ranks = [score.item() + more for score, more in zip(scores, shift, strict=True)]
        size = config.experts // config.groups
        groups = [list(range(first, first + size)) for first in range(0, config.experts, size)]
        counted = 1 if config.group_score == "best" else 2

        def worth(group: list[int], ranks: list[float] = ranks, counted: int = counted) -> float:
            return sum(sorted((ranks[one] for one in group), reverse=True)[:counted])

        if config.groups > 1:
            groups = sorted(groups, key=worth, reverse=True)[: config.active_groups]
        allowed = [one for group in groups for one in group]
        chosen = sorted(allowed, key=lambda one, ranks=ranks: ranks[one], reverse=True)[: config.active]
        whole = sum(scores[one] for one in chosen) if config.normalise else 1.0
        each = token.view(1, 1, -1)
        mixed = sum(config.factor * scores[one] / whole * run(experts[one], each) for one in chosen)
        rows.append(mixed if layer.shared is None else mixed + run(layer.shared, each))
    return torch.cat(rows).view_as(x)


def slopes(y: Tensor, layer: nn.Module, x: Tensor) -> list[Tensor]:
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))
    return list(torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()]))


# What is computed


@pytest.mark.parametrize("correction", ["loss", "bias"])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_every_way_of_choosing_is_as_written_out(gate, normalise, groups, correction):
    layer = made(gate=gate, normalise=normalise, balancing=correction, factor=1.7, **GROUPS[groups])
    x = words().requires_grad_()
    found, wanted = run(layer, x), written_out(layer, x)
    torch.testing.assert_close(found, wanted, **EXACT)
    torch.testing.assert_close(slopes(found, layer, x), slopes(wanted, layer, x), **EXACT)


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu-tanh", "swiglu"])
def test_every_form_of_an_expert_is_as_written_out(activation, bias, shared):
    layer = made(activation=activation, bias=bias, shared=shared)
    x = words().requires_grad_()
    found, wanted = run(layer, x), written_out(layer, x)
    torch.testing.assert_close(found, wanted, **EXACT)
    torch.testing.assert_close(slopes(found, layer, x), slopes(wanted, layer, x), **EXACT)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
@pytest.mark.parametrize("activation", ["relu", "geglu"])
def test_one_expert_is_a_plain_feed_forward(activation, gate):
    layer = made(experts=1, active=1, gate=gate, activation=activation)
    x = words().requires_grad_()
    found, wanted = run(layer, x), run(one_expert(layer, 0), x)
    torch.testing.assert_close(found, wanted, **EXACT)
    learnt = [x, *(parameter for name, parameter in layer.named_parameters() if not name.startswith("router"))]
    of_found, of_wanted = (torch.autograd.grad(y.square().sum(), learnt) for y in (found, wanted))
    torch.testing.assert_close(of_found, of_wanted, **EXACT)


def test_all_experts_at_equal_gates_are_their_mean():
    layer = made(experts=4, active=4)
    nn.init.zeros_(layer.router.weight)
    x = words()
    wanted = torch.stack([run(one_expert(layer, number), x) for number in range(4)]).mean(dim=0)
    torch.testing.assert_close(run(layer, x), wanted, **EXACT)


def test_shared_experts_are_as_many_single_ones_side_by_side():
    layer = made(shared=2)
    assert layer.shared is not None
    alone = copy.deepcopy(layer)
    alone.shared = None
    x, hidden = words(), layer.config.hidden
    wide: Any = layer.shared
    both = torch.zeros_like(x)
    for half in (slice(0, hidden), slice(hidden, 2 * hidden)):
        bent = functional.relu(functional.linear(x, wide.widen.weight[half], wide.widen.bias[half]))
        both = both + functional.linear(bent, wide.narrow.weight[:, half])
    torch.testing.assert_close(run(layer, x), run(alone, x) + both + wide.narrow.bias, **EXACT)


def test_order_and_company_do_not_matter():
    layer, x = made(), words()
    y = run(layer, x)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(run(layer, x[order].flip(1)), y[order].flip(1), **EXACT)
    for row, token in itertools.product(range(ROWS), range(LENGTH)):
        torch.testing.assert_close(run(layer, x[row, token].view(1, 1, -1)), y[row, token].view(1, 1, -1), **EXACT)


def test_experts_that_nobody_goes_to_are_left_out_and_learn_nothing():
    layer = made(experts=8, active=2, balancing="bias")
    assert layer.correction is not None
    layer.correction.copy_(torch.tensor([9.0, 9.0, 0, 0, 0, 0, 0, 0]))
    x = words().requires_grad_()
    found, wanted = run(layer, x), written_out(layer, x)
    torch.testing.assert_close(found, wanted, **EXACT)
    found.sum().backward()
    for part in (layer.widen, layer.narrow):
        assert part.weight.grad is not None
        assert part.weight.grad[:2].ne(0).any(dim=(1, 2)).all()
        assert part.weight.grad[2:].eq(0).all()


def test_no_tokens_at_all_are_fine():
    assert run(made(), words(rows=0)).shape == (0, LENGTH, WIDTH)


def test_dropout_falls_on_the_hidden_features():
    layer = made(experts=2, active=2, dropout=0.5).train()
    x = words()
    assert not torch.equal(run(layer, x), run(layer, x))
    assert torch.equal(run(layer.eval(), x), run(layer, x))


def test_the_same_input_gives_the_same_bits():
    layer, x = made(activation="swiglu"), words()
    assert torch.equal(run(layer, x), run(layer, x))


# Beside those of others


def like_theirs(layer: Experts, block: Any) -> None:
    """Give a layer the weights of a block of Hugging Face's, whose gate and widening lie above each other."""
    gate, up = block.experts.gate_up_proj.chunk(2, dim=1)
    assert layer.gate is not None
    pairs = [
        (layer.router.weight, block.gate.weight),
        (layer.gate.weight, gate),
        (layer.widen.weight, up),
        (layer.narrow.weight, block.experts.down_proj),
    ]
    if layer.correction is not None:
        pairs.append((layer.correction, block.gate.e_score_correction_bias))
    if layer.shared is not None:
        shared: Any = layer.shared
        theirs = block.shared_experts
        pairs += [(shared.gate.weight, theirs.gate_proj.weight), (shared.widen.weight, theirs.up_proj.weight)]
        pairs.append((shared.narrow.weight, theirs.down_proj.weight))
    for ours, other in pairs:
        ours.data.copy_(other)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v2", "deepseek_v3"])
def test_a_layer_computes_what_hugging_faces_does(family):
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v2 import modeling_deepseek_v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3
    from transformers.models.mixtral import modeling_mixtral

    usual = {"hidden_size": WIDTH, "num_attention_heads": 1, "num_experts_per_tok": 3, "num_local_experts": 8}
    deep = usual | {"n_routed_experts": 8, "moe_intermediate_size": 7, "n_shared_experts": 2}
    deep |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
    of_groups = {"groups": 4, "active_groups": 2, "factor": 2.5, "shared": 2}
    config: Any
    block: Any
    if family == "mixtral":
        config, ours = modeling_mixtral.MixtralConfig(intermediate_size=7, **usual), {}
        block = modeling_mixtral.MixtralSparseMoeBlock(config)
    elif family == "deepseek_v2":
        config = modeling_deepseek_v2.DeepseekV2Config(topk_method="group_limited_greedy", norm_topk_prob=False, **deep)
        ours = of_groups | {"normalise": False}
        block = modeling_deepseek_v2.DeepseekV2Moe(config)
    else:
        config = modeling_deepseek_v3.DeepseekV3Config(**deep)
        ours = of_groups | {"gate": "sigmoid", "group_score": "best-two", "balancing": "bias"}
        block = modeling_deepseek_v3.DeepseekV3MoE(config)
    torch.manual_seed(2)
    with torch.no_grad():
        for tensor in (*block.parameters(), *block.buffers()):
            tensor.normal_(0, 0.5)
    layer = made(activation="swiglu", bias=False, **ours).float()
    like_theirs(layer, block)
    x = words(rows=4, length=16).float()
    with torch.no_grad():
        torch.testing.assert_close(run(layer, x), block(x), rtol=1e-4, atol=1e-5)


# Padding


def test_padding_goes_to_nobody_and_changes_nothing():
    layer, x = made(), words()
    lengths = torch.tensor([5, 2, 0])
    y = run(layer, x, lengths=lengths)
    torch.testing.assert_close(y[0], run(layer, x)[0], **EXACT)
    torch.testing.assert_close(y[1, :2], run(layer, x)[1, :2], **EXACT)
    assert y[1, 2:].eq(0).all()
    assert y[2].eq(0).all()


def test_padding_learns_nothing():
    layer, lengths = made(), torch.tensor([5, 2, 0])
    x = words().requires_grad_()
    other = x.detach().clone()
    other[1, 2:], other[2] = 1e3, -1e3
    other.requires_grad_()
    weights = words(seed=4)
    of_x, of_other = (
        torch.autograd.grad((run(layer, one, lengths=lengths) * weights).sum(), [one, *layer.parameters()])
        for one in (x, other)
    )
    torch.testing.assert_close(of_x, of_other, **EXACT)
    assert of_x[0][2].eq(0).all()


def test_padding_is_not_counted():
    layer, x = made().train(), words()
    with gathered() as padded:
        run(layer, x, lengths=torch.tensor([5, 2, 0]))
    with gathered() as plain:
        run(layer, torch.cat((x[0], x[1, :2]))[None])
    assert torch.equal(padded[0].load, plain[0].load)
    assert int(padded[0].load.sum()) == 7 * 3
    torch.testing.assert_close(padded[0].balance, plain[0].balance, **EXACT)


def test_lengths_count_what_is_in_the_cache_already():
    layer, x = made(), words()
    start = torch.tensor([4, 4, 4])
    y = run(layer, x, lengths=start + torch.tensor([5, 2, 0]), start=start, extent=9)
    assert torch.equal(y, run(layer, x, lengths=torch.tensor([5, 2, 0])))


# The loss on the loads


def one_hot(choices: list[int], experts: int = 4, strength: float = 1.0) -> Tensor:
    """The loss of a layer whose tokens go, with all of their gate, to these experts."""
    config = ExpertsConfig(experts=experts, active=1, normalise=False, hidden=2, balance=strength)
    layer: Any = config.build(experts).double().train()
    layer.router.weight.data = 1e3 * torch.eye(experts, dtype=torch.float64)
    x = functional.one_hot(torch.tensor([choices]), experts).double()
    with gathered() as notes:
        run(layer, x)
    return notes[0].balance


def test_the_loss_is_1_where_all_experts_are_equally_busy():
    torch.testing.assert_close(one_hot([0, 1, 2, 3, 3, 2, 1, 0]).item(), 1.0)


def test_the_loss_is_the_number_of_experts_where_one_does_all():
    torch.testing.assert_close(one_hot([2] * 8).item(), 4.0)


def test_the_loss_lies_between_for_what_lies_between():
    torch.testing.assert_close(one_hot([0, 0, 1, 1]).item(), 2.0)
    torch.testing.assert_close(one_hot([0, 0, 0, 1]).item(), 4 * (9 + 1) / 16)


def test_the_loss_counts_as_much_as_it_is_told_to():
    torch.testing.assert_close(one_hot([2] * 8, strength=0.25).item(), 1.0)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_the_loss_is_as_in_the_paper(gate):
    """experts · Σ fᵢ Pᵢ (Fedus et al. 2021, eq. 4), with f over all places and P the share of the gates' sum."""
    layer, x = made(gate=gate, balance=1.0).train(), words()
    with gathered() as notes:
        run(layer, x)
    scores = x.flatten(0, 1) @ layer.router.weight.T
    scores = scores.exp() if gate == "softmax" else scores.sigmoid()
    chosen = scores.topk(3).indices.flatten().tolist()
    share = torch.tensor([chosen.count(number) / len(chosen) for number in range(8)], dtype=torch.float64)
    mean = (scores / scores.sum(dim=1, keepdim=True)).mean(dim=0)
    torch.testing.assert_close(notes[0].balance, 8 * (share * mean).sum(), **EXACT)


def test_the_loss_teaches_the_router_alone():
    layer = made(balance=1.0).train()
    with gathered() as notes:
        run(layer, words())
    notes[0].balance.backward()
    learnt = {name for name, parameter in layer.named_parameters() if parameter.grad is not None}
    assert learnt == {"router.weight"}


@pytest.mark.parametrize(
    ("balancing", "balance", "strength"), [("loss", None, 0.01), ("bias", None, 0), ("bias", 0.5, 0.5)]
)
def test_the_strength_left_out_goes_by_the_way_of_balancing(balancing, balance, strength):
    assert ExpertsConfig(balancing=balancing, balance=balance).strength == strength


# Who gathers


def test_every_layer_leaves_a_note_for_whoever_gathers():
    config = SAMPLES["encoder-decoder"]["experts"]
    model = build(config)
    source, target = inputs(config)
    with gathered() as notes:
        model(source, target)
    experts = [part for part in model.modules() if isinstance(part, Experts)]
    assert {id(note.layer) for note in notes} == {id(part) for part in experts}
    assert len(notes) == len(experts) == 4
    assert [int(note.load.sum()) for note in notes] == [2 * source.numel()] * 2 + [2 * target.numel()] * 2
    total = balance_of(notes)
    assert total is not None
    torch.testing.assert_close(total, sum(note.balance for note in notes))


def test_a_model_without_experts_leaves_no_note():
    config = SAMPLES["encoder-decoder"]["plain"]
    with gathered() as notes:
        build(config)(*inputs(config))
    assert balance_of(notes) is None


def test_gathering_ends_with_its_block_and_does_not_reach_into_another():
    layer, x = made(), words()
    with gathered() as outer:
        with gathered() as inner:
            run(layer, x)
        assert (len(outer), len(inner)) == (0, 1)
        run(layer, x)
    run(layer, x)
    assert (len(outer), len(inner)) == (1, 1)


def test_whoever_only_uses_a_model_computes_no_loss(monkeypatch):
    def never(*values: Any) -> Tensor:
        raise AssertionError

    layer, x = made(balance=1.0), words()
    monkeypatch.setattr("regard.model.experts._balance", never)
    run(layer, x)
    with torch.no_grad():
        run(layer.train(), x)
    assert layer.load is None


def test_a_pass_counts_in_training_alone_and_when_someone_gathers():
    layer, x = made().train(), words()
    run(layer, x)
    assert layer.load is None
    for _ in range(2):
        with gathered() as notes:
            run(layer, x)
    assert torch.equal(layer.load, 2 * notes[0].load)
    with gathered():
        run(layer.eval(), x)
    assert torch.equal(layer.load, 2 * notes[0].load)


@pytest.mark.parametrize("form", [torch.float64, torch.float32], ids=["plain form", "form for a CPU"])
def test_what_is_computed_again_is_counted_once_and_has_the_same_gradients(form):
    config = language_model(decoder=with_experts(stack(), balance=1.0))
    tokens = ids(2, 7)
    found = []
    for recompute in (False, True):
        torch.manual_seed(2)
        model = config.build().to(form).train()
        forward = for_training(model, recompute=recompute)
        torch.manual_seed(3)
        with gathered() as notes:
            logits = forward(tokens, lengths=torch.tensor([7, 4]))
        total = balance_of(notes)
        assert total is not None
        (logits.square().mean() + total).backward()
        assert len(notes) == 2
        counts = [part.load for part in model.modules() if isinstance(part, Experts)]
        assert all(int(count.sum()) == 2 * 11 for count in counts if count is not None)
        found.append([total.detach(), *counts, *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_table_has_the_load_of_every_layer_and_expert():
    config = SAMPLES["encoder-decoder"]["experts"]
    model = build(config)
    source, target = inputs(config)
    table = loads(model, source, target, source_lengths=torch.tensor([5, 1]))
    assert list(table) == [
        *(f"encoder.blocks.{number}.feed_forward.function" for number in range(2)),
        *(f"decoder.blocks.{number}.feed_forward.function" for number in range(2)),
    ]
    assert [len(load) for load in table.values()] == [4, 4, 6, 6]
    assert [int(load.sum()) for load in table.values()] == [12, 12, 28, 28]


def test_the_bias_moves_towards_even_loads():
    layer = made(experts=4, active=1, normalise=False, balancing="bias", rate=0.1)
    assert layer.correction is not None
    before = layer.correction.clone()
    layer.correct(torch.tensor([8, 4, 0, 4]))
    torch.testing.assert_close(layer.correction - before, 0.1 * torch.tensor([-1.0, 0, 1, 0], dtype=torch.float64))


def test_the_bias_is_saved_with_the_model_and_counts_are_not():
    layer = made(balancing="bias").train()
    with gathered():
        run(layer, words())
    assert "correction" in layer.state_dict()
    assert "load" not in layer.state_dict()
    assert "correction" not in made().state_dict()


# Ways to compute grouped products


@pytest.mark.parametrize("ends", [(2, 2, 5), (0, 0, 5), (5, 5, 5), (1, 2, 3), (0, 0, 0)], ids=str)
def test_every_way_of_grouped_products_agrees(ends):
    """PyTorch's is tried on the CPU, where it is for float32. What lies behind the last group must not show."""
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weight = torch.randn(3, 16, 8, generator=torch.Generator().manual_seed(2)).requires_grad_()
    end = torch.tensor(ends, dtype=torch.int32)
    compiled = torch.compile(grouped, fullgraph=True, backend="aot_eager")
    ways = {
        "one by one": lambda: grouped(x, weight, end, padded=True),
        "in one": lambda: in_one(x, weight, end, padded=True),
        "by all": lambda: by_all(x, weight, end),
        "compiled": lambda: compiled(x, weight, end, padded=True),
    }
    group = [sum(row >= each for each in ends) for row in range(5)]
    rows = [x[row] @ weight[one].T if one < 3 else torch.zeros(16) for row, one in enumerate(group)]
    wanted = torch.stack(rows)
    of_wanted = torch.autograd.grad(wanted.square().sum() + 0 * (x.sum() + weight.sum()), [x, weight])
    for name, way in ways.items():
        found = way()
        torch.testing.assert_close(found, wanted, msg=lambda text, name=name: f"{name}: {text}")
        of_found = torch.autograd.grad(found.square().sum(), [x, weight])
        torch.testing.assert_close(of_found, of_wanted, msg=lambda text, name=name: f"{name}: {text}")


# In models


@pytest.mark.parametrize("config", WITH_EXPERTS)
def test_step_by_step_is_as_all_at_once(config):
    """Rows bring chunks of different lengths, so there is padding on the way."""
    model = build(config)
    *source, target = inputs(config, rows=3, tokens=9)
    counts = torch.tensor([[2, 1, 3], [1, 1, 1], [4, 2, 1], [2, 5, 4]])
    cache = model.start(*(source or [3]), capacity=24)
    with torch.no_grad():
        whole = model(*source, target)
    done = torch.zeros(3, dtype=torch.long)
    for some in counts:
        longest = int(some.max())
        chunk = torch.zeros(3, longest, dtype=torch.long)
        for row in range(3):
            chunk[row, : some[row]] = target[row, done[row] : done[row] + some[row]]
        logits, cache = model.step(chunk, cache, some)
        for row in range(3):
            wanted = whole[row, done[row] : done[row] + some[row]]
            torch.testing.assert_close(logits[row, : some[row]], wanted, **EXACT)
        done = done + some
    assert done.tolist() == [9, 9, 9]


def test_the_fast_forms_for_decoding_decline_experts(monkeypatch):
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)
    model = build(language_model(decoder=with_experts(stack()), vocabulary=70), torch.float32)
    for fast in (swift, swift_gpu):
        reason = fast.why_not(model)
        if reason is not None and "not installed" in reason:
            continue
        assert reason == "its feed-forward is a Experts"


@pytest.mark.parametrize(("precision", "rounding"), [("float32", 1e-4), ("int8", 0.3)])
def test_an_encoder_with_experts_is_read_their_own_way_before_a_fast_decoder(precision, rounding):
    pytest.importorskip("numba")
    config = encoder_decoder(encoder=with_experts(stack(), shared=1), vocabulary=70, tokens={"start": 1, "end": 2})
    model = build(config, torch.float32)
    assert swift.why_not(model) is None
    found, wanted = (
        each.step(first[:, None], cache)[0]
        for each in (swift.Swift(model, precision), model)
        for cache, first in [each.begin([[5, 6, 7], [8]], 10)]
    )
    torch.testing.assert_close(found, wanted, rtol=rounding, atol=rounding * float(wanted.std()))


@pytest.mark.parametrize("config", WITH_EXPERTS)
def test_the_fast_form_for_training_gives_the_same(config):
    """Experts go their own way in it."""
    model = build(config, torch.float32)
    given = inputs(config)
    names = ("source_lengths", "target_lengths") if len(given) == 2 else ("lengths",)
    lengths = {name: torch.tensor([side.shape[1], 2]) for name, side in zip(names, given, strict=True)}
    found, wanted = (forward(*given, **lengths) for forward in (for_training(model), model))
    for row, length in enumerate(lengths[names[-1]].tolist()):
        torch.testing.assert_close(found[row, :length], wanted[row, :length], rtol=1e-4, atol=1e-4)


def test_a_stack_reads_experts_by_their_kind_and_is_dense_without_one():
    settings = {"kind": "experts", "experts": 3, "active": 2, "hidden": 5}
    assert StackConfig.read({"feed_forward": settings}).feed_forward == ExpertsConfig(experts=3, active=2, hidden=5)
    assert StackConfig.read({"feed_forward": {"hidden": 5}}).feed_forward == FeedForwardConfig(hidden=5)
    assert StackConfig(feed_forward=ExpertsConfig(experts=3)).feed_forward.kind == "experts"


def test_weights_are_one_tensor_for_all_experts():
    layer = made(activation="swiglu", shared=2, balancing="bias")
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    assert shapes == {
        "correction": (8,),
        "router.weight": (8, WIDTH),
        "widen.weight": (8, 7, WIDTH),
        "widen.bias": (8, 7),
        "gate.weight": (8, 7, WIDTH),
        "gate.bias": (8, 7),
        "narrow.weight": (8, WIDTH, 7),
        "narrow.bias": (8, WIDTH),
        "shared.widen.weight": (14, WIDTH),
        "shared.widen.bias": (14,),
        "shared.gate.weight": (14, WIDTH),
        "shared.gate.bias": (14,),
        "shared.narrow.weight": (WIDTH, 14),
        "shared.narrow.bias": (WIDTH,),
    }


def test_each_expert_begins_as_if_it_were_alone():
    layer: Any = ExpertsConfig(experts=4, hidden=20).build(10)
    limit = math.sqrt(6 / 30)
    for part in (layer.widen, layer.narrow):
        assert 0.9 * limit < part.weight.abs().max() <= limit
        assert part.bias.eq(0).all()
    torch.testing.assert_close(layer.widen.weight.std().item(), limit / math.sqrt(3), rtol=0.1, atol=0)
    layer.narrow.initialise(gain=0.5)
    assert 0.45 * limit < layer.narrow.weight.abs().max() <= 0.5 * limit


def test_on_a_cpu_the_question_of_waiting_has_the_careful_answer():
    assert made().waits(torch.bfloat16)


def test_experts_survive_in_a_stack_of_any_order():
    for order in ("pre", "post", "none"):
        model = build(language_model(decoder=with_experts(stack(order=order))))
        assert isinstance(model.decoder, Stack)
        assert model(ids(2, 4)).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"active": 9}, "active: found 9; expected no more than there are experts (8)."),
        ({"groups": 3}, "groups: found 3; expected a number that divides experts (8)."),
        (
            {"groups": 2, "active_groups": 3},
            "active_groups: found 3; expected no more than there are groups (2).",
        ),
        ({"groups": 4, "active": 3}, "active: found 3; active groups (1) have 2 experts. Raise active_groups."),
        (
            {"groups": 8, "active_groups": 3, "group_score": "best-two"},
            "group_score: found 'best-two'; groups of one expert have no two, choose 'best'.",
        ),
        (
            {"active": 1},
            "normalise: the gate of a single expert divided by itself is 1, and the router cannot learn; choose false.",
        ),
        ({"factor": 0.0}, "factor: found 0.0; expected greater than 0."),
        ({"balance": -0.1}, "balance: found -0.1; expected greater than or equal to 0."),
        ({"gate": "relu"}, "gate: found 'relu'; expected 'softmax' or 'sigmoid'."),
        ({"actve": 2}, "actve: unknown key; did you mean 'active'?"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(settings, sentence):
    with pytest.raises(UserError) as caught:
        ExpertsConfig(**settings)
    assert str(caught.value) == sentence
    with pytest.raises(UserError) as caught:
        StackConfig.read({"feed_forward": {"kind": "experts", **settings}})
    assert str(caught.value) == f"feed_forward.{sentence}"


def test_an_unknown_kind_is_refused_with_the_kinds_there_are():
    with pytest.raises(UserError, match=r"feed_forward\.kind: found 'expert'; expected one of 'dense', 'experts'\."):
        StackConfig.read({"feed_forward": {"kind": "expert"}})
