"""The decoding view: the numbers of steps, nodes and the search tree equal those computed in plain PyTorch."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, Route
from torch import Tensor

from regard.decode import Hypothesis, RecordingObserver, Request, search_batch
from tests.page import reference
from tests.page.conftest import SENTENCE, ServerUrl, fresh_page, open_view, read
from tests.page.navigation import change_state, trace_of

pytestmark = pytest.mark.start_early(9)

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    """The view at its second step, with pruned nodes expanded."""
    with fresh_page(browser, server_url) as page:
        open_view(page, "decoding", step=2)
        page.get_by_label("collapse pruned nodes").uncheck()
        yield page


@pytest.fixture
def drawn(view: Page) -> dict[str, Any]:
    change_state(view, step=2, node=-1)
    values: dict[str, Any] = read(view, "decoding")
    return values


def ids(tokens: list[dict[str, Any]]) -> list[int]:
    return [token["id"] for token in tokens]


def bars(page: Page, attention_type: str) -> Tensor:
    """The weights of the drawn bars.  # (heads, keys)"""
    drawn_bars = page.eval_on_selector_all(
        f"[data-bars={attention_type}] [data-weight]", "all => all.map(one => [one.dataset.head, one.dataset.weight])"
    )
    heads = 1 + max(int(head) for head, _ in drawn_bars)
    return torch.tensor(
        [[float(weight) for head, weight in drawn_bars if int(head) == index] for index in range(heads)]
    )


def search(observer: RecordingObserver | None = None) -> list[Hypothesis]:
    """The search for the sentence's translation, outside of the page."""
    translator = reference.translator()
    source = translator.source_tokenizer.encode(SENTENCE)
    eos = reference.model().config.special_tokens.eos
    assert eos is not None
    request = Request(tuple(source), translator.decode.max_length(len(source) + 1), translator.decode)
    return search_batch(reference.model(), [request], eos, observer)[0]


@pytest.mark.parametrize("state", ["pruned", "active", "output"])
def test_node_attention_is_the_models(view: Page, drawn: dict[str, Any], state: str) -> None:
    node = next(node for node in drawn["tree"] if node["state"] == state and node["step"] == 3)
    change_state(view, layer=1)
    element = view.locator(f".search-tree [data-node='{node['id']}']")
    element.focus()
    element.press("Enter")
    values = read(view, "decoding")["node"]
    assert values["node"] == node["id"]
    target = ids(values["prefix"])
    for attention_type in ("decoder", "cross"):
        expected = [
            reference.ReferenceAttention(attention_type, layer, target).weights[:, -1]
            for layer in range(len(values[attention_type]))
        ]
        assert torch.allclose(torch.tensor(values[attention_type]), torch.stack(expected), atol=TOLERANCE)
        assert torch.allclose(bars(view, attention_type), expected[1], atol=TOLERANCE)


def test_hidden_state_logits_and_probabilities_are_the_models(drawn: dict[str, Any]) -> None:
    parent = drawn["parent"]
    with reference.outputs(reference.model().decoder) as vectors:
        logits = reference.logits(ids(parent["prefix"]))[-1]
    best = logits.topk(len(parent["next_tokens"]))
    assert torch.allclose(torch.tensor(parent["hidden_state"]), vectors[-1][0, -1], atol=TOLERANCE)
    assert [token["token"]["id"] for token in parent["next_tokens"]] == best.indices.tolist()
    assert torch.allclose(torch.tensor([token["logit"] for token in parent["next_tokens"]]), best.values, atol=1e-4)
    probabilities = torch.tensor([token["probability"] for token in parent["next_tokens"]])
    assert torch.allclose(probabilities, logits.softmax(dim=-1)[best.indices], atol=TOLERANCE)


def test_finished_hypotheses_are_ranked_by_the_searchs_scores(view: Page, drawn: dict[str, Any]) -> None:
    translator, kept = reference.translator(), search()
    view.get_by_role("button", name="Show all").click()
    shown = read(view, "decoding")["hypotheses"]
    trace = trace_of(view)
    nodes = {node["id"]: node for node in trace["nodes"]}
    assert {each["node"] for each in shown} == {id for id, node in nodes.items() if node["state"] == "finished"}
    texts = translator.target_tokenizer.decode_batch([each.tokens for each in kept])
    assert [each["text"] for each in shown[: len(kept)]] == texts
    assert [each["numbers"][-1] for each in shown] == sorted((each["numbers"][-1] for each in shown), reverse=True)
    assert [each["numbers"][-1] for each in shown[: len(kept)]] == pytest.approx(
        [each.score for each in kept], abs=TOLERANCE
    )
    for each in shown:
        length, probability, logprob, penalty, score = each["numbers"]
        path, node = [], nodes.get(each["node"])
        while node is not None:
            path.insert(0, node["token"]["id"])
            node = nodes.get(node["parent"])
        factors = torch.tensor(reference.probabilities([trace["target"][0]["id"], *path]), dtype=torch.float64)
        assert length == len(path)
        assert probability == pytest.approx(float(factors.prod()), rel=1e-4)
        assert logprob == pytest.approx(float(factors.log().sum()), abs=1e-4)
        assert penalty == pytest.approx(((5 + length) / 6) ** translator.decode.length_penalty.alpha)
        assert score == pytest.approx(logprob / penalty)
    view.locator("[data-hypothesis] button").nth(1).click()
    assert read(view, "decoding")["node"]["node"] == shown[1]["node"]


def test_winner_that_is_not_the_likeliest_is_explained(page: Page) -> None:
    shown = open_view(page, "decoding", text="He sat on the bank of the river.")["hypotheses"]
    first, second = shown[:2]
    assert first["numbers"][1] < second["numbers"][1]
    assert first["numbers"][-1] > second["numbers"][-1]
    verdict = page.inner_text(".verdict")
    assert f"won although “{second['text']}” is likelier" in verdict
    assert f"it is longer ({first['numbers'][0]} tokens rather than {second['numbers'][0]})" in verdict


def test_candidates_and_tooltips_show_probabilities(view: Page, drawn: dict[str, Any]) -> None:
    trace = trace_of(view)
    best = max((node for node in trace["nodes"] if node["step"] == 2), key=lambda node: node["total_log_probability"])
    target = [trace["target"][0]["id"], trace["nodes"][best["parent"]]["token"]["id"], best["token"]["id"]]
    first, second = reference.probabilities(target)
    cells = view.locator(f"[data-candidate='{best['id']}'] [data-probability]")
    shown = cells.evaluate_all("all => all.map(one => Number(one.dataset.probability))")
    assert shown == pytest.approx([second, first * second], abs=1e-4)
    view.focus(f".search-tree [data-node='{best['id']}']")
    rows = view.locator(".tooltip tbody tr").all_inner_texts()
    assert [row.split("\t")[1] for row in rows] == [f"{100 * each:.0f} %" for each in (second, first * second)]
    view.keyboard.press("Escape")


def test_steps_stay_in_view_above_two_panes_that_stack_on_a_phone(browser: Browser, server_url: ServerUrl) -> None:
    for width in (1280, 390):
        with fresh_page(browser, server_url, width=width) as page:
            open_view(page, "decoding", step=2)
            step, search = (page.locator(".pane").nth(index).bounding_box() for index in (0, 1))
            assert step is not None
            assert search is not None
            if width == 390:
                assert search["y"] >= step["y"] + step["height"]
            else:
                assert (search["y"], search["x"] > step["x"] + step["width"]) == (step["y"], True)
            page.evaluate("scrollTo(0, 700)")
            assert page.evaluate("scrollY") == 700
            slider = page.get_by_role("slider", name="Decoding step")
            box, views = slider.bounding_box(), page.locator("nav.views").bounding_box()
            assert box is not None
            assert views is not None
            assert views["height"] <= box["y"] < 120
            if width == 1280:  # the tree stays beside the step
                assert page.locator(".search-tree .node.selected").bounding_box()["y"] > box["y"]  # type: ignore[index]


def test_line_width_is_the_token_probability(view: Page, drawn: dict[str, Any]) -> None:
    tree, trace = {node["id"]: node for node in drawn["tree"]}, trace_of(view)
    assert set(tree) == {node["id"] for node in trace["nodes"]}
    tokens = {node["id"]: node["token"]["id"] for node in trace["nodes"]}
    for node in [node for node in drawn["tree"] if node["step"] == 2]:
        target = [trace["target"][0]["id"], tokens[node["parent"]], tokens[node["id"]]]
        assert node["width"] == pytest.approx(1 + 7 * reference.probabilities(target)[-1], abs=1e-4)


def test_kv_cache_rows_are_those_of_the_search(drawn: dict[str, Any]) -> None:
    observer = RecordingObserver()
    search(observer)
    assert {cell["step"] for cell in drawn["cache"]} == {step.number for step in observer.steps}
    for cell in drawn["cache"]:
        rows = observer.steps[cell["step"] - 1].beam_indices
        assert rows is not None
        assert cell["from"] == int(rows[cell["row"]])
        assert cell["copied"] == (cell["from"] != cell["row"])


def test_arrow_keys_go_through_the_steps(view: Page) -> None:
    change_state(view, step=1, node=-1)
    slider = view.get_by_role("slider", name="Decoding step")
    slider.press("ArrowRight")
    assert len(read(view, "decoding")["parent"]["prefix"]) == 2
    view.get_by_role("radio", name="2", exact=True).first.press("ArrowRight")
    assert len(read(view, "decoding")["parent"]["prefix"]) == 3


def test_arrow_keys_work_wherever_the_focus_is(view: Page) -> None:
    def step_after(key: str) -> int:
        view.keyboard.press(key)
        return len(read(view, "decoding")["parent"]["prefix"])

    change_state(view, step=2, node=-1)
    view.evaluate("document.activeElement.blur()")
    assert view.evaluate("document.activeElement === document.body")
    assert step_after("ArrowRight") == 3
    view.locator("[data-candidate] button").nth(1).click()
    assert step_after("ArrowRight") == 4
    view.locator(".search-tree .node.selected").click()
    assert step_after("ArrowLeft") == 3
    view.focus("nav.views a[aria-current]")
    assert step_after("ArrowLeft") == 2
    view.focus(".input-form textarea")  # there they move the cursor
    assert step_after("ArrowRight") == 2
    view.focus("#theme")
    assert step_after("ArrowRight") == 2
    view.select_option("#theme", "auto")


def test_search_continues_after_the_output(view: Page) -> None:
    view.get_by_role("slider", name="Decoding step").press("End")
    values = read(view, "decoding")
    assert len(values["parent"]["prefix"]) == values["steps"]
    assert view.get_by_text("The output was complete after step").is_visible()


def test_pruned_nodes_are_collapsed_and_expanded(view: Page, drawn: dict[str, Any]) -> None:
    pruned = sum(node["state"] == "pruned" for node in drawn["tree"])
    box = view.get_by_label("collapse pruned nodes")
    box.check()
    assert not any(node["state"] == "pruned" for node in read(view, "decoding")["tree"])
    stub = view.locator(".search-tree .node.collapsed").first
    stub.focus()
    stub.press("Enter")
    assert 0 < sum(node["state"] == "pruned" for node in read(view, "decoding")["tree"]) < pruned
    box.uncheck()


def test_refused_node_can_be_retried(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    change_state(view, step=1, node=-1)
    refusal = '{"detail": "This trace was evicted."}'
    view.route("**/nodes/*", lambda route: route.fulfill(status=410, body=refusal, content_type="application/json"))
    change_state(view, step=5)
    view.locator(".problem", has_text="This trace was evicted.").first.wait_for()
    assert view.locator(".search-tree .node").count() > 10
    view.unroute("**/nodes/*")
    view.get_by_role("button", name="Try again").first.click()
    assert len(read(view, "decoding")["parent"]["prefix"]) == 5


def test_trace_without_search_is_explained(page: Page) -> None:
    def without_nodes(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"nodes": []})

    page.route("**/api/traces/*", without_nodes)
    page.goto(f"{page.home}#view=decoding&model=en-tr")  # type: ignore[attr-defined]
    page.get_by_text("This trace contains no search").wait_for()
