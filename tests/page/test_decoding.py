"""Decoding: every number the page shows of a step, a node and the tree is the model's."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, Route
from torch import Tensor

from regard.decode import Recording, Request, search_batch
from tests.page import plain
from tests.page.conftest import SENTENCE, Address, fresh_page, open_view, read
from tests.page.steer import change, trace_of

ABOUT = 1e-5


@pytest.fixture(scope="module")
def view(browser: Browser, address: Address) -> Iterator[Page]:
    """The view at its second step, with everything that was pruned unfolded."""
    with fresh_page(browser, address) as page:
        open_view(page, "decoding", step=2)
        page.get_by_label("fold what was pruned").uncheck()
        yield page


@pytest.fixture
def drawn(view: Page) -> dict[str, Any]:
    change(view, step=2, node=-1)
    found: dict[str, Any] = read(view, "decoding")
    return found


def ids(tokens: list[dict[str, Any]]) -> list[int]:
    return [token["id"] for token in tokens]


def bars(page: Page, side: str) -> Tensor:
    """The weights behind the bars that are drawn.  # (heads, keys)"""
    found = page.eval_on_selector_all(
        f"[data-bars={side}] [data-weight]", "all => all.map(one => [one.dataset.head, one.dataset.weight])"
    )
    heads = 1 + max(int(head) for head, _ in found)
    return torch.tensor([[float(weight) for head, weight in found if int(head) == at] for at in range(heads)])


@pytest.mark.parametrize("fate", ["pruned", "kept", "won"])
def test_a_nodes_attention_is_the_models(view: Page, drawn: dict[str, Any], fate: str) -> None:
    node = next(one for one in drawn["tree"] if one["fate"] == fate and one["step"] == 3)
    change(view, layer=1)
    place = view.locator(f".beam-tree [data-node='{node['id']}']")
    place.focus()
    place.press("Enter")
    found = read(view, "decoding")["node"]
    assert found["node"] == node["id"]
    target = ids(found["prefix"])
    for side in ("decoder", "cross"):
        expected = [plain.Opened(side, layer, target).weights[:, -1] for layer in range(len(found[side]))]
        assert torch.allclose(torch.tensor(found[side]), torch.stack(expected), atol=ABOUT)
        assert torch.allclose(bars(view, side), expected[1], atol=ABOUT)


def test_vector_logits_and_probabilities_of_a_step_are_the_models(drawn: dict[str, Any]) -> None:
    before = drawn["before"]
    with plain.outputs(plain.model().decoder) as vectors:
        scores = plain.logits(ids(before["prefix"]))[-1]
    best = scores.topk(len(before["next"]))
    assert torch.allclose(torch.tensor(before["vector"]), vectors[-1][0, -1], atol=ABOUT)
    assert [one["token"]["id"] for one in before["next"]] == best.indices.tolist()
    assert torch.allclose(torch.tensor([one["logit"] for one in before["next"]]), best.values, atol=1e-4)
    chances = torch.tensor([one["probability"] for one in before["next"]])
    assert torch.allclose(chances, scores.softmax(dim=-1)[best.indices], atol=ABOUT)


def test_each_line_of_the_tree_is_as_wide_as_its_token_was_likely(view: Page, drawn: dict[str, Any]) -> None:
    tree, trace = {one["id"]: one for one in drawn["tree"]}, trace_of(view)
    assert set(tree) == {node["id"] for node in trace["nodes"]}
    tokens = {node["id"]: node["token"]["id"] for node in trace["nodes"]}
    for node in [one for one in drawn["tree"] if one["step"] == 2]:
        target = [trace["target"][0]["id"], tokens[node["parent"]], tokens[node["id"]]]
        assert node["width"] == pytest.approx(1 + 7 * plain.probabilities(target)[-1], abs=1e-4)


def test_rows_of_the_cache_are_those_of_the_search(drawn: dict[str, Any]) -> None:
    translator, seen = plain.translator(), Recording()
    asked = translator.source_text.encode(SENTENCE)
    end = plain.model().config.tokens.end
    assert end is not None
    wanted = Request(tuple(asked), translator.decode.limit(len(asked) + 1), translator.decode)
    search_batch(plain.model(), [wanted], end, seen)
    assert {cell["step"] for cell in drawn["cache"]} == {step.number for step in seen.steps}
    for cell in drawn["cache"]:
        rows = seen.steps[cell["step"] - 1].rows
        assert rows is not None
        assert cell["from"] == int(rows[cell["row"]])
        assert cell["copied"] == (cell["from"] != cell["row"])


def test_arrow_keys_go_through_the_steps(view: Page) -> None:
    change(view, step=1, node=-1)
    slider = view.get_by_role("slider", name="Decoding time step")
    slider.press("ArrowRight")
    assert len(read(view, "decoding")["before"]["prefix"]) == 2
    view.get_by_role("radio", name="2", exact=True).first.press("ArrowRight")
    assert len(read(view, "decoding")["before"]["prefix"]) == 3


def test_behind_the_end_of_the_answer_the_search_goes_on(view: Page) -> None:
    view.get_by_role("slider", name="Decoding time step").press("End")
    found = read(view, "decoding")
    assert len(found["before"]["prefix"]) == found["steps"]
    assert view.get_by_text("The answer was complete after step").is_visible()


def test_what_was_pruned_can_be_folded_and_unfolded_behind_one_node(view: Page, drawn: dict[str, Any]) -> None:
    pruned = sum(one["fate"] == "pruned" for one in drawn["tree"])
    box = view.get_by_label("fold what was pruned")
    box.check()
    assert not any(one["fate"] == "pruned" for one in read(view, "decoding")["tree"])
    stub = view.locator(".beam-tree .node.stub").first
    stub.focus()
    stub.press("Enter")
    assert 0 < sum(one["fate"] == "pruned" for one in read(view, "decoding")["tree"]) < pruned
    box.uncheck()


def test_a_refused_node_is_a_sentence_and_the_tree_goes_on(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    change(view, step=1, node=-1)
    refusal = '{"detail": "This trace was let go."}'
    view.route("**/nodes/*", lambda route: route.fulfill(status=410, body=refusal, content_type="application/json"))
    change(view, step=5)
    view.locator(".problem", has_text="This trace was let go.").first.wait_for()
    assert view.locator(".beam-tree .node").count() > 10
    view.unroute("**/nodes/*")
    view.get_by_role("button", name="Try again").first.click()
    assert len(read(view, "decoding")["before"]["prefix"]) == 5


def test_an_old_trace_without_steps_is_a_sentence(page: Page) -> None:
    def without_nodes(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"nodes": []})

    page.route("**/api/traces/*", without_nodes)
    page.goto(f"{page.home}#view=decoding&model=en-tr")  # type: ignore[attr-defined]
    page.get_by_text("This trace has no steps of a search in it").wait_for()
