"""Positions: codes and similarities on the page are the package's, and the lecture's example is computed from them."""

from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.attention import Binary, Index, Normalised, Rotary, Sinusoidal
from regard.look.requirements import REQUIREMENTS, SCHEMES, requirements
from tests.page.conftest import Address, fresh_page, open_view, read


@pytest.fixture(scope="module")
def view(browser: Browser, address: Address) -> Iterator[Page]:
    with fresh_page(browser, address) as page:
        open_view(page, "positions")
        yield page


def schemes(view: Page) -> dict[str, dict[str, list[list[float]]]]:
    return {one["name"]: one for one in read(view, "positions")["positions"]["schemes"]}


def test_codes_and_similarities_are_the_packages(view: Page) -> None:
    found, places = schemes(view), torch.arange(64)
    for name, kind in {"sinusoidal": Sinusoidal, "index": Index, "normalised": Normalised, "binary": Binary}.items():
        code = kind(64).encode(places)
        assert torch.allclose(torch.tensor(found[name]["encoding"], dtype=torch.float32), code, atol=1e-5)
        assert torch.allclose(
            torch.tensor(found[name]["similarity"], dtype=torch.float32), code @ code.T / 64, rtol=1e-4, atol=1e-5
        )
    cosine = torch.cos((places[:, None] - places)[..., None] * Rotary(64).frequencies.values).mean(dim=-1)
    assert torch.allclose(torch.tensor(found["rotary"]["similarity"]), cosine, atol=1e-4)


def test_length_and_width_can_be_changed(view: Page) -> None:
    for label, value in (("Words", 16), ("Numbers for each", 8)):
        view.get_by_label(label, exact=True).fill(str(value))
    code = torch.tensor(schemes(view)["sinusoidal"]["encoding"])
    assert torch.allclose(code, Sinusoidal(8).encode(torch.arange(16)), atol=1e-5)
    view.reload()
    assert torch.equal(torch.tensor(schemes(view)["sinusoidal"]["encoding"]), code)


def test_arrow_keys_read_the_numbers_of_a_picture(view: Page) -> None:
    code = torch.tensor(schemes(view)["sinusoidal"]["encoding"])
    figure = view.locator("[data-scheme=sinusoidal] figure").first
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):  # to 0, 0; then 2 down and 1 across
        figure.locator(".tiles canvas").press(key)
    name, value = figure.locator("output").inner_text().split(":")
    assert name == "position 2 · number 2"
    assert float(value.replace("−", "-")) == pytest.approx(float(code[2, 1]), abs=1e-3)


def test_the_five_requirements_are_those_computed_for_the_seeds(view: Page) -> None:
    for name, scheme in SCHEMES.items():
        row = view.locator(".requirements tbody tr", has=view.get_by_role("rowheader", name=name, exact=True))
        cells = row.locator("td").evaluate_all("all => all.map(one => [one.dataset.requirement, one.dataset.holds])")
        assert [each for each, _ in cells] == list(REQUIREMENTS)
        assert {each: holds == "true" for each, holds in cells} == requirements(scheme)


def test_dark_horses_are_computed_from_the_codes(view: Page) -> None:
    """001: neighbours are 1/7 apart in seven words, 1/8 in eight; three bits repeat at 8; sinusoids stay."""
    found = read(view, "positions")["horses"]
    assert found["normalised"] == pytest.approx([1 / 7, 1 / 8], abs=1e-6)
    one, other = Sinusoidal(4).encode(torch.arange(2))
    assert found["sinusoidal"] == pytest.approx([float((one - other).norm())] * 2, abs=1e-5)
    assert found["bits"] == [f"{place % 8:03b}" for place in range(16)]
    text = view.locator(".horses").inner_text()
    assert "neighbours are 0.143 apart in the first sentence and 0.125 in the second" in text
    assert "position 8 is written like position 0" in text


def test_a_server_that_refuses_is_a_sentence_and_the_rest_stays(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    refusal = '{"detail": "Not now."}'
    view.route("**/positions?*", lambda route: route.fulfill(status=422, body=refusal, content_type="application/json"))
    view.get_by_label("Words", exact=True).fill("24")
    view.get_by_text("The codes could not be computed: Not now.").wait_for()
    assert view.locator(".horses").is_visible()
    view.unroute("**/positions?*")
    view.get_by_role("button", name="Try again").click()
    assert len(schemes(view)["sinusoidal"]["encoding"]) == 24
