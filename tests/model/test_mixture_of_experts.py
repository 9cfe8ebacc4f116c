"""Mixture of experts: routing and experts against a token-by-token reference, padding, load balancing, fused forms."""

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
from regard.fused.cpu_decoder import CpuDecoder
from regard.fused.support import cpu_decoder_unsupported_reason, cuda_decoder_unsupported_reason
from regard.fused.training import fuse_for_training
from regard.model import FeedForwardConfig, StackConfig
from regard.model.mixture_of_experts import (
    MixtureOfExperts,
    MixtureOfExpertsConfig,
    expert_load,
    record_routing,
    total_aux_loss,
)
from regard.model.stack import Stack
from tests.model.small_models import (
    EXACT,
    SAMPLES,
    build,
    encoder_decoder,
    ids,
    inputs,
    language_model,
    norm_order,
    stack,
    with_experts,
)

WIDTH = 6
ROWS, LENGTH = 3, 5
GROUPS: dict[str, dict[str, Any]] = {
    "one group": {},
    "best of groups": {"groups": 4, "top_groups": 2},
    "best two of groups": {"groups": 4, "top_groups": 2, "group_score": "top2_sum"},
}
WITH_EXPERTS = [
    pytest.param(config, id=f"{kind}: {name}")
    for kind, some in SAMPLES.items()
    for name, config in some.items()
    if "experts" in name
]


def build_layer(seed: int = 0, **settings: Any) -> MixtureOfExperts:
    """A layer whose parameters and expert bias have all moved away from their initial values."""
    torch.manual_seed(seed)
    layer = MixtureOfExpertsConfig(**{"experts": 8, "top_k": 3, "hidden": 7, **settings}).build(WIDTH).double().eval()
    assert isinstance(layer, MixtureOfExperts)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        if layer.expert_bias is not None:
            layer.expert_bias.add_(0.3 * torch.randn_like(layer.expert_bias))
    return layer


def hidden_states(rows: int = ROWS, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randn(rows, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def context(x: Tensor, **more: Any) -> Context:
    return Context(torch.zeros(x.shape[:2], dtype=torch.long), **more)


def run(layer: nn.Module, x: Tensor, **more: Any) -> Tensor:
    y: Tensor = layer(x, context(x, **more), LayerState())
    return y


def one_expert(layer: MixtureOfExperts, number: int) -> nn.Module:
    """One expert as a dense feed-forward that shares its weights."""
    config = layer.config
    dense: Any = FeedForwardConfig(hidden=config.hidden, activation=config.activation, bias=config.bias).build(WIDTH)
    for name, theirs in dense.named_children():
        if name == "dropout":
            continue
        ours = getattr(layer.experts, name)
        del theirs.weight
        theirs.weight = ours.weight[number]
        if config.bias:
            del theirs.bias
            theirs.bias = ours.bias[number]
    return dense


def reference(layer: MixtureOfExperts, x: Tensor) -> Tensor:
    """The formulas of the papers, token by token."""
    config = layer.config
    experts = [one_expert(layer, number) for number in range(config.experts)]
    rows = []
    for token in x.flatten(0, 1):
        scores = [weight @ token for weight in layer.router.weight]
        if config.router == "softmax":
            denominator = sum(torch.exp(score) for score in scores)
            scores = [torch.exp(score) / denominator for score in scores]
        else:
            scores = [1 / (1 + torch.exp(-score)) for score in scores]
        bias = [0.0] * config.experts if layer.expert_bias is None else layer.expert_bias.tolist()
        ranks = [score.item() + shift for score, shift in zip(scores, bias, strict=True)]
        size = config.experts // config.groups
        groups = [list(range(first, first + size)) for first in range(0, config.experts, size)]
        counted = 1 if config.group_score == "max" else 2

        def group_score(group: list[int], ranks: list[float] = ranks, counted: int = counted) -> float:
            return sum(sorted((ranks[one] for one in group), reverse=True)[:counted])

        if config.groups > 1:
            groups = sorted(groups, key=group_score, reverse=True)[: config.top_groups]
        allowed = [one for group in groups for one in group]
        chosen = sorted(allowed, key=lambda one, ranks=ranks: ranks[one], reverse=True)[: config.top_k]
        total = sum(scores[one] for one in chosen) if config.normalize else 1.0
        each = token.view(1, 1, -1)
        mixed = sum(config.routed_scale * scores[one] / total * run(experts[one], each) for one in chosen)
        rows.append(mixed if layer.shared_experts is None else mixed + run(layer.shared_experts, each))
    return torch.cat(rows).view_as(x)


def grads(y: Tensor, layer: nn.Module, x: Tensor) -> list[Tensor]:
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))
    return list(torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()]))


# Forward and backward


@pytest.mark.parametrize("balancing", ["loss", "bias"])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_every_routing_equals_the_reference(router, normalize, groups, balancing):
    layer = build_layer(router=router, normalize=normalize, balancing=balancing, routed_scale=1.7, **GROUPS[groups])
    x = hidden_states().requires_grad_()
    actual, expected = run(layer, x), reference(layer, x)
    torch.testing.assert_close(actual, expected, **EXACT)
    torch.testing.assert_close(grads(actual, layer, x), grads(expected, layer, x), **EXACT)


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu-tanh", "swiglu"])
def test_every_kind_of_expert_equals_the_reference(activation, bias, shared):
    layer = build_layer(activation=activation, bias=bias, shared_experts=shared)
    x = hidden_states().requires_grad_()
    actual, expected = run(layer, x), reference(layer, x)
    torch.testing.assert_close(actual, expected, **EXACT)
    torch.testing.assert_close(grads(actual, layer, x), grads(expected, layer, x), **EXACT)


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
@pytest.mark.parametrize("activation", ["relu", "geglu"])
def test_single_expert_equals_a_dense_feed_forward(activation, router):
    layer = build_layer(experts=1, top_k=1, router=router, activation=activation)
    x = hidden_states().requires_grad_()
    actual, expected = run(layer, x), run(one_expert(layer, 0), x)
    torch.testing.assert_close(actual, expected, **EXACT)
    learned = [x, *(parameter for name, parameter in layer.named_parameters() if not name.startswith("router"))]
    actual_grads, expected_grads = (torch.autograd.grad(y.square().sum(), learned) for y in (actual, expected))
    torch.testing.assert_close(actual_grads, expected_grads, **EXACT)


def test_equal_gates_average_the_experts():
    layer = build_layer(experts=4, top_k=4)
    nn.init.zeros_(layer.router.weight)
    x = hidden_states()
    expected = torch.stack([run(one_expert(layer, number), x) for number in range(4)]).mean(dim=0)
    torch.testing.assert_close(run(layer, x), expected, **EXACT)


def test_shared_experts_equal_the_sum_of_single_experts():
    layer = build_layer(shared_experts=2)
    assert layer.shared_experts is not None
    routed_only = copy.deepcopy(layer)
    routed_only.shared_experts = None
    x, hidden = hidden_states(), layer.config.hidden
    wide: Any = layer.shared_experts
    both = torch.zeros_like(x)
    for half in (slice(0, hidden), slice(hidden, 2 * hidden)):
        hidden_features = functional.relu(functional.linear(x, wide.up_proj.weight[half], wide.up_proj.bias[half]))
        both = both + functional.linear(hidden_features, wide.down_proj.weight[:, half])
    torch.testing.assert_close(run(layer, x), run(routed_only, x) + both + wide.down_proj.bias, **EXACT)


def test_tokens_are_independent_of_order_and_batch():
    layer, x = build_layer(), hidden_states()
    y = run(layer, x)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(run(layer, x[order].flip(1)), y[order].flip(1), **EXACT)
    for row, token in itertools.product(range(ROWS), range(LENGTH)):
        torch.testing.assert_close(run(layer, x[row, token].view(1, 1, -1)), y[row, token].view(1, 1, -1), **EXACT)


def test_unused_experts_get_zero_gradient():
    layer = build_layer(experts=8, top_k=2, balancing="bias")
    assert layer.expert_bias is not None
    layer.expert_bias.copy_(torch.tensor([9.0, 9.0, 0, 0, 0, 0, 0, 0]))
    x = hidden_states().requires_grad_()
    actual, expected = run(layer, x), reference(layer, x)
    torch.testing.assert_close(actual, expected, **EXACT)
    actual.sum().backward()
    for part in (layer.experts.up_proj, layer.experts.down_proj):
        assert part.weight.grad is not None
        assert part.weight.grad[:2].ne(0).any(dim=(1, 2)).all()
        assert part.weight.grad[2:].eq(0).all()


def test_empty_batch():
    assert run(build_layer(), hidden_states(rows=0)).shape == (0, LENGTH, WIDTH)


def test_dropout_applies_in_training_only():
    layer = build_layer(experts=2, top_k=2, dropout=0.5).train()
    x = hidden_states()
    assert not torch.equal(run(layer, x), run(layer, x))
    assert torch.equal(run(layer.eval(), x), run(layer, x))


def test_forward_is_deterministic():
    layer, x = build_layer(activation="swiglu"), hidden_states()
    assert torch.equal(run(layer, x), run(layer, x))


# Against Hugging Face


def copy_weights(layer: MixtureOfExperts, block: Any) -> None:
    """Copy the weights of a Hugging Face block, which stores the gate and up projections as one tensor."""
    gate, up = block.experts.gate_up_proj.chunk(2, dim=1)
    assert layer.experts.gate_proj is not None
    pairs = [
        (layer.router.weight, block.gate.weight),
        (layer.experts.gate_proj.weight, gate),
        (layer.experts.up_proj.weight, up),
        (layer.experts.down_proj.weight, block.experts.down_proj),
    ]
    if layer.expert_bias is not None:
        pairs.append((layer.expert_bias, block.gate.e_score_correction_bias))
    if layer.shared_experts is not None:
        shared: Any = layer.shared_experts
        theirs = block.shared_experts
        pairs += [(shared.gate_proj.weight, theirs.gate_proj.weight), (shared.up_proj.weight, theirs.up_proj.weight)]
        pairs.append((shared.down_proj.weight, theirs.down_proj.weight))
    for ours, other in pairs:
        ours.data.copy_(other)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v2", "deepseek_v3"])
def test_layer_equals_hugging_face(family):
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v2 import modeling_deepseek_v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3
    from transformers.models.mixtral import modeling_mixtral

    common = {"hidden_size": WIDTH, "num_attention_heads": 1, "num_experts_per_tok": 3, "num_local_experts": 8}
    deepseek = common | {"n_routed_experts": 8, "moe_intermediate_size": 7, "n_shared_experts": 2}
    deepseek |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
    grouped = {"groups": 4, "top_groups": 2, "routed_scale": 2.5, "shared_experts": 2}
    config: Any
    block: Any
    if family == "mixtral":
        config, ours = modeling_mixtral.MixtralConfig(intermediate_size=7, **common), {}
        block = modeling_mixtral.MixtralSparseMoeBlock(config)
    elif family == "deepseek_v2":
        config = modeling_deepseek_v2.DeepseekV2Config(
            topk_method="group_limited_greedy", norm_topk_prob=False, **deepseek
        )
        ours = grouped | {"normalize": False}
        block = modeling_deepseek_v2.DeepseekV2Moe(config)
    else:
        config = modeling_deepseek_v3.DeepseekV3Config(**deepseek)
        ours = grouped | {"router": "sigmoid", "group_score": "top2_sum", "balancing": "bias"}
        block = modeling_deepseek_v3.DeepseekV3MoE(config)
    torch.manual_seed(2)
    with torch.no_grad():
        for tensor in (*block.parameters(), *block.buffers()):
            tensor.normal_(0, 0.5)
    layer = build_layer(activation="swiglu", bias=False, **ours).float()
    copy_weights(layer, block)
    x = hidden_states(rows=4, length=16).float()
    with torch.no_grad():
        torch.testing.assert_close(run(layer, x), block(x), rtol=1e-4, atol=1e-5)


# Padding


def test_padding_is_not_routed():
    layer, x = build_layer(), hidden_states()
    lengths = torch.tensor([5, 2, 0])
    y = run(layer, x, lengths=lengths)
    torch.testing.assert_close(y[0], run(layer, x)[0], **EXACT)
    torch.testing.assert_close(y[1, :2], run(layer, x)[1, :2], **EXACT)
    assert y[1, 2:].eq(0).all()
    assert y[2].eq(0).all()


def test_padding_gets_no_gradient():
    layer, lengths = build_layer(), torch.tensor([5, 2, 0])
    x = hidden_states().requires_grad_()
    other = x.detach().clone()
    other[1, 2:], other[2] = 1e3, -1e3
    other.requires_grad_()
    weights = hidden_states(seed=4)
    grads_x, grads_other = (
        torch.autograd.grad((run(layer, one, lengths=lengths) * weights).sum(), [one, *layer.parameters()])
        for one in (x, other)
    )
    torch.testing.assert_close(grads_x, grads_other, **EXACT)
    assert grads_x[0][2].eq(0).all()


def test_padding_is_not_counted_in_the_load():
    layer, x = build_layer().train(), hidden_states()
    with record_routing() as padded:
        run(layer, x, lengths=torch.tensor([5, 2, 0]))
    with record_routing() as plain:
        run(layer, torch.cat((x[0], x[1, :2]))[None])
    assert torch.equal(padded[0].load, plain[0].load)
    assert int(padded[0].load.sum()) == 7 * 3
    torch.testing.assert_close(padded[0].aux_loss, plain[0].aux_loss, **EXACT)


def test_lengths_include_cached_tokens():
    layer, x = build_layer(), hidden_states()
    start = torch.tensor([4, 4, 4])
    y = run(layer, x, lengths=start + torch.tensor([5, 2, 0]), start=start, extent=9)
    assert torch.equal(y, run(layer, x, lengths=torch.tensor([5, 2, 0])))


# Auxiliary load-balancing loss


def aux_loss_of(choices: list[int], experts: int = 4, aux_loss_weight: float = 1.0) -> Tensor:
    """The loss when each token goes to its expert in `choices` with a gate of 1."""
    config = MixtureOfExpertsConfig(experts=experts, top_k=1, normalize=False, hidden=2, aux_loss=aux_loss_weight)
    layer: Any = config.build(experts).double().train()
    layer.router.weight.data = 1e3 * torch.eye(experts, dtype=torch.float64)
    x = functional.one_hot(torch.tensor([choices]), experts).double()
    with record_routing() as records:
        run(layer, x)
    return records[0].aux_loss


def test_aux_loss_is_one_for_equal_loads():
    torch.testing.assert_close(aux_loss_of([0, 1, 2, 3, 3, 2, 1, 0]).item(), 1.0)


def test_aux_loss_is_the_number_of_experts_if_one_gets_all_tokens():
    torch.testing.assert_close(aux_loss_of([2] * 8).item(), 4.0)


def test_aux_loss_of_unequal_loads():
    torch.testing.assert_close(aux_loss_of([0, 0, 1, 1]).item(), 2.0)
    torch.testing.assert_close(aux_loss_of([0, 0, 0, 1]).item(), 4 * (9 + 1) / 16)


def test_aux_loss_is_scaled_by_its_weight():
    torch.testing.assert_close(aux_loss_of([2] * 8, aux_loss_weight=0.25).item(), 1.0)


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_aux_loss_equals_the_paper_s_formula(router):
    """experts · Σ fᵢ Pᵢ (Fedus et al. 2021, eq. 4): f is an expert's fraction of the choices, P its mean gate."""
    layer, x = build_layer(router=router, aux_loss=1.0).train(), hidden_states()
    with record_routing() as records:
        run(layer, x)
    scores = x.flatten(0, 1) @ layer.router.weight.T
    scores = scores.exp() if router == "softmax" else scores.sigmoid()
    chosen = scores.topk(3).indices.flatten().tolist()
    fraction = torch.tensor([chosen.count(number) / len(chosen) for number in range(8)], dtype=torch.float64)
    mean = (scores / scores.sum(dim=1, keepdim=True)).mean(dim=0)
    torch.testing.assert_close(records[0].aux_loss, 8 * (fraction * mean).sum(), **EXACT)


def test_aux_loss_has_a_gradient_for_the_router_only():
    layer = build_layer(aux_loss=1.0).train()
    with record_routing() as records:
        run(layer, hidden_states())
    records[0].aux_loss.backward()
    learned = {name for name, parameter in layer.named_parameters() if parameter.grad is not None}
    assert learned == {"router.weight"}


@pytest.mark.parametrize(
    ("balancing", "aux_loss", "aux_loss_weight"), [("loss", None, 0.01), ("bias", None, 0), ("bias", 0.5, 0.5)]
)
def test_default_aux_loss_weight_depends_on_balancing(balancing, aux_loss, aux_loss_weight):
    assert MixtureOfExpertsConfig(balancing=balancing, aux_loss=aux_loss).aux_loss_weight == aux_loss_weight


# Recorded routing


def test_every_layer_records_its_routing():
    config = SAMPLES["encoder-decoder"]["experts"]
    model = build(config)
    source, target = inputs(config)
    with record_routing() as records:
        model(source, target)
    experts = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]
    assert {id(record.layer) for record in records} == {id(part) for part in experts}
    assert len(records) == len(experts) == 4
    assert [int(record.load.sum()) for record in records] == [2 * source.numel()] * 2 + [2 * target.numel()] * 2
    total = total_aux_loss(records)
    assert total is not None
    torch.testing.assert_close(total, sum(record.aux_loss for record in records))


def test_model_without_experts_has_no_aux_loss():
    config = SAMPLES["encoder-decoder"]["plain"]
    with record_routing() as records:
        build(config)(*inputs(config))
    assert total_aux_loss(records) is None


def test_nested_recordings_are_separate():
    layer, x = build_layer(), hidden_states()
    with record_routing() as outer:
        with record_routing() as inner:
            run(layer, x)
        assert (len(outer), len(inner)) == (0, 1)
        run(layer, x)
    run(layer, x)
    assert (len(outer), len(inner)) == (1, 1)


def test_aux_loss_is_not_computed_without_recording(monkeypatch):
    def fail(*values: Any) -> Tensor:
        raise AssertionError

    layer, x = build_layer(aux_loss=1.0), hidden_states()
    monkeypatch.setattr("regard.model.mixture_of_experts._aux_loss", fail)
    run(layer, x)
    with torch.no_grad():
        run(layer.train(), x)
    assert layer.load is None


def test_load_is_accumulated_only_in_training_and_while_recording():
    layer, x = build_layer().train(), hidden_states()
    run(layer, x)
    assert layer.load is None
    for _ in range(2):
        with record_routing() as records:
            run(layer, x)
    assert torch.equal(layer.load, 2 * records[0].load)
    with record_routing():
        run(layer.eval(), x)
    assert torch.equal(layer.load, 2 * records[0].load)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["unfused", "fused for a CPU"])
def test_activation_checkpointing_counts_load_once_and_keeps_gradients(dtype):
    config = language_model(decoder=with_experts(stack(), aux_loss=1.0))
    tokens = ids(2, 7)
    actual = []
    for recompute in (False, True):
        torch.manual_seed(2)
        model = config.build().to(dtype).train()
        forward = fuse_for_training(model, activation_checkpointing=recompute)
        torch.manual_seed(3)
        with record_routing() as records:
            logits = forward(tokens, lengths=torch.tensor([7, 4]))
        total = total_aux_loss(records)
        assert total is not None
        (logits.square().mean() + total).backward()
        assert len(records) == 2
        counts = [part.load for part in model.modules() if isinstance(part, MixtureOfExperts)]
        assert all(int(count.sum()) == 2 * 11 for count in counts if count is not None)
        actual.append([total.detach(), *counts, *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*actual, strict=True):
        assert torch.equal(one, other)


def test_expert_load_covers_every_layer_and_expert():
    config = SAMPLES["encoder-decoder"]["experts"]
    model = build(config)
    source, target = inputs(config)
    loads = expert_load(model, source, target, source_lengths=torch.tensor([5, 1]))
    assert list(loads) == [
        *(f"encoder.layers.{number}.feed_forward" for number in range(2)),
        *(f"decoder.layers.{number}.feed_forward" for number in range(2)),
    ]
    assert [len(load) for load in loads.values()] == [4, 4, 6, 6]
    assert [int(load.sum()) for load in loads.values()] == [12, 12, 28, 28]


def test_expert_bias_update_evens_out_loads():
    layer = build_layer(experts=4, top_k=1, normalize=False, balancing="bias", bias_update_rate=0.1)
    assert layer.expert_bias is not None
    before = layer.expert_bias.clone()
    layer.update_expert_bias(torch.tensor([8, 4, 0, 4]))
    torch.testing.assert_close(layer.expert_bias - before, 0.1 * torch.tensor([-1.0, 0, 1, 0], dtype=torch.float64))


def test_state_dict_contains_the_expert_bias_but_not_the_load():
    layer = build_layer(balancing="bias").train()
    with record_routing():
        run(layer, hidden_states())
    assert "expert_bias" in layer.state_dict()
    assert "load" not in layer.state_dict()
    assert "expert_bias" not in build_layer().state_dict()


# In models


@pytest.mark.parametrize("config", WITH_EXPERTS)
def test_cached_decoding_equals_uncached(config):
    """Rows have chunks of different lengths, so every step contains padding."""
    model = build(config)
    *source, target = inputs(config, rows=3, tokens=9)
    counts = torch.tensor([[2, 1, 3], [1, 1, 1], [4, 2, 1], [2, 5, 4]])
    cache = model.start(*(source or [3]), capacity=24)
    with torch.no_grad():
        uncached = model(*source, target)
    decoded = torch.zeros(3, dtype=torch.long)
    for step_counts in counts:
        longest = int(step_counts.max())
        chunk = torch.zeros(3, longest, dtype=torch.long)
        for row in range(3):
            chunk[row, : step_counts[row]] = target[row, decoded[row] : decoded[row] + step_counts[row]]
        logits, cache = model.step(chunk, cache, step_counts)
        for row in range(3):
            expected = uncached[row, decoded[row] : decoded[row] + step_counts[row]]
            torch.testing.assert_close(logits[row, : step_counts[row]], expected, **EXACT)
        decoded = decoded + step_counts
    assert decoded.tolist() == [9, 9, 9]


def test_fused_decoders_do_not_support_experts(monkeypatch):
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)
    model = build(language_model(decoder=with_experts(stack()), vocab_size=70), torch.float32)
    for unsupported_reason in (cpu_decoder_unsupported_reason, cuda_decoder_unsupported_reason):
        reason = unsupported_reason(model)
        if reason is not None and "not installed" in reason:
            continue
        assert reason == "a feed-forward is a MixtureOfExperts"


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("int8", 0.3)])
def test_encoder_with_experts_runs_unfused_before_a_fused_decoder(precision, tolerance):
    pytest.importorskip("numba")
    config = encoder_decoder(
        encoder=with_experts(stack(), shared_experts=1), vocab_size=70, special_tokens={"bos": 1, "eos": 2}
    )
    model = build(config, torch.float32)
    assert cpu_decoder_unsupported_reason(model) is None
    actual, expected = (
        each.step(first[:, None], cache)[0]
        for each in (CpuDecoder(model, precision), model)
        for cache, first in [each.prefill([[5, 6, 7], [8]], 10)]
    )
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.std()))


@pytest.mark.parametrize("config", WITH_EXPERTS)
def test_model_fused_for_training_equals_the_unfused(config):
    """Experts themselves are not fused."""
    model = build(config, torch.float32)
    batch = inputs(config)
    names = ("source_lengths", "target_lengths") if len(batch) == 2 else ("lengths",)
    lengths = {name: torch.tensor([side.shape[1], 2]) for name, side in zip(names, batch, strict=True)}
    actual, expected = (forward(*batch, **lengths) for forward in (fuse_for_training(model), model))
    for row, length in enumerate(lengths[names[-1]].tolist()):
        torch.testing.assert_close(actual[row, :length], expected[row, :length], rtol=1e-4, atol=1e-4)


def test_kind_selects_experts_and_defaults_to_dense():
    settings = {"kind": "moe", "experts": 3, "top_k": 2, "hidden": 5}
    assert StackConfig.read({"feed_forward": settings}).feed_forward == MixtureOfExpertsConfig(
        experts=3, top_k=2, hidden=5
    )
    assert StackConfig.read({"feed_forward": {"hidden": 5}}).feed_forward == FeedForwardConfig(hidden=5)
    assert StackConfig(feed_forward=MixtureOfExpertsConfig(experts=3)).feed_forward.kind == "moe"


def test_weights_of_all_experts_are_one_tensor():
    layer = build_layer(activation="swiglu", shared_experts=2, balancing="bias")
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    assert shapes == {
        "expert_bias": (8,),
        "router.weight": (8, WIDTH),
        "experts.up_proj.weight": (8, 7, WIDTH),
        "experts.up_proj.bias": (8, 7),
        "experts.gate_proj.weight": (8, 7, WIDTH),
        "experts.gate_proj.bias": (8, 7),
        "experts.down_proj.weight": (8, WIDTH, 7),
        "experts.down_proj.bias": (8, WIDTH),
        "shared_experts.up_proj.weight": (14, WIDTH),
        "shared_experts.up_proj.bias": (14,),
        "shared_experts.gate_proj.weight": (14, WIDTH),
        "shared_experts.gate_proj.bias": (14,),
        "shared_experts.down_proj.weight": (WIDTH, 14),
        "shared_experts.down_proj.bias": (WIDTH,),
    }


def test_experts_are_initialized_like_single_layers():
    layer: Any = MixtureOfExpertsConfig(experts=4, hidden=20).build(10)
    limit = math.sqrt(6 / 30)
    for part in (layer.experts.up_proj, layer.experts.down_proj):
        assert 0.9 * limit < part.weight.abs().max() <= limit
        assert part.bias.eq(0).all()
    torch.testing.assert_close(layer.experts.up_proj.weight.std().item(), limit / math.sqrt(3), rtol=0.1, atol=0)
    layer.experts.down_proj.initialize(gain=0.5)
    assert 0.45 * limit < layer.experts.down_proj.weight.abs().max() <= 0.5 * limit


def test_needs_host_sync_on_a_cpu():
    assert build_layer().needs_host_sync(torch.bfloat16)


def test_experts_in_a_stack_of_every_norm_position():
    for order in ("pre", "post", "none"):
        model = build(language_model(decoder=with_experts(stack(**norm_order(order)))))
        assert isinstance(model.decoder, Stack)
        assert model(ids(2, 4)).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 9}, "top_k: found 9; expected no more than there are experts (8)."),
        ({"groups": 3}, "groups: found 3; expected a number that divides experts (8)."),
        (
            {"groups": 2, "top_groups": 3},
            "top_groups: found 3; expected no more than there are groups (2).",
        ),
        ({"groups": 4, "top_k": 3}, "top_k: found 3; active groups (1) have 2 experts. Raise top_groups."),
        (
            {"groups": 8, "top_groups": 3, "group_score": "top2_sum"},
            "group_score: found 'top2_sum'; groups have a single expert, so choose 'max'.",
        ),
        (
            {"top_k": 1},
            "normalize: with top_k = 1 the normalized gate is always 1 and the router cannot learn; choose false.",
        ),
        ({"routed_scale": 0.0}, "routed_scale: found 0.0; expected greater than 0."),
        ({"aux_loss": -0.1}, "aux_loss: found -0.1; expected greater than or equal to 0."),
        ({"router": "relu"}, "router: found 'relu'; expected 'softmax' or 'sigmoid'."),
        ({"top_l": 2}, "top_l: unknown key; did you mean 'top_k'?"),
    ],
    ids=str,
)
def test_invalid_setting_is_refused_by_key(settings, message):
    with pytest.raises(UserError) as caught:
        MixtureOfExpertsConfig(**settings)
    assert str(caught.value) == message
    with pytest.raises(UserError) as caught:
        StackConfig.read({"feed_forward": {"kind": "moe", **settings}})
    assert str(caught.value) == f"feed_forward.{message}"


def test_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(
        UserError, match=r"feed_forward\.kind: found 'expert'; expected one of 'dense', 'moe', 'none'\."
    ):
        StackConfig.read({"feed_forward": {"kind": "expert"}})
