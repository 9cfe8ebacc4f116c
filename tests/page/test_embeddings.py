"""The view Embeddings: neighbors, the map of words and the residual stream are those of plain PyTorch."""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor

from regard.look.schema import RunRequest
from regard.serve.inspector.app import AppState
from tests.look.support import autoregressive_model
from tests.model.before.samples import SAMPLES
from tests.page import reference
from tests.page.conftest import ServerUrl, fresh_page, open_view, read
from tests.page.navigation import trace_of
from tests.page.test_accessibility import CONTRAST, RULES, axe, violations  # noqa: F401  axe is a fixture
from tests.serve.support import serving

pytestmark = pytest.mark.start_early(9)

BANK = "He sat on the bank of the river."
RIVER = [
    "She walked along the bank of the river.",
    "They fished from the bank of the river.",
    "The bank of the river was green.",
]
MONEY = ["He put his money in the bank.", "I have no money in the bank.", "She took her money from the bank."]


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    """The page with the example, which a click loads."""
    with fresh_page(browser, server_url) as page:
        open_view(page, "embeddings", text=BANK)
        page.get_by_role("button", name="Example").click()
        page.wait_for_function("() => window.regard.read('embeddings')?.sentences.length === 7")
        yield page


@torch.no_grad()
def states(text: str) -> list[Tensor]:
    """The encoder's states of a text: its input, and after each layer.  # (tokens, width) each"""
    encoder: Any = reference.model().encoder
    inputs: list[Tensor] = []
    hook = encoder.register_forward_pre_hook(lambda _module, given: inputs.append(given[0]))
    with reference.outputs(*encoder.layers) as outputs:
        reference.logits([reference.model().config.special_tokens.bos or 0], text)
    hook.remove()
    return [each[0] for each in (*inputs, *outputs[:-1], encoder.final_norm(outputs[-1]))]


def position(text: str, word: str) -> int:
    tokenizer = reference.translator().source_tokenizer
    (found,) = [index for index, token in enumerate(reference.source(text)[0].tolist()) if _spelled(token) == word]
    assert tokenizer is not None
    return found


def _spelled(token: int) -> str:
    return reference.translator().source_tokenizer.decode([token]).strip()


def stages(text: str, word: str) -> list[Tensor]:
    """A word of one token in the static embeddings, in the input, and after each layer.  # (width,) each"""
    index = position(text, word)
    static = reference.model().embed_tokens.weight[reference.source(text)[0, index]]
    return [static.detach().double(), *(state[index].double() for state in states(text))]


def test_neighbors_are_those_of_the_embedding_table(view: Page) -> None:
    for side, name in (("source", "bank"), ("target", "oturdu")):
        button = view.locator(f".token-choice button[data-token^={side}]", has_text=name)
        token = int(str(button.get_attribute("data-token")).split(".")[1])
        button.click()
        view.wait_for_function("id => window.regard.read('embeddings')?.neighbors.token.id === id", arg=token)
        script = "all => all.map(one => [Number(one.dataset.neighbor), Number(one.dataset.similarity)])"
        found = view.eval_on_selector_all("[data-neighbor]", script)
        weight = reference.model().embed_tokens.weight.detach()
        cosines = torch.cosine_similarity(weight[token], weight, dim=1)
        cosines[token] = -2
        best = cosines.topk(10)
        assert [each[0] for each in found] == best.indices.tolist()
        assert [each[1] for each in found] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert view.locator(".neighbors .fraction-label").first.inner_text() == f"{float(best.values[0]):.3f}"
        assert button.get_attribute("aria-pressed") == "true"


def test_banks_of_rivers_and_of_money_part(view: Page) -> None:
    vectors = [torch.stack(stages(text, "bank")) for text in (BANK, *RIVER, *MONEY)]
    units = torch.nn.functional.normalize(torch.stack(vectors), dim=-1)  # (sentences, stages, width)
    groups = [0, 1, 1, 1, 2, 2, 2]
    cells = view.eval_on_selector_all("[data-mean]", "all => all.map(one => ({ ...one.dataset, text: one.innerText }))")
    assert len(cells) == 8 * 5
    means: dict[tuple[int, str], float] = {}
    for cell in cells:
        stage, pair = int(cell["stage"]), tuple(map(int, cell["pair"].split(".")))
        expected = [
            float(units[first, stage] @ units[second, stage])
            for first, second in combinations(range(7), 2)
            if (groups[first], groups[second]) == pair
        ]
        mean = means[stage, cell["pair"]] = float(cell["mean"])
        assert mean == pytest.approx(sum(expected) / len(expected), abs=1e-5)
        assert float(cell["text"]) == pytest.approx(mean, abs=0.000501)
    assert means[0, "1.2"] == pytest.approx(1, abs=1e-6)  # one static vector
    assert means[7, "1.2"] < min(means[7, "1.1"], means[7, "2.2"])
    assert means[7, "0.1"] > means[7, "0.2"]  # he sat at a river


def test_points_are_the_principal_components(view: Page) -> None:
    slider = view.get_by_label("Layer", exact=True)
    assert "static embeddings: all of these words have the same vector" in view.locator(".map-and-legend").inner_text()
    slider.focus()
    slider.press("End")
    assert slider.get_attribute("aria-valuetext") == "layer 6"
    vectors = {("bank", text): stages(text, "bank")[7] for text in (BANK, *RIVER, *MONEY)}
    view.wait_for_function("() => document.querySelector('.map-labels text') !== null")  # the points have arrived
    drawn = view.eval_on_selector_all(
        ".word-map path", "all => all.map(one => [one.textContent, one.getAttribute('transform')])"
    )
    found = {}
    for title, transform in drawn:
        word, text = title.split(": ")
        found[word, text] = torch.tensor([float(each) for each in re.findall(r"-?[\d.]+", transform)])
    assert found.keys() == vectors.keys()
    units = torch.nn.functional.normalize(torch.stack([vectors[key] for key in found]), dim=-1)
    u, s, _ = torch.linalg.svd(units - units.mean(dim=0), full_matrices=False)
    expected = torch.pdist((u * s)[:, :2])
    distances = torch.pdist(torch.stack(list(found.values())).double())
    scale = float(distances.max() / expected.max())
    assert scale > 50  # pixels
    torch.testing.assert_close(distances, expected * scale, atol=0.3, rtol=0)  # drawn to a tenth of a pixel
    share = round(100 * float((s[:2] ** 2).sum() / (s**2).sum()))
    assert f"layer 6: the two axes have {share} % of the variance" in view.locator(".map-and-legend").inner_text()


def test_residual_stream_is_that_of_the_encoder(view: Page) -> None:
    expected = states(BANK)
    stream = read(view, "embeddings")["stream"]
    assert [token["id"] for token in stream["tokens"]] == reference.source(BANK)[0].tolist()
    for layer, state in enumerate(expected):
        assert stream["norms"][layer] == pytest.approx(state.norm(dim=-1).tolist(), rel=1e-4)
        if layer:
            cosines = torch.cosine_similarity(state, expected[layer - 1], dim=-1)
            assert stream["cosines"][layer - 1] == pytest.approx(cosines.tolist(), abs=1e-4)
    figure = view.locator(".residual-matrices figure").first
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):  # into the matrix, then 2 down and 1 right
        figure.locator(".matrix-scroller").press(key)
    name, value = figure.locator("output").inner_text().split(": ")
    assert (name, float(value)) == ("layer 2 · sat", pytest.approx(float(expected[2][1].norm()), rel=1e-3))


def test_sentences_and_words_are_the_readers(view: Page) -> None:
    view.get_by_label("Words on the map").fill("zebra")
    view.get_by_role("button", name="Show").click()
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    view.get_by_text("None of the sentences has one of these words").wait_for()
    view.get_by_label("Sentences to compare").fill("The mouse ate.\n\nA mouse sat.")
    view.get_by_label("Words on the map").fill("")
    view.get_by_role("button", name="Show").click()
    view.wait_for_function("() => window.regard.read('embeddings')?.vectors?.words.length === 17")
    values = read(view, "embeddings")
    assert [each["group"] for each in values["sentences"]] == [0, 1, 2]
    assert [values["vectors"]["words"][index]["text"] for index in values["vectors"]["occurrences"]] == ["mouse"] * 2
    view.reload()  # all of it is in the address
    view.wait_for_function("() => window.regard.read('embeddings')?.vectors?.words.length === 17")


def test_standalone_file_has_the_neighbors(browser: Browser, server_url: ServerUrl, tmp_path: Path) -> None:
    (traced,) = server_url.state.traced_models.values()
    path = tmp_path / "look.html"
    path.write_text(traced.trace(RunRequest(text=BANK)).html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri()) as page:
        page.goto(f"{path.as_uri()}#view=embeddings")
        page.get_by_text("need the running model, and this page is a standalone file").wait_for()
        page.locator(".token-choice button", has_text="river").click()
        page.wait_for_function("() => window.regard.read('embeddings')?.neighbors.token.text === 'river'")
        assert page.locator("[data-neighbor]").count() == 10
        assert not page.get_by_role("button", name="Example").is_visible()
        page.goto(f"{path.as_uri()}#view=patterns")
        assert len(read(page, "patterns")["patterns"]["patterns"]) == 5
        page.get_by_label("Length of the sequence").select_option("64")
        page.get_by_text("Computing patterns of other sizes needs the model").wait_for()


def test_models_before_the_transformer(browser: Browser) -> None:
    """A recurrent language model has all of it; one of n-grams says why it has none. Neither has a pattern."""
    models = [
        autoregressive_model(next(iter(SAMPLES[kind].values())), torch.float32) for kind in ("recurrent-lm", "ngram")
    ]
    with serving(AppState(models)) as url, fresh_page(browser, url) as page:
        page.expected.append("Failed to load resource")  # type: ignore[attr-defined]
        first, second = (model.id for model in models)
        assert open_view(page, "embeddings", model=first, text="the old cat")["vectors"]["layers"]
        assert trace_of(page)["model"]["id"] == first
        open_view(page, "embeddings", model=second, text="the old cat")
        assert page.get_by_text("This model has no embeddings of tokens").count() == 2
        open_view(page, "patterns", model=first, text="the old cat")
        page.get_by_text("has no attention with a pattern").wait_for()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_example_is_accessible_and_narrow(
    browser: Browser,
    server_url: ServerUrl,
    axe: str,  # noqa: F811
    dark: bool,
) -> None:
    with fresh_page(browser, server_url, dark=dark, width=390) as page:
        open_view(page, "embeddings", text=BANK, sentences="\n".join([*RIVER, "", *MONEY]), word="bank", stage=7)
        assert violations(page, axe, CONTRAST if dark else RULES) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
