"""Models of every task on the same page: what they answer, and where they look."""

import io
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.look.trace import Trace
from regard.serve.app import Desk
from tests.look.support import every_task, picture, request

from .conftest import Address, fresh_page, read, serving

TASKS = tuple(every_task())


@pytest.fixture(scope="module")
def house() -> Iterator[Address]:
    with serving(Desk(list(every_task().values()))) as found:
        yield found


def opened(page: Page, house: Address, task: str) -> Trace:
    """Run the task's model in the box. Gives the same run, made in Python."""
    subject = every_task()[task]
    asked = request(subject)
    page.goto(f"{house}#view=box&model={subject.id}&text={asked.text}&longest=7")
    if task == "pictures":
        page.wait_for_selector("input[type=file][accept]")
        with io.BytesIO() as file:
            picture().save(file, "PNG")
            page.set_input_files(
                ".picture input", {"name": "a.png", "mimeType": "image/png", "buffer": file.getvalue()}
            )
        page.wait_for_selector(".picture img:not([hidden])")
        page.click("button:has-text('Classify')")
    read(page, "box")
    page.wait_for_selector(".answer h2:has-text('The answer')")
    return subject.trace(asked)


@pytest.mark.parametrize("task", TASKS)
def test_the_page_shows_what_the_model_answers_and_where_it_looks(browser: Browser, house: Address, task: str) -> None:
    with fresh_page(browser, house) as page:
        trace = opened(page, house, task)
        shown = read(page, "box")
        assert shown["output"] == trace.output
        wanted = [each.probability for each in trace.header.written]
        assert [token["probability"] for token in shown["tokens"]] == pytest.approx(wanted, abs=1e-5)
        labels = [choice for each in trace.header.labels for choice in each.choices]
        assert [each["label"] for each in shown["labels"]] == [choice.label for choice in labels]
        assert [each["probability"] for each in shown["labels"]] == pytest.approx(
            [choice.probability for choice in labels], abs=1e-5
        )
        page.click("nav.views >> text=Heads")
        heads = read(page, "heads")
        weights = trace.attention(heads["side"], heads["layer"], heads["head"]).float()
        rows = weights[: len(heads["matrix"]["rows"])]
        assert rows.shape[0] >= weights.shape[0] - 1 > 0
        torch.testing.assert_close(torch.tensor(heads["matrix"]["values"]).view(rows.shape), rows, atol=1e-3, rtol=0)


def test_a_patch_of_a_picture_is_pinned_by_a_click(browser: Browser, house: Address) -> None:
    with fresh_page(browser, house) as page:
        trace = opened(page, house, "pictures")
        page.click("nav.views >> text=Heads")
        read(page, "heads")
        grid = trace.header.grid
        assert grid is not None
        page.click(".copies canvas", position={"x": 220, "y": 220})  # the last patch
        page.wait_for_timeout(50)
        assert f"token={len(trace.header.source) - 1}" in page.url


def test_a_parse_is_drawn_as_a_tree(browser: Browser, house: Address) -> None:
    with fresh_page(browser, house) as page:
        trace = opened(page, house, "parsing")
        words = page.locator("svg.tree text").all_text_contents()
        brackets = trace.output.replace("(", " ( ").replace(")", " ) ").split()
        assert sorted(words) == sorted(each for each in brackets if each not in "()")


def test_another_model_is_chosen_in_the_frame(browser: Browser, house: Address) -> None:
    with fresh_page(browser, house) as page:
        opened(page, house, "translation")
        page.select_option("#model", label="classify")
        page.wait_for_selector(".answer tr[data-label]")
        assert read(page, "box")["labels"]
        page.go_back()
        page.wait_for_selector(".answer .token")
