"""Images on the page: attention on a photo that stays visible, attention rollout, and what the patches say."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page
from torch import Tensor

from regard.look.schema import RunRequest
from regard.look.trace import Trace
from regard.serve.inspector.app import AppState
from tests.look.support import autoregressive_model, classifier, request, sample_image
from tests.page.conftest import ServerUrl, fresh_page, open_view, read, serving
from tests.page.navigation import change_state
from tests.page.test_accessibility import RULES, axe, violations  # noqa: F401  axe is a fixture

POOLING = {"cls": {}, "mean": {"pooling": "mean", "image_size": (4, 6)}}
"""Settings of the classifiers; the second has patches that are no square, and no class token."""


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    models: dict[str, Any] = {name: classifier(**settings) for name, settings in POOLING.items()}
    models["text"] = autoregressive_model(dtype=torch.float32)
    for name, model in models.items():
        model.name = name
    return models


@pytest.fixture(scope="module")
def server(models: dict[str, Any]) -> Iterator[ServerUrl]:
    with serving(AppState(list(models.values()))) as url:
        yield url


def classify(page: Page, server: ServerUrl, model: str, **state: Any) -> Any:
    """Classify the sample image in the view of heads, and return its values."""
    parameters = "&".join(f"{name}={value}" for name, value in {"view": "heads", "model": model, **state}.items())
    page.goto(f"{server}#{parameters}")
    with io.BytesIO() as file:
        sample_image().save(file, "PNG")
        image = {"name": "a.png", "mimeType": "image/png", "buffer": file.getvalue()}
        page.wait_for_selector(".image-input input")
        page.set_input_files(".image-input input", image)
    page.wait_for_selector(".image-input img:not([hidden])")
    page.click("button:has-text('Classify')")
    return read(page, "heads")


def plain_rollout(weights: Tensor, layer: int) -> Tensor:
    """Abnar & Zuidema 2020, as written.  weights: # (layers, heads, tokens, tokens)"""
    rollout = torch.eye(weights.shape[-1])
    for heads in weights[: layer + 1]:
        factor = 0.5 * heads.mean(dim=0) + 0.5 * torch.eye(len(rollout))
        rollout = (factor / factor.sum(dim=1, keepdim=True)) @ rollout
    return rollout


def default_row(trace: Trace, matrix: Tensor) -> Tensor:
    """What the classifier reads: the row of the class token, or the mean of those of the patches."""
    return matrix[0] if trace.header.source[0].piece == "⟨class⟩" else matrix[1:].mean(dim=0)  # after a register


def matrix_of(shown: Any) -> Tensor:
    rows, columns = len(shown["matrix"]["rows"]), len(shown["matrix"]["columns"])
    return torch.tensor(shown["matrix"]["values"]).view(rows, columns)


def assert_shows(shown: Any, trace: Trace) -> None:
    """Rollout up to both layers: that matrix, and its row on the image."""
    expected = plain_rollout(trace.attention("encoder"), 1)
    torch.testing.assert_close(matrix_of(shown), expected, atol=1e-3, rtol=0)
    (head,) = shown["image"]["heads"]
    assert (head["layer"], head["head"]) == (1, "rollout")
    torch.testing.assert_close(torch.tensor(head["weights"]), default_row(trace, expected), atol=1e-3, rtol=0)


def plain_classes(model: Any, trace: Trace) -> Tensor:
    """The logits that the classifier gives for the last hidden state of each token.  # (tokens, classes)"""
    states: list[Tensor] = []
    handle = model.model.encoder.register_forward_hook(lambda module, inputs, output: states.append(output[0]))
    with torch.no_grad():
        model.model(model.encode_request(trace.header.request).tensor)
        handle.remove()
        linear = model.model.head.classifier
        return states[0] @ linear.weight.T + linear.bias


@pytest.mark.parametrize("pooling", POOLING)
def test_rollout_and_classes_of_patches_are_the_models(
    browser: Browser, server: ServerUrl, models: dict[str, Any], pooling: str
) -> None:
    model = models[pooling]
    trace = model.trace(request(model))
    with fresh_page(browser, server) as page:
        shown = classify(page, server, pooling, layer=1, head=2)
        assert shown["image"]["query"] == (0 if pooling == "cls" else -1)
        assert "token=" not in page.url
        (head,) = shown["image"]["heads"]
        row = default_row(trace, trace.attention("encoder", 1, 2))
        torch.testing.assert_close(torch.tensor(head["weights"]), row, atol=1e-3, rtol=0)
        page.select_option("label:has-text('Attention rollout') select", label="up to layer 2")
        shown = read(page, "heads")
        assert_shows(shown, trace)
        assert "0.5 · A + 0.5 · I" in page.inner_text(".view-notes")
        classes, logits = shown["patch_classes"], plain_classes(model, trace)
        best = logits.double().softmax(dim=-1).max(dim=-1)
        labels = model.model.config.labels
        assert [token["label"] for token in classes["tokens"]] == [labels[index] for index in best.indices]
        shown_probabilities = [token["probability"] for token in classes["tokens"]]
        assert shown_probabilities == pytest.approx(best.values.tolist(), abs=1e-5)
        patches = [token.piece for token in trace.header.source if not token.special]
        named = [
            f"{piece} {token['label']}"
            for piece, token in zip(patches, classes["tokens"][-len(patches) :], strict=True)
        ]
        page.click(".patch-classes summary")
        assert [" ".join(row[:2]) for row in classes["table"]] == named
        # The image's own class, from the same vectors.
        of_image = logits[0] if pooling == "cls" else logits[1:].mean(dim=0)
        assert trace.header.predictions[0].choices[0].probability == pytest.approx(
            float(of_image.softmax(-1).max()), abs=1e-5
        )
        assert ("trained on the class token" if pooling == "cls" else "trained on the mean") in page.inner_text(
            ".patch-classes"
        )


def test_photo_stays_visible_and_every_patch_can_be_the_query(
    browser: Browser,
    server: ServerUrl,
    models: dict[str, Any],
    axe: str,  # noqa: F811
) -> None:
    trace = models["cls"].trace(request(models["cls"]))
    weights = trace.attention("encoder", 1, 2)
    grid = trace.header.grid
    assert grid is not None
    photo = np.asarray(Image.open(io.BytesIO(base64.b64decode(grid.image.partition(",")[2]))).convert("RGB"))
    with fresh_page(browser, server) as page:
        shown = classify(page, server, "cls", layer=1, head=2, overlay=0.5)
        page.focus(".lines-panel canvas")
        for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown"):  # the first one selects the upper left patch
            page.keyboard.press(key)
        shown = read(page, "heads")
        query = shown["image"]["query"]
        assert trace.header.source[query].piece == "1,2"
        assert page.evaluate("document.activeElement.className") == "patch-canvas"
        assert page.locator(".lines-panel canvas").bounding_box()["width"] > 500  # type: ignore[index]
        row = torch.tensor(shown["image"]["heads"][0]["weights"])
        torch.testing.assert_close(row, weights[query], atol=1e-3, rtol=0)
        # Each patch has the photo's color, mixed with that of the head.
        limit = max(float(weight) for token, weight in enumerate(row) if token >= 2 and token != query)
        assert shown["image"]["limit"] == pytest.approx(limit, abs=1e-6)
        color = np.array(page.evaluate(COLOR), dtype=float)
        for patch in range(grid.rows * grid.columns):
            if patch + 2 == query:
                continue  # framed
            y, x = 2 * (patch // grid.columns), 2 * (patch % grid.columns)
            opacity = 0.5 * np.sqrt(float(row[patch + 2]) / limit)
            expected = (1 - opacity) * photo[y, x] + opacity * color
            pixel = page.evaluate(PIXEL, [(x + 0.5) / photo.shape[1], (y + 0.5) / photo.shape[0]])
            np.testing.assert_allclose(pixel, expected, atol=4)
        change_state(page, overlay=0)
        pixel = page.evaluate(PIXEL, [0.5 / photo.shape[1], 0.5 / photo.shape[0]])
        np.testing.assert_allclose(pixel, photo[0, 0], atol=1)
        page.click("button:has-text('Class token')")
        assert read(page, "heads")["image"]["query"] == 0
        assert violations(page, axe, RULES) == []


COLOR = """() => document.querySelector('.head-images .line-sample line').getAttribute('stroke')
    .match(/[0-9a-f]{2}/g).map(part => parseInt(part, 16))"""
PIXEL = """([x, y]) => { const canvas = document.querySelector('.lines-panel canvas');
    const data = canvas.getContext('2d').getImageData(x * canvas.width, y * canvas.height, 1, 1).data;
    return [...data].slice(0, 3) }"""


def test_file_has_rollout_and_the_classes_of_patches(browser: Browser, models: dict[str, Any], tmp_path: Path) -> None:
    trace = models["mean"].trace(request(models["mean"]))
    path = tmp_path / "page.html"
    path.write_text(trace.html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri(), width=390) as page:
        page.goto(f"{path.as_uri()}#view=heads&layer=1&rollout=true")
        shown = read(page, "heads")
        assert_shows(shown, trace)
        probabilities = [
            float(choice) for choice in plain_classes(models["mean"], trace).softmax(dim=-1).max(dim=-1).values
        ]
        assert [token["probability"] for token in shown["patch_classes"]["tokens"]] == pytest.approx(
            probabilities, abs=1e-5
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_rollout_of_a_text(browser: Browser, server: ServerUrl, models: dict[str, Any]) -> None:
    """Of a decoder, too; but not of cross-attention."""
    trace = models["text"].trace(RunRequest(text="the old cat", decoding={"max_new_tokens": 7}))  # type: ignore[arg-type]
    with fresh_page(browser, server) as page:
        state = {"model": "text", "text": "the old cat", "max_new_tokens": 7, "layer": 1, "rollout": "true"}
        shown = open_view(page, "heads", attention_type="decoder", **state)
        expected = plain_rollout(trace.attention("decoder"), 1)
        torch.testing.assert_close(matrix_of(shown), expected, atol=1e-3, rtol=0)
        change_state(page, attention_type="cross")
        shown = read(page, "heads")
        torch.testing.assert_close(matrix_of(shown), trace.attention("cross", 1, 0), atol=1e-3, rtol=0)
        assert not page.locator("label:has-text('Attention rollout')").is_visible()
