"""The view Why: the numbers of a choice equal plain PyTorch, and what-if runs equal translations with constraints."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor, nn

from regard.look.analysis.attribution import contrast
from regard.serve.inspector.app import AppState
from tests.look.support import autoregressive_model
from tests.model.before.samples import SAMPLES
from tests.page import reference
from tests.page.conftest import ServerUrl, fresh_page, open_view, read
from tests.page.navigation import change_state, trace_of
from tests.page.test_accessibility import CONTRAST, RULES, axe, violations  # noqa: F401  axe is a fixture
from tests.serve.support import serving

pytestmark = pytest.mark.start_early(9)

BANK = "He sat on the bank of the river."
STEP = "rin → bank"
"""The step of O, nehrin bankasına oturdu. that is asked about."""


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    """The page after the choice of bank against kıyısına was explained, with nothing but the keyboard."""
    with fresh_page(browser, server_url) as page:
        open_view(page, "why", text=BANK)
        step = page.locator(".why-choice .tokens button", has_text=STEP)
        page.locator(".why-choice .tokens button").first.focus()
        while step.evaluate("one => one !== document.activeElement"):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        ask(page, "kıyısına")
        yield page


def ask(page: Page, text: str) -> dict[str, Any]:
    """Type a contrast; the explanation."""
    field = page.get_by_label("or any other text")
    field.fill(text)
    field.press("Enter")
    return explained(page)


def explained(page: Page) -> dict[str, Any]:
    page.wait_for_function("() => window.regard.read('why')?.progress?.state === 'done'", timeout=30_000)
    return read(page, "why")["progress"]["contrast"]


def drawn(page: Page, selector: str, name: str, value: str) -> dict[str, float]:
    """Numbers in the data of elements, by another of their data."""
    script = "(all, [name, value]) => all.map(one => [one.dataset[name], Number(one.dataset[value])])"
    found = page.eval_on_selector_all(selector, script, [name, value])
    assert len(dict(found)) == len(found) > 0
    return dict(found)


def target_ids(page: Page) -> list[int]:
    return [token["id"] for token in trace_of(page)["target"]]


class Asked:
    """The choice in PyTorch: what was read, and the ids of both tokens."""

    def __init__(self, page: Page) -> None:
        target = target_ids(page)
        text = reference.translator().target_tokenizer
        (position,) = [
            index for index, token in enumerate(target) if text.decode([token]).strip() == "bank" and index > 0
        ]
        self.read, self.token = target[:position], target[position]
        self.contrast_ids = text.encode("O, nehrin kıyısına")[position - 1 :]
        self.contrast = self.contrast_ids[0]
        assert text.decode([self.contrast]).strip() == "kıy"

    def logits(self) -> Tensor:
        return reference.logits(self.read, BANK)[-1].double()

    def margin(self) -> float:
        row = self.logits()
        return float(row[self.token] - row[self.contrast])


@pytest.fixture(scope="module")
def asked(view: Page) -> Asked:
    return Asked(view)


@contextmanager
def output_replaced(module: nn.Module, replace: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """Replace a module's output; `replace` gets the number of the call too."""
    calls: list[None] = []

    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        calls.append(None)
        return replace(output.clone(), len(calls) - 1)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def test_steps_are_named_by_what_is_read_and_written(view: Page) -> None:
    header = trace_of(view)
    texts = [token["text"] for token in header["target"]]
    found = view.locator(".why-choice .tokens .token-text").all_inner_texts()
    assert found == [f"{read} → {written}" for read, written in pairwise(texts)]
    probabilities = drawn(view, ".why-choice .tokens button", "position", "probability")
    assert list(probabilities.values()) == pytest.approx(reference.probabilities(target_ids(view), BANK), abs=1e-5)


def test_alternatives_are_the_likeliest_tokens(view: Page, asked: Asked) -> None:
    best = asked.logits().softmax(dim=-1).topk(8)
    expected = {f"#{token}": p for token, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
    del expected[f"#{asked.token}"]
    found = drawn(view, ".alternatives button", "contrast", "probability")
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, abs=1e-5)


def test_heads_and_feed_forwards_are_switched_off(view: Page, asked: Asked) -> None:
    found = drawn(view, "[data-effect]", "effect", "change")
    assert len(found) == 6 * 4 + 3 * 4 + 3 * 4 + 6 + 3
    margin = asked.margin()
    for name, change in found.items():
        where, layer, what = name.split(".")
        if what == "feed-forward":
            stack: Any = getattr(reference.model(), where)
            without: Any = output_replaced(stack.layers[int(layer)].feed_forward, lambda output, _: output * 0)
        else:
            without = reference.without_head(where, int(layer), int(what))
        with without:
            assert asked.margin() - margin == pytest.approx(change, abs=1e-4), name
        shown = view.locator(f"[data-effect='{name}']").inner_text()
        assert float(shown.replace("−", "-")) == pytest.approx(change, abs=0.00501)


def test_words_are_occluded(view: Page, asked: Asked) -> None:
    """The source is embedded first, and the target with the same table."""
    found = drawn(view, ".word-bars [data-key]", "key", "value")
    assert len(found) == 9 + 3
    margin = asked.margin()
    for key, change in found.items():
        side, positions = key.split(".")

        def occlude(output: Tensor, call: int, side: str = side, positions: str = positions) -> Tensor:
            if call == (side == "target"):
                output[:, [int(position) for position in positions.split(",")]] = 0
            return output

        with output_replaced(reference.model().embed_tokens, occlude):
            assert asked.margin() - margin == pytest.approx(change, abs=1e-4), key
    assert view.locator(".word-bars [data-key='target.3,4'] th").inner_text() == "nehrin"


@torch.no_grad()
def test_direct_contributions_add_up_to_the_margin(view: Page, asked: Asked) -> None:
    found = drawn(view, ".signed-bars [data-key]:not([data-key^=source]):not([data-key^=target])", "key", "value")
    assert len(found) == 1 + 3 * (4 + 4 + 1 + 1)
    assert sum(found.values()) == pytest.approx(asked.margin(), abs=1e-4)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    decoder: Any = reference.model().decoder
    inputs: dict[nn.Module, Tensor] = {}
    modules = [decoder.final_norm] + [
        each.get_submodule(name).o_proj for each in decoder.layers for name in ("self_attn", "cross_attn")
    ]
    hooks = [module.register_forward_pre_hook(lambda module, x: inputs.update({module: x[0]})) for module in modules]
    with reference.outputs(*(each.feed_forward for each in decoder.layers)) as networks:
        asked.logits()
    for hook in hooks:
        hook.remove()
    embedding = reference.model().embed_tokens.weight
    direction = (embedding[asked.token] - embedding[asked.contrast]).double() * decoder.final_norm.weight.double()
    deviation = inputs[decoder.final_norm][0, -1].double().var(unbiased=False).add(decoder.final_norm.eps).sqrt()

    def contribution(part: Tensor) -> float:
        return float(direction @ (part.double() - part.double().mean()) / deviation)

    for layer, block in enumerate(decoder.layers):
        assert found[f"feed-forward.{layer}."] == pytest.approx(contribution(networks[layer][0, -1]), abs=1e-4)
        for kind, name in (("decoder", "self_attn"), ("cross", "cross_attn")):
            projection = block.get_submodule(name).o_proj
            for head in range(4):
                columns = slice(64 * head, 64 * (head + 1))
                part = projection.weight[:, columns] @ inputs[projection][0, -1, columns]
                assert found[f"{kind}.{layer}.{head}"] == pytest.approx(contribution(part), abs=1e-4)


def test_sentences_state_the_largest_causes_in_numbers(view: Page, asked: Asked) -> None:
    margin = asked.margin()
    first, *causes = (
        view.locator(".why-results .answer").first.inner_text(),
        *view.locator(".causes p").all_inner_texts(),
    )
    probabilities = asked.logits().softmax(dim=-1)
    assert "After reading “rin”, the model gives “bank”" in first
    assert f"{100 * float(probabilities[asked.token]):.0f} %" in first
    assert f"log p(bank) − log p(kıy) is {margin:.2f}." in first
    effects = drawn(view, "[data-effect]", "effect", "change")
    heads = {name: change for name, change in effects.items() if not name.endswith("forward")}
    names = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
    for sentence, pick, verb in ((causes[0], min, "falls"), (causes[1], max, "rises")):
        largest = pick(heads, key=lambda name: heads[name])
        kind, layer, head = largest.split(".")
        with reference.without_head(kind, int(layer), int(head)):
            expected = asked.margin()
        assert sentence.startswith(
            f"Without {names[kind]} head {int(layer) + 1}.{int(head) + 1} the margin log p(bank) − log p(kıy) "
            f"{verb} from {margin:.2f} to {expected:.2f}"
        )
    assert "the source word “bank”" in causes[0]
    assert "which makes “kıy” the likelier of the two" in causes[0]


def test_what_if_continuation_is_a_translation_with_a_prefix(view: Page, asked: Asked) -> None:
    view.wait_for_function("() => window.regard.read('why').after !== null")
    values = read(view, "why")
    translator = reference.translator()
    prefix = translator.target_tokenizer.decode([*asked.read[1:], *asked.contrast_ids])
    expected = translator.translate(BANK, prefix=prefix, details=True)
    assert values["after"]["output"] == expected.texts[0] == "O, nehrin kıyısına oturdu."
    assert values["before"]["output"] == translator.translate(BANK)
    ids = [token["id"] for token in values["after"]["target"]]
    logprob = torch.tensor(reference.probabilities(ids, BANK), dtype=torch.float64).log().sum()
    assert values["after"]["log_probability"] == pytest.approx(float(logprob), abs=1e-3)
    shown = view.locator(".what-if-output").inner_text()
    for trace in (values["before"], values["after"]):
        assert f"log-probability {trace['log_probability']:.2f}".replace("-", "−").replace("log−", "log-") in shown
    probabilities = view.eval_on_selector_all(
        ".what-if-output .unit.after[data-probability]", "all => all.map(one => Number(one.dataset.probability))"
    )
    assert probabilities == pytest.approx(reference.probabilities(ids, BANK), abs=1e-5)
    assert "The first tokens were given: O · , · neh · rin · kıy · ısına." in shown


def test_layers_are_read_through_the_final_norm(view: Page) -> None:
    model, target = reference.model(), target_ids(view)
    decoder: Any = model.decoder
    states: list[Tensor] = []
    hook = decoder.register_forward_pre_hook(lambda _module, inputs: states.append(inputs[0][0]))
    with reference.outputs(*decoder.layers) as outputs:
        reference.logits(target[:-1], BANK)
    hook.remove()
    states += [output[0] for output in outputs]
    cells = view.eval_on_selector_all(".lens-cell", "all => all.map(one => ({ ...one.dataset }))")
    assert len(cells) == 4 * (len(target) - 1)
    for cell in cells:
        layer, step = int(cell["layer"]), int(cell["step"])
        with torch.no_grad():
            logits = (decoder.final_norm(states[layer][step]) @ model.embed_tokens.weight.T).double()
        best = logits.softmax(dim=-1).max(dim=-1)
        assert (int(cell["token"]), float(cell["tokenProbability"])) == (
            int(best.indices),
            pytest.approx(float(best.values), abs=1e-5),
        )
        assert int(cell["rank"]) == 1 + int((logits > logits[target[step + 1]]).sum())
        assert float(cell["probability"]) == pytest.approx(float(logits.softmax(dim=-1)[target[step + 1]]), abs=1e-5)
        assert float(cell["norm"]) == pytest.approx(float(states[layer][step].norm()), rel=1e-4)
        if layer:
            cosine = torch.cosine_similarity(states[layer][step], states[layer - 1][step], dim=0)
            assert float(cell["cosine"]) == pytest.approx(float(cosine), abs=1e-4)
    view.get_by_label("rank of the written one").check()
    assert view.locator(".lens-cell[data-layer='3'][data-step='4'] b").inner_text() == "1"
    view.locator(".lens-cell[data-layer='2'][data-step='4']").click()
    assert "rin → bank, layer 2:" in view.locator(".lens-details").inner_text()


def test_a_long_output_is_read_in_parts(
    browser: Browser, server_url: ServerUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.look.analysis.attribution.logit_lens.MAX_POSITIONS", 5)
    with fresh_page(browser, server_url) as page:
        open_view(page, "why", text=BANK)
        whole = len(target_ids(page)) - 1
        page.get_by_text(f"Steps 1 to 5 of {whole}").wait_for()
        page.get_by_role("button", name="later steps").click()
        page.get_by_text(f"Steps 6 to {whole} of {whole}").wait_for()
        assert page.locator(".lens thead th").first.inner_text() == "bank → asına"
        page.get_by_role("button", name="earlier steps").click()
        page.get_by_text(f"Steps 1 to 5 of {whole}").wait_for()


def test_clicked_alternative_is_compared_and_decoded_on_from(view: Page) -> None:
    button = view.locator(".alternatives button", has_text="ank").last
    contrast_id = int(str(button.get_attribute("data-contrast"))[1:])
    button.click()
    found = explained(view)
    assert (found["contrast"]["id"], button.get_attribute("aria-pressed")) == (contrast_id, "true")
    view.wait_for_function(
        "id => window.regard.read('why').after?.target.some(token => token.id === id)", arg=contrast_id
    )
    position = found["position"] + 1
    assert read(view, "why")["after"]["target"][position]["id"] == contrast_id
    view.reload()  # the choice is in the address
    assert explained(view) == found


def test_words_can_be_required_and_forbidden(view: Page) -> None:
    translator = reference.translator()
    for label, name, word in (("The output contains", "require", "kenarına"), ("does not contain", "forbid", "banka")):
        view.get_by_label("The output contains").fill("")
        view.get_by_label("does not contain").fill("")
        view.get_by_label(label).fill(word)
        view.get_by_role("button", name="Decode again").click()
        expected = translator.translate(BANK, **{name: word})
        view.wait_for_function("text => window.regard.read('why').after?.output === text", arg=expected)
        assert f"“{word}”" in view.locator(".what-if-output .conditions").inner_text()
    view.get_by_role("button", name="Open this run in all views").click()
    view.click("nav.views a[data-name=playground]")
    view.locator(".conditions", has_text="could not contain “banka”").wait_for()


def test_job_is_stopped(browser: Browser, server_url: ServerUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    explain = contrast.explain_choice

    def slowly(*arguments: Any) -> Iterator[Any]:
        for number, step in enumerate(explain(*arguments)):
            yield step
            if number == 20:
                reached.set()
                go_on.wait(60)

    monkeypatch.setattr("regard.serve.inspector.app.explain_choice", slowly)
    with fresh_page(browser, server_url) as page:
        open_view(page, "why", text=BANK, position=5, contrast="kıyısına")
        assert reached.wait(30)
        page.get_by_text("20 of 69 passes.").wait_for()
        assert len(drawn(page, "[data-effect][data-change]", "effect", "change")) == 20 - 12
        page.get_by_role("button", name="Stop", exact=True).click()
        page.wait_for_timeout(300)
        go_on.set()
        page.get_by_text("Stopped after").wait_for()
        progress = read(page, "why")["progress"]
        assert (progress["state"], progress["done"] < progress["total"]) == ("stopped", True)
        assert "…" in page.locator("[data-effect='decoder.2.feed-forward']").inner_text()


def test_contrast_that_was_written_is_one_sentence(browser: Browser, server_url: ServerUrl) -> None:
    with fresh_page(browser, server_url) as page:
        page.expected.append("Failed to load resource")  # type: ignore[attr-defined]
        open_view(page, "why", text=BANK, position=5, contrast="bankasına")
        page.get_by_text("The contrast is what the model wrote; choose another word or token.").wait_for()
        assert page.locator(".alternatives button").count() == 7
        change_state(page, position=999)
        assert not page.locator(".instead").is_visible()


def test_a_model_without_heads_shows_the_probabilities_only(browser: Browser) -> None:
    traced = autoregressive_model(SAMPLES["recurrent-attention"]["plain"], torch.float32)
    with serving(AppState([traced])) as url, fresh_page(browser, url) as page:
        open_view(page, "why", model="small", text="the old cat ate", position=1, contrast="#40")
        contrast = explained(page)
        row = traced.logits(traced.trace(_request("the old cat ate")).header.request, [1])[-1].log_softmax(dim=-1)
        assert contrast["margin"] == pytest.approx(float(row[contrast["token"]["id"]] - row[40]), abs=1e-4)
        page.get_by_text("This model is no Transformer").wait_for()
        assert not page.locator(".effect-map").is_visible()
        assert not page.locator(".lens").is_visible()
        page.wait_for_function("() => window.regard.read('why').after !== null")


def _request(text: str) -> Any:
    from regard.look.schema import RunRequest

    return RunRequest(text=text)


def test_standalone_file_says_that_it_needs_the_model(browser: Browser, server_url: ServerUrl, tmp_path: Path) -> None:
    (traced,) = server_url.state.traced_models.values()
    path = tmp_path / "look.html"
    path.write_text(traced.trace(_request(BANK)).html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri()) as page:
        page.goto(f"{path.as_uri()}#view=why&position=5")
        page.get_by_text("needs the running model, and this page is a standalone file").wait_for()
        assert page.locator(".alternatives button").count() == 7
        assert not page.get_by_role("button", name="Compare").is_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_explained_choice_is_accessible_and_narrow(
    browser: Browser,
    server_url: ServerUrl,
    axe: str,  # noqa: F811
    dark: bool,
) -> None:
    with fresh_page(browser, server_url, dark=dark, width=390) as page:
        open_view(page, "why", text=BANK, position=5, contrast="kıyısına")
        explained(page)
        page.wait_for_function("() => window.regard.read('why').after && window.regard.read('why').lens")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page, axe, CONTRAST if dark else RULES) == []
