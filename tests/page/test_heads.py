"""The view of heads draws the model's own attention: the picture is the tensor."""

import re

import pytest
import torch
from playwright.sync_api import Page

from regard.task import Translator

from .conftest import open_view, read
from .tensors import Pass, forced, through

HALF = 6e-4
"""Weights travel as 16 bits, which hold about three digits."""


def steps(seen: Pass, side: str) -> int:
    """Rows that are shown: of cross-attention, only steps that wrote something."""
    return len(seen.source) if side == "encoder" else len(seen.target) - (side == "cross")


@pytest.mark.parametrize(("side", "layer", "head"), [("encoder", 4, 2), ("decoder", 1, 3), ("cross", 2, 0)])
def test_the_matrix_is_the_tensor(page: Page, seen: Pass, side: str, layer: int, head: int) -> None:
    shown = open_view(page, "heads", side=side, layer=layer, head=head)
    wanted = seen.attention[side][layer, head][: steps(seen, side)]
    values = torch.tensor(shown["matrix"]["values"]).view(wanted.shape)
    assert (shown["side"], shown["layer"], shown["head"], shown["pooled"]) == (side, layer, head, 1)
    torch.testing.assert_close(values, wanted, atol=HALF, rtol=0)


def test_rows_and_columns_are_named_after_their_tokens(page: Page, translator: Translator, seen: Pass) -> None:
    shown = open_view(page, "heads", side="cross", layer=0, head=0)["matrix"]
    assert shown["columns"] == ["The", "cat", "ate", "the", "m", "ouse", ".", "⟨end⟩"]
    assert shown["rows"] == ["Kedi", "far", "eyi", "yedi", ".", "⟨end⟩"]  # what each step wrote
    assert len(seen.target) == len(shown["rows"]) + 1


def test_every_pixel_has_the_colour_of_its_weight(page: Page) -> None:
    """The canvas itself is read back and held against the ramp that the legend shows."""
    shown = open_view(page, "heads", side="encoder", layer=0, head=1)["matrix"]
    columns = len(shown["columns"])
    legend = page.evaluate(
        """() => { const drawn = document.querySelector('.matrix-panel .legend canvas');
                   return Array.from(drawn.getContext('2d').getImageData(0, 0, 256, 1).data) }"""
    )
    drawn = page.evaluate(
        """({left, above, cell, rows, columns}) => {
             const canvas = document.querySelector('.scroller canvas');
             const ratio = devicePixelRatio;
             const pen = canvas.getContext('2d');
             const found = [];
             for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
               const [x, y] = [left + (column + 0.5) * cell, above + (row + 0.5) * cell];
               found.push(Array.from(pen.getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data));
             }
             return found }""",
        {**{name: shown[name] for name in ("left", "above", "cell")}, "rows": len(shown["rows"]), "columns": columns},
    )
    for value, pixel in zip(shown["values"], drawn, strict=True):
        place = round(255 * (value / shown["top"]) ** 0.5)
        nearest = min(
            max(abs(a - b) for a, b in zip(pixel, legend[4 * at : 4 * at + 4], strict=True))
            for at in range(max(0, place - 1), min(256, place + 2))
        )
        assert nearest <= 2


def test_thumbnails_show_every_head(page: Page, seen: Pass) -> None:
    open_view(page, "heads", side="cross", layer=0, head=0)
    brightest = page.evaluate(
        """() => [...document.querySelectorAll('.thumbnail .look')].map((look) => {
             const canvas = look.querySelector('canvas');
             const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
             let darkest = 0;
             for (let at = 0; at < data.length; at += 4)
               if (data[at] + data[at + 1] < data[4 * darkest] + data[4 * darkest + 1]) darkest = at / 4;
             return [Number(look.dataset.layer), Number(look.dataset.head), canvas.width, canvas.height,
                     Math.floor(darkest / canvas.width), darkest % canvas.width] })"""
    )
    layers, heads = seen.attention["cross"].shape[:2]
    assert len(brightest) == layers * heads
    for layer, head, width, height, row, column in brightest:
        weights = seen.attention["cross"][layer, head][:-1]
        assert (height, width) == tuple(weights.shape)
        assert weights[row, column] >= weights.max() - 0.02


def test_sub_words_are_summed_where_they_are_looked_at_and_averaged_where_they_look(page: Page, seen: Pass) -> None:
    shown = open_view(page, "heads", side="encoder", layer=3, head=1, merged="true")["matrix"]
    assert shown["columns"] == ["The", "cat", "ate", "the", "mouse", ".", "⟨end⟩"]
    weights = seen.attention["encoder"][3, 1]
    groups = [[0], [1], [2], [3], [4, 5], [6], [7]]
    wanted = torch.stack([torch.stack([weights[row][:, column].sum(1).mean() for column in groups]) for row in groups])
    torch.testing.assert_close(torch.tensor(shown["values"]).view(7, 7), wanted, atol=2 * HALF, rtol=0)
    assert "summed over the pieces" in page.inner_text(".remarks")


def test_special_tokens_hidden_keep_their_weight(page: Page, seen: Pass) -> None:
    shown = open_view(page, "heads", side="encoder", layer=0, head=0, special="false")["matrix"]
    wanted = seen.attention["encoder"][0, 0][:-1, :-1]
    torch.testing.assert_close(torch.tensor(shown["values"]).view(7, 7), wanted, atol=HALF, rtol=0)
    said = re.search(r"adds up to ([\d.]+) %", page.inner_text(".remarks"))
    assert said is not None
    assert float(said[1]) == pytest.approx(100 * wanted.sum(1).mean().item(), abs=0.6)


def test_heads_averaged_are_the_mean_of_the_layer(page: Page, seen: Pass) -> None:
    shown = open_view(page, "heads", side="decoder", layer=2, head=0, averaged="true")
    wanted = seen.attention["decoder"][2].mean(0)
    assert shown["head"] == "mean"
    torch.testing.assert_close(torch.tensor(shown["matrix"]["values"]).view(wanted.shape), wanted, atol=HALF, rtol=0)


def test_lines_are_the_weights_from_the_threshold_on(page: Page, seen: Pass) -> None:
    chosen = [(0, 1), (1, 3), (2, 2)]
    shown = open_view(
        page, "heads", side="cross", layer=1, head=3, heads=",".join(f"{a}.{b}" for a, b in chosen), threshold=0.2
    )
    drawn = {(link["head"], link["from"], link["to"]): link["weight"] for link in shown["lines"]["links"]}
    wanted = {
        (number, row, column): weight.item()
        for number, (layer, head) in enumerate(chosen)
        for row, line in enumerate(seen.attention["cross"][layer, head][:-1])
        for column, weight in enumerate(line)
        if weight >= 0.2
    }
    near = {place for place, weight in wanted.items() if abs(weight - 0.2) < HALF}
    assert set(drawn) - near == set(wanted) - near
    assert all(drawn[place] == pytest.approx(wanted[place], abs=HALF) for place in set(drawn) & set(wanted))
    assert page.locator(".links path").count() == len(drawn)


def test_a_pinned_word_shows_its_row_as_a_sum(page: Page, seen: Pass) -> None:
    shown = open_view(page, "heads", side="cross", layer=1, head=3, token=0)
    (line,) = shown["sums"]
    terms = re.findall(r"([\d.]+)·(\S+)", line)
    row = seen.attention["cross"][1, 3][0]
    columns = shown["matrix"]["columns"]
    for factor, word in terms:
        candidates = [row[at].item() for at, column in enumerate(columns) if column == word]
        assert min(abs(float(factor) - weight) for weight in candidates) < 0.006
    assert terms[0][1] == columns[int(row.argmax())]
    assert {link["from"] for link in shown["lines"]["links"]} == {0}


def test_a_word_is_pinned_by_a_click_and_let_go_by_another(page: Page) -> None:
    open_view(page, "heads", side="encoder", layer=0, head=0)
    page.click(".looks .word >> nth=2")
    assert {link["from"] for link in read(page, "heads")["lines"]["links"]} == {2}
    assert "token=2" in page.url
    page.mouse.move(5, 5)
    page.click(".seen .word >> nth=1")
    assert {link["to"] for link in read(page, "heads")["lines"]["links"]} == {1}
    page.click(".seen .word >> nth=1")
    assert "token=" not in page.url


def test_a_token_that_is_edited_runs_everything_again(page: Page, translator: Translator) -> None:
    open_view(page, "heads", side="encoder", layer=0, head=0)
    page.click("[aria-label='Change cat']")
    page.keyboard.type("dog")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sentence .written:has-text('Köpek')")
    shown = read(page, "heads")
    assert shown["matrix"]["columns"][:2] == ["The", "dog"]
    seen = forced(translator, "The dog ate the mouse.")
    wanted = seen.attention["encoder"][0, 0]
    torch.testing.assert_close(torch.tensor(shown["matrix"]["values"]).view(wanted.shape), wanted, atol=HALF, rtol=0)


def test_the_pass_that_is_compared_with_is_itself_right(translator: Translator, seen: Pass) -> None:
    """Its rows add up to one and look at nothing later; another answer gives other numbers."""
    for side, weights in seen.attention.items():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        if side == "decoder":
            assert weights.triu(1).abs().max() == 0
    other = through(translator, seen.source, seen.target[:3])
    torch.testing.assert_close(other.attention["decoder"], seen.attention["decoder"][:, :, :3, :3])
