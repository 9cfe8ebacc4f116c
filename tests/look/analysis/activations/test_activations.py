"""What the model diagram shows of a pass is what PyTorch's own hooks see; its costs are those of the cost model."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import UserError
from regard.attention import LearnedConfig, RotaryConfig, SinusoidalConfig
from regard.cost import TrainingSetup, Workload, estimate
from regard.look.analysis.activations.activations import DIMENSIONS, module_activations, module_values
from regard.look.analysis.activations.times import PASSES, measure_times
from regard.look.analysis.diagram_box import all_boxes
from regard.look.analysis.model_diagram import draw_model
from regard.look.schema import AblatedHead, ModuleActivation
from regard.look.trace import Trace
from regard.model import EmbeddingConfig, NormConfig
from tests.look.support import autoregressive_model, request, task_models
from tests.model.before.samples import SAMPLES as BEFORE
from tests.model.small_models import encoder_decoder, language_model

ALL_BEFORE = [(kind, next(iter(configs))) for kind, configs in BEFORE.items()]


@cache
def traced(task: str) -> Trace:
    model = task_models()[task]
    return model.trace(request(model))


def activations(trace: Trace) -> dict[str, ModuleActivation]:
    return {box.path: box for box in module_activations(trace).boxes}


def hooked(trace: Trace) -> dict[str, list[Tensor]]:
    """What leaves each module in a pass without any of the code under test."""
    traced_model: Any = trace.require_model()
    model, outputs = traced_model.model, {}
    handles = []
    for name, module in model.named_modules():

        def keep(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            outputs.setdefault(name, []).append(output)

        handles.append(module.register_forward_hook(keep))
    encoded = traced_model.encode_request(trace.header.request)
    with torch.no_grad():
        if not traced_model.generates:
            model(encoded.tensor)
        else:
            target = torch.tensor([[token.id for token in trace.header.target]])
            sources = [torch.tensor([[token.id for token in trace.header.source]])] if hasattr(model, "encode") else []
            model(*sources, target)
    for handle in handles:
        handle.remove()
    return outputs


@pytest.mark.parametrize("task", task_models())
def test_shapes_norms_and_values_are_those_that_hooks_see(task: str) -> None:
    trace = traced(task)
    outputs, found = hooked(trace), activations(trace)
    model = trace.require_model().model
    compared = 0
    for box in all_boxes(draw_model(model)):
        if box.kind in ("input", "position", "residual") or (box.path and box.path not in outputs):
            continue
        (output,) = outputs["" if box.kind == "output" else box.path]
        shown = found[box.path]
        assert shown.shape == list(output.shape), box.path
        assert shown.norm == pytest.approx(output.norm(dim=-1).mean().item(), rel=1e-5), box.path
        compared += 1
    assert compared > 10
    path = next(name for name in found if name.endswith("layers.1.feed_forward"))
    expected = outputs[path][0][0]
    pages = [module_values(trace, path, first) for first in range(0, expected.shape[1], DIMENSIONS)]
    values = torch.cat([torch.tensor(page.values) for page in pages], dim=1)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(torch.tensor(pages[0].norms), expected.norm(dim=-1))
    assert pages[0].limit == pytest.approx(expected.abs().max().item())
    tokens = trace.header.target if pages[0].side == "target" else trace.header.source
    assert pages[0].tokens == tokens[: len(expected)]


@pytest.mark.parametrize(
    "settings",
    [
        {"position": SinusoidalConfig()},
        {"position": LearnedConfig(max_length=40), "embedding": EmbeddingConfig(norm=NormConfig())},
        {"position": SinusoidalConfig(combine="concatenate", features=6), "tie_weights": False},
        {"position": RotaryConfig()},
    ],
    ids=["sinusoidal", "learned, with a norm", "concatenated", "rotary"],
)
def test_embedding_and_positions_make_the_input_of_the_first_layer(settings: dict[str, Any]) -> None:
    model = autoregressive_model(language_model(**settings), torch.float32)
    trace = model.trace(request(model))
    entered: list[Tensor] = []
    model.model.decoder.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0][0]))

    def values(path: str) -> Tensor:
        width = module_values(trace, path).width
        pages = [module_values(trace, path, first).values for first in range(0, width, DIMENSIONS)]
        return torch.cat([torch.tensor(page) for page in pages], dim=1)

    total = values("embedding")
    kind = settings["position"].kind
    if kind != "rotary":
        position = values("embedding.embed_positions")
        concatenates = settings["position"].combine == "concatenate"
        total = torch.cat([total, position], dim=1) if concatenates else total + position
    if "embedding" in settings:
        total = model.model.embedding.norm(total).detach()
        torch.testing.assert_close(values("embedding.norm"), total)
    torch.testing.assert_close(total, entered[-1])


@pytest.mark.parametrize("task", task_models())
def test_costs_of_the_boxes_add_up_to_the_estimate(task: str) -> None:
    trace = traced(task)
    found = module_activations(trace)
    boxes = {box.path: box for box in found.boxes}
    model: Any = trace.require_model().model
    root = draw_model(model)
    for number in ("flops", "bytes"):
        leaves = [getattr(boxes[box.path], number) for box in all_boxes(root) if not box.children]
        assert sum(leaves) == getattr(boxes[""], number) == getattr(found, number) > 0
    header = trace.header
    source = len(header.source) if hasattr(model, "start") and len(header.source) and hasattr(model, "encode") else 0
    workload = Workload(1, len(header.target) or len(header.source), source)
    cost = estimate(model.config, workload, TrainingSetup("float32", device="cpu"))
    assert found.flops == cost.forward_flops_per_step
    assert found.bytes == sum(side.bytes("float32", "cpu") for side in cost.forward)


def test_ablated_heads_change_what_leaves_the_layers_after_them() -> None:
    model = autoregressive_model(dtype=torch.float32)
    plain = model.trace(request(model))
    ablated = plain.header.request.model_copy(
        update={"ablated_heads": [AblatedHead(attention_type="encoder", layer=1, head=0, ablation="mean")]}
    )
    changed = activations(model.trace(ablated))
    before = activations(plain)
    assert changed["encoder.layers.0"].norm == before["encoder.layers.0"].norm
    assert changed["encoder.layers.1.self_attn"].norm != before["encoder.layers.1.self_attn"].norm
    assert changed["encoder"].shape == before["encoder"].shape  # the pass that finds the mean is not counted


def test_shared_keys_and_values_have_a_shape_and_a_cost() -> None:
    model = autoregressive_model(encoder_decoder(cross_kv="shared"), torch.float32)
    trace = model.trace(request(model))
    shared = activations(trace)["decoder.cross_kv"]
    assert shared.shape == [1, len(trace.header.source), 2 * 16]
    assert shared.flops == 2 * 16 * len(trace.header.source) * 2 * 16
    assert module_values(trace, "decoder.cross_kv").tokens == trace.header.source


@pytest.mark.parametrize("task", ["translation", "language-modeling", "image-classification"])
def test_every_box_with_a_shape_has_a_time(task: str) -> None:
    trace = traced(task)
    first, *_, (total, times) = measure_times(trace)
    assert first[1].boxes == []
    assert total == times.passes == PASSES
    measured = {box.path: box.seconds for box in times.boxes}
    assert set(measured) == {path for path, box in activations(trace).items() if box.shape is not None}
    assert all(0 < seconds < measured[""] for path, seconds in measured.items() if path)


@pytest.mark.parametrize(("kind", "name"), ALL_BEFORE, ids=[kind for kind, _ in ALL_BEFORE])
def test_models_before_the_transformer_show_what_their_modules_give(kind: str, name: str) -> None:
    model = autoregressive_model(BEFORE[kind][name], torch.float32)
    trace = model.trace(request(model, "the old cat ate"))
    found = module_activations(trace)
    boxes = {box.path: box for box in found.boxes}
    logits = model.logits(trace.header.request, [token.id for token in trace.header.target])
    assert boxes[""].shape == [1, *logits.shape]
    assert "counts this model as a whole" in found.notes[0]
    outputs = hooked(trace)
    for path, box in boxes.items():
        calls = outputs.get(path, [])
        if box.norm is not None and len(calls) == 1 and isinstance(calls[0], Tensor):
            assert box.shape == list(calls[0].shape), path
            assert box.norm == pytest.approx(calls[0].norm(dim=-1).mean().item(), rel=1e-5, nan_ok=True), path
        if box.shape is None:
            with pytest.raises(UserError, match="does not call this box"):
                module_values(trace, path)
            continue
        assert module_values(trace, path).width == box.shape[-1]
    times = [times for _, times in measure_times(trace)][-1]
    assert {box.path for box in times.boxes} >= {path for path, box in boxes.items() if box.shape is not None}


def test_boxes_and_dimensions_that_do_not_exist_are_refused() -> None:
    trace = traced("translation")
    with pytest.raises(UserError, match=r"no box 'decoder\.layers\.9'"):
        module_values(trace, "decoder.layers.9")
    with pytest.raises(UserError, match="has 16 dimensions, counted from 0; found 16"):
        module_values(trace, "encoder.layers.0", 16)
