"""An ablated head contributes zeros or its mean: the same as editing the output projection by hand."""

import copy
from itertools import product
from typing import Any

import pytest
import torch

from regard import UserError
from regard.attention.multi_head import Attention
from regard.look.analysis.attention_maps import AttentionRecorder, attention_modules, find_attention
from regard.look.analysis.head_ablation import ablate_heads, all_heads, mean_outputs
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.schema import AblatedHead, DecodingOverrides, RunRequest
from tests.look.support import LAYOUTS, TEXT, autoregressive_model, model_with_layout, request, task_models
from tests.model.small_models import ENCODER_SAMPLES, SAMPLES, build, inputs

CONFIGS = {
    f"{kind}: {name}": config
    for kind, samples in (SAMPLES | ENCODER_SAMPLES).items()
    for name, config in samples.items()
    if name != "no output projection" and not (kind == "encoder" and name == "no positions")
}


def ablated(attention_type: Any, layer: int, head: int, ablation: Any = "zero") -> AblatedHead:
    return AblatedHead(attention_type=attention_type, layer=layer, head=head, ablation=ablation)


def remove_head(attention: Attention, head: int, mean: torch.Tensor | None = None) -> None:
    """Zero a head's columns of the output projection, and add what they make of its mean to the bias."""
    head_dim = attention.sizes.value_head_dim
    columns = slice(head * head_dim, (head + 1) * head_dim)
    projection = attention.o_proj
    assert isinstance(projection, torch.nn.Linear)
    with torch.no_grad():
        if mean is not None:
            constant = projection.weight[:, columns] @ mean[columns]
            projection.bias = torch.nn.Parameter(constant if projection.bias is None else projection.bias + constant)
        projection.weight[:, columns] = 0


@pytest.mark.parametrize("name", CONFIGS)
def test_zero_ablation_equals_zeros_in_the_output_projection(name: str) -> None:
    model = build(CONFIGS[name])
    batch = inputs(CONFIGS[name])
    if CONFIGS[name].kind == "vision":
        batch = tuple(each.double() for each in batch)
    for attention_type, layers in attention_modules(model).items():
        head = layers[-1].heads - 1
        edited = copy.deepcopy(model)
        remove_head(find_attention(edited, attention_type, len(layers) - 1), head)
        with torch.no_grad(), ablate_heads(model, [ablated(attention_type, len(layers) - 1, head)]):
            ours = model(*batch)
        with torch.no_grad():
            torch.testing.assert_close(ours, edited(*batch), rtol=0, atol=1e-12)
            assert not torch.equal(ours, model(*batch))


@pytest.mark.parametrize("kind", ["translation", "language-modeling"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_search_with_an_ablated_head_equals_search_without_it(layout: str, kind: str) -> None:
    """Step by step with a KV cache and several beams: the same tokens and log-probabilities."""
    traced_model = model_with_layout(layout, kind)
    attention_type: Any = "cross" if kind == "translation" else "decoder"
    decoding = DecodingOverrides(method="beam", beam_size=3, max_new_tokens=6)
    ours = traced_model.trace(
        RunRequest(text=TEXT, decoding=decoding, ablated_heads=[ablated(attention_type, 1, 0)])
    ).header
    remove_head(find_attention(traced_model.model, attention_type, 1), 0)
    theirs = traced_model.trace(RunRequest(text=TEXT, decoding=decoding)).header
    assert ours.output == theirs.output
    assert [node.token.id for node in ours.nodes] == [node.token.id for node in theirs.nodes]
    totals = [node.total_log_probability for node in theirs.nodes]
    assert [node.total_log_probability for node in ours.nodes] == pytest.approx(totals)


def test_mean_ablation_equals_a_constant_in_the_output_projection() -> None:
    traced_model = autoregressive_model()
    ablated_heads = [ablated("encoder", 0, 1, "mean"), ablated("decoder", 1, 3, "mean")]
    run_request = RunRequest(text=TEXT, ablated_heads=ablated_heads)
    run = traced_model.unablated_pass(run_request)
    with mean_outputs(traced_model.model) as means:
        run()
    ours = traced_model.trace(run_request)
    for head in ablated_heads:
        key = head.attention_type, head.layer
        remove_head(find_attention(traced_model.model, *key), head.head, means[key])
    theirs = traced_model.trace(RunRequest(text=TEXT))
    assert ours.header.log_probability == pytest.approx(theirs.header.log_probability)
    assert ours.output == theirs.output


def test_means_are_over_all_tokens_of_all_passes() -> None:
    traced_model = autoregressive_model()
    outputs: list[torch.Tensor] = []
    attention = find_attention(traced_model.model, "cross", 1)
    hook = attention.o_proj.register_forward_pre_hook(lambda module, batch: outputs.append(batch[0][0]))
    with torch.no_grad(), mean_outputs(traced_model.model) as means:
        traced_model._forward(traced_model.encode_request(RunRequest(text=TEXT)), [1, 5, 9], None)
        traced_model._forward(traced_model.encode_request(RunRequest(text="a cat")), [1, 7], None)
    hook.remove()
    torch.testing.assert_close(means["cross", 1], torch.cat(outputs).mean(dim=0))


def test_means_are_over_the_text_and_the_unablated_output() -> None:
    traced_model = autoregressive_model()
    trace = traced_model.trace(RunRequest(text=TEXT))
    run = traced_model.unablated_pass(RunRequest(text=TEXT))
    with mean_outputs(traced_model.model) as means:
        run()
    outputs: list[torch.Tensor] = []
    attention = find_attention(traced_model.model, "decoder", 0)
    hook = attention.o_proj.register_forward_pre_hook(lambda module, batch: outputs.append(batch[0][0]))
    traced_model.forward_trace(trace, AttentionRecorder(traced_model.model))
    hook.remove()
    torch.testing.assert_close(means["decoder", 0], outputs[0].mean(dim=0))


@pytest.mark.parametrize("task", list(task_models()))
@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_ablation_changes_the_trace_and_leaves_the_model_as_it_was(task: str, ablation: str) -> None:
    traced_model = task_models()[task]
    attention_type = traced_model.summary().attention[-1].attention_type
    heads = [ablated(attention_type, 0, head, ablation).to_dict() for head in range(4)]
    before = traced_model.trace(request(traced_model))
    changed = traced_model.trace(request(traced_model, ablated_heads=heads))
    after = traced_model.trace(request(traced_model))
    assert changed.header.request.ablated_heads is not None
    assert any(
        array.shape != before.arrays[name].shape or not torch.equal(array, before.arrays[name])
        for name, array in changed.arrays.items()
        if name.startswith("attention/")
    )
    assert after.header.model_copy(update={"seconds": 0}) == before.header.model_copy(update={"seconds": 0})


def test_nodes_and_cells_are_computed_with_the_traces_ablation() -> None:
    traced_model = autoregressive_model()
    trace = traced_model.trace(RunRequest(text=TEXT, ablated_heads=[ablated("decoder", 0, 0), ablated("cross", 1, 2)]))
    unablated = traced_model.trace(RunRequest(text=TEXT))
    node = next(node for node in trace.header.nodes if node.attention_index >= 0 and node.step == 3)
    recomputed = torch.tensor(trace.node(node.id).cross)
    torch.testing.assert_close(recomputed, trace.array("beam/cross")[node.attention_index].float(), rtol=0, atol=1e-3)
    weights = torch.tensor(trace.cell("cross", 1, 0, 2).weights)
    torch.testing.assert_close(weights, trace.attention("cross", 1, 0)[2], rtol=0, atol=1e-3)
    assert not torch.allclose(weights, unablated.attention("cross", 1, 0)[2], atol=1e-3)


def test_hooks_are_removed_on_an_error() -> None:
    traced_model = autoregressive_model()
    before = {name: len(module._forward_pre_hooks) for name, module in traced_model.model.named_modules()}
    with pytest.raises(RuntimeError), ablate_heads(traced_model.model, [ablated("encoder", 0, 0)]):
        raise RuntimeError
    assert {name: len(module._forward_pre_hooks) for name, module in traced_model.model.named_modules()} == before


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (ablated("encoder", 2, 0), "'encoder' has no layer 2: its 2 layers"),
        (ablated("cross", 0, 4), "'cross' has no head 4: its 4 heads"),
    ],
)
def test_missing_head_is_refused(head: AblatedHead, message: str) -> None:
    with pytest.raises(UserError, match=message), ablate_heads(autoregressive_model().model, [head]):
        pass


def test_missing_attention_type_is_refused() -> None:
    traced_model = task_models()["text-classification"]
    with pytest.raises(UserError, match="no 'cross' attention; it has encoder"):
        traced_model.trace(request(traced_model, ablated_heads=[ablated("cross", 0, 0).to_dict()]))


def test_all_heads_are_listed_in_order_of_computation() -> None:
    model = autoregressive_model().model
    heads = list(product(("encoder", "decoder", "cross"), range(2), range(4)))
    assert [(*key, head) for key, head in all_heads(model)] == heads


def test_fused_decoders_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have their own copy of the weights, in which no head would be ablated."""

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("a fused decoder was requested")

    monkeypatch.setattr("regard.task.backend.Backend.decoder_model", never)
    for traced_model in task_models().values():
        if isinstance(traced_model, TracedAutoregressiveModel):
            traced_model.trace(request(traced_model, ablated_heads=[ablated("decoder", 0, 0).to_dict()]))
