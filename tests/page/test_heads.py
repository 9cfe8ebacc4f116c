"""The heads view draws the attention weights of the model."""

import re

import pytest
import torch
from playwright.sync_api import Page

from regard.task.translation.pipeline import Translator
from tests.page.conftest import open_view, read
from tests.page.forced_pass import ForcedPass, forced_pass, forward

pytestmark = pytest.mark.start_early(9)

FLOAT16_TOLERANCE = 6e-4
"""Weights are sent as float16, which has about three digits."""


@pytest.mark.parametrize(("attention_type", "layer", "head"), [("encoder", 4, 2), ("decoder", 1, 3), ("cross", 2, 0)])
def test_matrix_is_the_tensor(
    page: Page, expected_pass: ForcedPass, attention_type: str, layer: int, head: int
) -> None:
    shown = open_view(page, "heads", attention_type=attention_type, layer=layer, head=head)
    expected = expected_pass.attention[attention_type][layer, head]
    values = torch.tensor(shown["matrix"]["values"]).view(expected.shape)
    assert (shown["attention_type"], shown["layer"], shown["head"], shown["pooled"]) == (attention_type, layer, head, 1)
    torch.testing.assert_close(values, expected, atol=FLOAT16_TOLERANCE, rtol=0)


def test_hidden_special_tokens_leave_the_steps_that_write_others(page: Page, expected_pass: ForcedPass) -> None:
    for attention_type in ("cross", "decoder"):
        shown = open_view(
            page, "heads", attention_type=attention_type, layer=0, head=0, show_special="false", merge_subwords="true"
        )["matrix"]
        assert shown["rows"] == ["⟨bos⟩ → Kedi", "Kedi → fareyi", "fareyi → yedi", "yedi → ."]
        weights = expected_pass.attention[attention_type][0, 0]
        merged = [[0], [1], [2], [3], [4, 5], [6]] if attention_type == "cross" else [[1], [2, 3], [4], [5]]
        expected = torch.stack(
            [
                torch.stack([weights[rows][:, columns].sum(1).mean() for columns in merged])
                for rows in ([0], [1, 2], [3], [4])
            ]
        )
        values = torch.tensor(shown["values"]).view(expected.shape)
        torch.testing.assert_close(values, expected, atol=2 * FLOAT16_TOLERANCE, rtol=0)


def test_pixels_have_the_color_of_their_weight(page: Page) -> None:
    """The pixels of the canvas are compared with the color scale in the legend."""
    shown = open_view(page, "heads", attention_type="encoder", layer=0, head=1)["matrix"]
    columns = len(shown["columns"])
    legend = page.evaluate(
        """() => { const drawn = document.querySelector('.matrix-section .legend canvas');
                   return Array.from(drawn.getContext('2d').getImageData(0, 0, 256, 1).data) }"""
    )
    drawn = page.evaluate(
        """({left, top, cellSize, rows, columns}) => {
             const canvas = document.querySelector('.matrix-scroller canvas');
             const ratio = devicePixelRatio;
             const pen = canvas.getContext('2d');
             const found = [];
             for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
               const [x, y] = [left + (column + 0.5) * cellSize, top + (row + 0.5) * cellSize];
               found.push(Array.from(pen.getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data));
             }
             return found }""",
        {**{name: shown[name] for name in ("left", "top", "cellSize")}, "rows": len(shown["rows"]), "columns": columns},
    )
    for value, pixel in zip(shown["values"], drawn, strict=True):
        index = round(255 * (value / shown["maxWeight"]) ** 0.5)
        nearest = min(
            max(abs(a - b) for a, b in zip(pixel, legend[4 * i : 4 * i + 4], strict=True))
            for i in range(max(0, index - 1), min(256, index + 2))
        )
        assert nearest <= 2


def test_thumbnails_show_every_head(page: Page, expected_pass: ForcedPass) -> None:
    open_view(page, "heads", attention_type="cross", layer=0, head=0)
    brightest = page.evaluate(
        """() => [...document.querySelectorAll('.thumbnail .select-head')].map((look) => {
             const canvas = look.querySelector('canvas');
             const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
             let darkest = 0;
             for (let at = 0; at < data.length; at += 4)
               if (data[at] + data[at + 1] < data[4 * darkest] + data[4 * darkest + 1]) darkest = at / 4;
             return [Number(look.dataset.layer), Number(look.dataset.head), canvas.width, canvas.height,
                     Math.floor(darkest / canvas.width), darkest % canvas.width] })"""
    )
    layers, heads = expected_pass.attention["cross"].shape[:2]
    assert len(brightest) == layers * heads
    for layer, head, width, height, row, column in brightest:
        weights = expected_pass.attention["cross"][layer, head]
        assert (height, width) == tuple(weights.shape)
        assert weights[row, column] >= weights.max() - 0.02


def test_merged_subwords_sum_keys_and_average_queries(page: Page, expected_pass: ForcedPass) -> None:
    shown = open_view(page, "heads", attention_type="encoder", layer=3, head=1, merge_subwords="true")["matrix"]
    assert shown["columns"] == ["The", "cat", "ate", "the", "mouse", ".", "⟨eos⟩"]
    weights = expected_pass.attention["encoder"][3, 1]
    groups = [[0], [1], [2], [3], [4, 5], [6], [7]]
    expected = torch.stack(
        [torch.stack([weights[row][:, column].sum(1).mean() for column in groups]) for row in groups]
    )
    torch.testing.assert_close(torch.tensor(shown["values"]).view(7, 7), expected, atol=2 * FLOAT16_TOLERANCE, rtol=0)
    assert "summed over the subwords" in page.inner_text(".view-notes")


def test_hidden_special_tokens_keep_their_weight(page: Page, expected_pass: ForcedPass) -> None:
    shown = open_view(page, "heads", attention_type="encoder", layer=0, head=0, show_special="false")["matrix"]
    expected = expected_pass.attention["encoder"][0, 0][:-1, :-1]
    torch.testing.assert_close(torch.tensor(shown["values"]).view(7, 7), expected, atol=FLOAT16_TOLERANCE, rtol=0)
    percentage = re.search(r"adds up to ([\d.]+) %", page.inner_text(".view-notes"))
    assert percentage is not None
    assert float(percentage[1]) == pytest.approx(100 * expected.sum(1).mean().item(), abs=0.6)


def test_averaged_heads_are_the_mean_of_the_layer(page: Page, expected_pass: ForcedPass) -> None:
    shown = open_view(page, "heads", attention_type="decoder", layer=2, head=0, average_heads="true")
    expected = expected_pass.attention["decoder"][2].mean(0)
    assert shown["head"] == "mean"
    torch.testing.assert_close(
        torch.tensor(shown["matrix"]["values"]).view(expected.shape), expected, atol=FLOAT16_TOLERANCE, rtol=0
    )


def test_lines_are_the_weights_above_the_threshold(page: Page, expected_pass: ForcedPass) -> None:
    selected = [(0, 1), (1, 3), (2, 2)]
    shown = open_view(
        page,
        "heads",
        attention_type="cross",
        layer=1,
        head=3,
        heads=",".join(f"{a}.{b}" for a, b in selected),
        threshold=0.2,
    )
    drawn = {(line["head"], line["query"], line["key"]): line["weight"] for line in shown["lines"]["lines"]}
    expected = {
        (number, row, column): weight.item()
        for number, (layer, head) in enumerate(selected)
        for row, line in enumerate(expected_pass.attention["cross"][layer, head])
        for column, weight in enumerate(line)
        if weight >= 0.2
    }
    borderline = {key for key, weight in expected.items() if abs(weight - 0.2) < FLOAT16_TOLERANCE}
    assert set(drawn) - borderline == set(expected) - borderline
    assert all(drawn[key] == pytest.approx(expected[key], abs=FLOAT16_TOLERANCE) for key in set(drawn) & set(expected))
    assert page.locator(".attention-lines path").count() == len(drawn)


def test_pinned_token_shows_its_row_as_a_sum(page: Page, expected_pass: ForcedPass) -> None:
    shown = open_view(page, "heads", attention_type="cross", layer=1, head=3, token=0)
    (line,) = shown["sums"]
    terms = re.findall(r"([\d.]+)·(\S+)", line)
    row = expected_pass.attention["cross"][1, 3][0]
    columns = shown["matrix"]["columns"]
    for factor, word in terms:
        candidates = [row[index].item() for index, column in enumerate(columns) if column == word]
        assert min(abs(float(factor) - weight) for weight in candidates) < 0.006
    assert terms[0][1] == columns[int(row.argmax())]
    assert {line["query"] for line in shown["lines"]["lines"]} == {0}


def test_click_pins_and_unpins_a_token(page: Page) -> None:
    open_view(page, "heads", attention_type="encoder", layer=0, head=0)
    page.click(".queries .line-token >> nth=2")
    assert {line["query"] for line in read(page, "heads")["lines"]["lines"]} == {2}
    assert "token=2" in page.url
    page.mouse.move(5, 5)
    page.click(".keys .line-token >> nth=1")
    assert {line["key"] for line in read(page, "heads")["lines"]["lines"]} == {1}
    page.click(".keys .line-token >> nth=1")
    assert "token=" not in page.url


def test_edited_token_runs_the_model_again(page: Page, translator: Translator) -> None:
    open_view(page, "heads", attention_type="encoder", layer=0, head=0)
    page.click("[aria-label='Edit cat']")
    page.keyboard.type("dog")
    page.keyboard.press("Enter")
    page.wait_for_selector(".trace-summary .output-text:has-text('Köpek')")
    shown = read(page, "heads")
    assert shown["matrix"]["columns"][:2] == ["The", "dog"]
    expected_pass = forced_pass(translator, "The dog ate the mouse.")
    expected = expected_pass.attention["encoder"][0, 0]
    torch.testing.assert_close(
        torch.tensor(shown["matrix"]["values"]).view(expected.shape), expected, atol=FLOAT16_TOLERANCE, rtol=0
    )


def test_reference_pass_is_causal_and_normalized(translator: Translator, expected_pass: ForcedPass) -> None:
    """Rows sum to 1, no token attends to later ones, and a shorter target gives the same weights."""
    for attention_type, weights in expected_pass.attention.items():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        if attention_type == "decoder":
            assert weights.triu(1).abs().max() == 0
    shorter = forward(translator, expected_pass.source, expected_pass.target[:3])
    torch.testing.assert_close(shorter.attention["decoder"], expected_pass.attention["decoder"][:, :, :3, :3])
