"""The same label means the same row of the tensor in every view: a decoder's step, by what it reads and writes."""

from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page

from tests.page.conftest import ServerUrl, fresh_page, open_view, read
from tests.page.forced_pass import ForcedPass
from tests.page.navigation import change_state, trace_of

pytestmark = pytest.mark.start_early(9)

LAYER, HEAD = 1, 3
STEPS = ["⟨bos⟩ → Kedi", "Kedi → far", "far → eyi", "eyi → yedi", "yedi → .", ". → ⟨eos⟩", "⟨eos⟩ → …"]
"""The rows of Kedi fareyi yedi., in the order of the tensor."""


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    with fresh_page(browser, server_url) as page:
        open_view(page, "heads", layer=LAYER, head=HEAD)
        yield page


def close(values: list[float], expected: torch.Tensor, tolerance: float = 1e-4) -> bool:
    return torch.allclose(torch.tensor(values, dtype=torch.float32), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("attention_type", ["cross", "decoder"])
def test_label_names_the_same_row_in_every_view(view: Page, expected_pass: ForcedPass, attention_type: str) -> None:
    tensor = expected_pass.attention[attention_type][LAYER, HEAD]
    change_state(view, view="heads", attention_type=attention_type, layer=LAYER, head=HEAD)
    matrix = read(view, "heads")["matrix"]
    assert matrix["rows"] == STEPS
    assert close(matrix["values"], tensor.flatten(), 6e-4)  # sent as float16
    assert view.locator(".queries .line-token").all_text_contents() == STEPS
    nodes = [node for node in trace_of(view)["nodes"] if node["in_output"]]
    for row in (0, 1, 3, 5, 6):
        change_state(view, view="heads", token=row, token_role="query")
        assert read(view, "heads")["sums"][0].split(" = ")[0].endswith(STEPS[row])

        change_state(view, view="cell")
        cell = read(view, "cell")
        assert cell["label"] == view.locator(".attention-table tr.query th").inner_text().split("\n")[-1] == STEPS[row]
        assert close(cell["weights"], tensor[row])

        change_state(view, view="decoding", step=min(row + 1, len(nodes)), node=-1)
        steps = read(view, "decoding")
        shown = steps["parent"] if row < len(nodes) else steps["node"]
        assert shown["label"] == STEPS[row]
        assert close(shown[attention_type][LAYER][HEAD], tensor[row, : len(shown[attention_type][LAYER][HEAD])])
        if row > 0:  # the same step is that of the node whose token it reads
            change_state(view, step=row, node=nodes[row - 1]["id"])
            node = read(view, "decoding")["node"]
            assert node["label"] == STEPS[row]
            assert STEPS[row] in view.locator(".step-name").last.inner_text()
            assert close(node[attention_type][LAYER][HEAD], tensor[row, : len(node[attention_type][LAYER][HEAD])])


def test_probability_of_a_step_is_that_of_its_row(view: Page, expected_pass: ForcedPass) -> None:
    change_state(view, view="why")
    read(view, "why")
    buttons = view.eval_on_selector_all(
        ".why-choice .tokens button",
        "all => all.map(one => [one.querySelector('.token-text').textContent, Number(one.dataset.probability)])",
    )
    expected = [
        float(row[token]) for row, token in zip(expected_pass.probabilities, expected_pass.target[1:], strict=True)
    ]
    assert [text for text, _ in buttons] == STEPS[:-1]  # the last one wrote nothing
    assert [probability for _, probability in buttons] == pytest.approx(expected, abs=1e-5)


def test_node_off_the_output_has_written_nothing(view: Page) -> None:
    pruned = next(node for node in trace_of(view)["nodes"] if node["state"] == "pruned" and node["step"] == 2)
    change_state(view, view="decoding", step=2, node=pruned["id"])
    shown = read(view, "decoding")["node"]
    assert shown["node"] == pruned["id"]
    assert shown["label"] == f"{pruned['token']['text'].strip()} → …"
