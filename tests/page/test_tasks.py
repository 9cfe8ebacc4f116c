"""Models of every task on the page: outputs and attention are the model's."""

import io
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.look.schema import Token
from regard.look.trace import Trace
from regard.serve.inspector.app import AppState
from tests.look.support import request, sample_image, task_models
from tests.page.conftest import ServerUrl, fresh_page, read, serving

pytestmark = pytest.mark.start_early(9)

TASKS = tuple(task_models())


@pytest.fixture(scope="module")
def server() -> Iterator[ServerUrl]:
    with serving(AppState(list(task_models().values()))) as url:
        yield url


def run_task(page: Page, server: ServerUrl, task: str) -> Trace:
    """Run the task's model on the page; return the trace of the same run in Python."""
    traced_model = task_models()[task]
    run_request = request(traced_model)
    page.goto(f"{server}#view=playground&model={traced_model.id}&text={run_request.text}&max_new_tokens=7")
    if task == "image-classification":
        page.wait_for_selector("input[type=file][accept]")
        with io.BytesIO() as file:
            sample_image().save(file, "PNG")
            page.set_input_files(
                ".image-input input", {"name": "a.png", "mimeType": "image/png", "buffer": file.getvalue()}
            )
        page.wait_for_selector(".image-input img:not([hidden])")
        page.click("button:has-text('Classify')")
    read(page, "playground")
    page.wait_for_selector(".output-panel h2:has-text('Output')")
    return traced_model.trace(run_request)


@pytest.mark.parametrize("task", TASKS)
def test_output_and_attention_are_the_models(browser: Browser, server: ServerUrl, task: str) -> None:
    with fresh_page(browser, server) as page:
        trace = run_task(page, server, task)
        shown = read(page, "playground")
        assert shown["output"] == trace.output
        expected = [token.probability for token in trace.header.generated]
        assert [token["probability"] for token in shown["tokens"]] == pytest.approx(expected, abs=1e-5)
        labels = [choice for prediction in trace.header.predictions for choice in prediction.choices]
        assert [label["label"] for label in shown["labels"]] == [choice.label for choice in labels]
        assert [label["probability"] for label in shown["labels"]] == pytest.approx(
            [choice.probability for choice in labels], abs=1e-5
        )
        page.click("nav.views >> text=Attention heads")
        heads = read(page, "heads")
        weights = trace.attention(heads["attention_type"], heads["layer"], heads["head"]).float()
        assert heads["matrix"]["rows"] == row_labels(trace, heads["attention_type"])
        values = torch.tensor(heads["matrix"]["values"]).view(weights.shape)
        torch.testing.assert_close(values, weights, atol=1e-3, rtol=0)


def row_labels(trace: Trace, attention_type: str) -> list[str]:
    """An encoder's tokens; a decoder's steps, by what is read and written. A prompt is only read."""
    header = trace.header
    target = [label(token) for token in header.target]
    first = len(target) - len(header.generated)
    if attention_type == "encoder":
        return [label(token) for token in header.source]
    return [*target[: first - 1], *(f"{read} → {written}" for read, written in pairwise([*target[first - 1 :], "…"]))]


def label(token: Token) -> str:
    return token.piece if token.special else token.text.strip() or ("␣" if token.text else token.piece)


def test_click_pins_a_patch(browser: Browser, server: ServerUrl) -> None:
    with fresh_page(browser, server) as page:
        trace = run_task(page, server, "image-classification")
        page.click("nav.views >> text=Attention heads")
        read(page, "heads")
        grid = trace.header.grid
        assert grid is not None
        canvas = page.locator(".lines-panel .head-images canvas")
        box = canvas.bounding_box()
        assert box is not None
        canvas.click(position={"x": box["width"] - 4, "y": box["height"] - 4})  # the last patch
        page.wait_for_timeout(50)
        assert f"token={len(trace.header.source) - 1}" in page.url


def test_parse_is_drawn_as_a_tree(browser: Browser, server: ServerUrl) -> None:
    with fresh_page(browser, server) as page:
        trace = run_task(page, server, "parsing")
        drawn = page.locator("svg.tree text").all_text_contents()
        brackets = trace.output.replace("(", " ( ").replace(")", " ) ").split()
        assert sorted(drawn) == sorted(symbol for symbol in brackets if symbol not in "()")


def test_model_is_selected_in_the_frame(browser: Browser, server: ServerUrl) -> None:
    with fresh_page(browser, server) as page:
        run_task(page, server, "translation")
        page.select_option("#model", label="classification")
        page.wait_for_selector(".output-panel tr[data-label]")
        assert read(page, "playground")["labels"]
        page.go_back()
        page.wait_for_selector(".output-panel .token")
