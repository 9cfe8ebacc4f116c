"""The model view: its boxes, shapes, numbers and costs are those of the model."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor

from regard.attention import LearnedConfig, RotaryConfig
from regard.cost import TrainingSetup, Workload, estimate
from regard.look.models.traced_model import TracedModel
from regard.serve.inspector.app import AppState
from regard.task.translation.pipeline import Translator
from tests.look.support import TEXT, autoregressive_model
from tests.model.small_models import language_model, stack
from tests.page.conftest import fresh_page, open_view, read
from tests.page.navigation import change_state, trace_of
from tests.serve.support import serving

pytestmark = pytest.mark.start_early(9)


def test_boxes_count_the_parameters_of_their_modules(page: Page, traced_model: TracedModel) -> None:
    shown = {part["path"]: part for part in open_view(page, "model")["modules"]}
    model = traced_model.model
    assert shown[""]["parameter_count"] == sum(parameter.numel() for parameter in model.parameters())
    for name in ("encoder", "decoder", "encoder.layers.2", "decoder.layers.1.cross_attn", "decoder.final_norm"):
        module = model.get_submodule(name)
        assert shown[name]["parameter_count"] == sum(parameter.numel() for parameter in module.parameters()), name


def test_encoder_is_connected_to_every_decoder_layer(page: Page) -> None:
    shown = open_view(page, "model")
    names = {box["path"]: box["form"] for box in shown["drawn"]}
    assert [names[f"encoder.layers.{layer}"] for layer in range(6)] == ["open", *["closed"] * 5]
    assert [names[f"decoder.layers.{layer}"] for layer in range(3)] == ["open", "closed", "closed"]
    assert shown["crossConnections"] == 3
    page.check("text=Show all layers")
    opened = read(page, "model")
    attention = [box["path"] for box in opened["drawn"] if box["path"].endswith(("self_attn", "cross_attn"))]
    assert len(attention) == 6 + 3 + 3
    assert opened["crossConnections"] == 3


def test_details_list_parameters_and_shapes(page: Page, traced_model: TracedModel) -> None:
    open_view(page, "model")
    page.hover("[data-path='encoder.layers.0.feed_forward']")
    rows = page.eval_on_selector_all(
        ".details tbody tr", "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    module = traced_model.model.get_submodule("encoder.layers.0.feed_forward")
    expected = {
        tuple(name.split(".")[-2:]): (" × ".join(map(str, parameter.shape)), f"{math.prod(parameter.shape):,}")
        for name, parameter in module.named_parameters()
    }
    assert {tuple(name.split(".")[-2:]): (shape, count) for name, shape, count in rows} == expected


def test_click_on_attention_opens_its_heads(page: Page) -> None:
    open_view(page, "model")
    page.click("[data-path='decoder.layers.0.cross_attn']")
    shown = read(page, "heads")
    assert (shown["attention_type"], shown["layer"]) == ("cross", 0)


def test_arrow_keys_move_between_boxes(page: Page) -> None:
    open_view(page, "model")
    page.focus(".diagram .module[tabindex='0']")
    visited = set()
    for _ in range(30):
        visited.add(page.evaluate("document.activeElement.dataset.path"))
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.column") == "1"
    assert "encoder.layers.0.self_attn" in visited


def outputs(translator: Translator, trace: dict[str, Any]) -> dict[str, Tensor]:
    """What leaves each module of the untraced model in one pass over the source and the target of a trace."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: found.update({name: output[0]})

    model = translator.model
    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    source, target = (torch.tensor([[token["id"] for token in trace[side]]]) for side in ("source", "target"))
    with torch.no_grad():
        model(source, target)
    for handle in handles:
        handle.remove()
    return found


def test_shapes_norms_and_values_are_those_of_pytorch_s_hooks(page: Page, translator: Translator) -> None:
    shown = open_view(page, "model")
    trace = trace_of(page)
    expected = outputs(translator, trace)
    figures = shown["figures"]
    expected["lm_head"] = expected[""]
    compared = [path for path in figures if path in expected and not path.endswith("embedding")]
    assert len(compared) > 50
    for path in compared:
        assert figures[path]["shape"] == [1, *expected[path].shape], path
        assert figures[path]["norm"] == pytest.approx(expected[path].norm(dim=-1).mean().item(), rel=1e-4), path
    summed = translator.model.source_embedding.embed_positions.encode(torch.arange(len(trace["source"])))
    norm = summed.norm(dim=-1).mean().item()
    assert figures["source_embedding.embed_positions"]["norm"] == pytest.approx(norm, rel=1e-5)

    path = "decoder.layers.0.cross_attn"
    page.focus(f"[data-path='{path}']")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    values = read(page, "model")["values"]
    torch.testing.assert_close(torch.tensor(values["values"]), expected[path][:, :16], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(torch.tensor(values["norms"]), expected[path].norm(dim=-1), rtol=1e-3, atol=1e-4)
    page.click(".module-values button[aria-label='Next dimensions']")
    page.wait_for_selector("text=of dimensions 17–32 of 256")
    values = read(page, "model")["values"]
    torch.testing.assert_close(torch.tensor(values["values"]), expected[path][:, 16:32], rtol=1e-3, atol=1e-4)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Next dimensions"
    rows = page.eval_on_selector_all(".norm-bars tbody th", "cells => cells.map((cell) => cell.textContent)")
    first, second = (trace["target"][position]["piece"].strip("▁") for position in (0, 1))
    assert rows[0] == f"{first} → {second}"


def test_costs_add_up_to_the_cost_model_and_times_are_measured(page: Page, traced_model: TracedModel) -> None:
    shown = open_view(page, "model", color_by="flops")
    trace = trace_of(page)
    figures, totals = shown["figures"], shown["totals"]
    paths = [box["path"] for box in shown["modules"]]
    leaves = [path for path in paths if not any(other.startswith(f"{path}.") for other in paths) and path]
    leaves = [path for path in [*leaves, "source_embedding", "embedding"] if not path.endswith("_residual")]
    workload = Workload(1, len(trace["target"]), len(trace["source"]))
    setup = TrainingSetup("float32", device="cpu")
    cost = estimate(traced_model.model.config, workload, setup)  # type: ignore[arg-type]
    assert sum(figures[path]["flops"] for path in set(leaves)) == totals["flops"] == cost.forward_flops_per_step
    assert sum(figures[path]["bytes"] for path in set(leaves)) == totals["bytes"]
    assert "FLOPs of one pass" in shown["legend"]
    fills = {box["path"]: box["fill"] for box in shown["drawn"]}
    assert fills["lm_head"] != fills["decoder.layers.0.self_attn"] != fills["decoder.layers.0.self_attn_norm"]

    change_state(page, color_by="time")
    assert "No time has been measured" in read(page, "model")["legend"]
    page.click("text=Measure time")
    page.wait_for_selector("text=Measure again")
    shown = read(page, "model")
    assert shown["times"]["passes"] == 15
    drawn = {box["path"]: box for box in shown["drawn"]}
    for path, box in drawn.items():
        assert 0 < shown["figures"][path]["seconds"] < shown["figures"][""]["seconds"], path
        assert box["form"] == "open" or any(text.endswith("ms") for text in box["texts"]) or path == "", path
    assert "a rough figure" in page.inner_text(".time-control")


def test_norms_plus_signs_and_positions_are_drawn_as_configured(browser: Browser) -> None:
    configs = [
        language_model(),
        language_model(decoder=stack(norm_position="post"), position=LearnedConfig(max_length=60)),
        language_model(decoder=stack(residual=False), position=RotaryConfig()),
    ]
    models = [autoregressive_model(config, torch.float32) for config in configs]
    with serving(AppState(models)) as url, fresh_page(browser, url) as page:
        pre, post, none = (open_view(page, "model", model=model.id, text=TEXT) for model in models)
    for shown, order in ((pre, ["norm", "function", "plus"]), (post, ["function", "plus", "norm"])):
        y = {box["path"]: box["y"] for box in shown["drawn"]}
        plus = {each["of"]: each["y"] for each in shown["sums"]}
        for name in ("self_attn", "feed_forward"):
            path = f"decoder.layers.0.{name}"
            heights = {"norm": y[f"{path}_norm"], "function": y[path], "plus": plus[path]}
            assert sorted(heights, key=lambda part: -heights[part]) == order  # upwards
        position = "embedding.embed_positions"
        assert y["embedding"] > y[position] > plus[position] > y["decoder.layers.0"]
    labels = {box["path"]: box["label"] for box in post["modules"]}
    assert labels["embedding.embed_positions"] == "Learned positions"
    assert none["sums"] == []
    attention = next(box for box in none["drawn"] if box["path"] == "decoder.layers.0.self_attn")
    assert "RoPE" in attention["texts"]


def test_standalone_file_has_shapes_and_norms_and_says_what_needs_the_model(
    browser: Browser, traced_model: TracedModel, tmp_path: Path
) -> None:
    from regard.look.schema import RunRequest

    path = tmp_path / "look.html"
    path.write_text(traced_model.trace(RunRequest(text=TEXT)).html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri()) as page:
        page.goto(f"{path.as_uri()}#view=model&color_by=bytes")
        shown = read(page, "model")
        assert shown["figures"]["encoder.layers.1"]["shape"][2] == 256
        assert shown["figures"]["encoder.layers.1"]["norm"] > 0
        assert shown["totals"]["bytes"] == shown["figures"][""]["bytes"]
        page.hover("[data-path='encoder.layers.0.feed_forward']")
        assert "need the running model: regard look en-tr" in page.inner_text(".module-values")
        assert "needs the running model" in page.inner_text(".time-control")
        assert page.locator("text=Measure time").is_hidden()
