"""The positions view: encodings and similarities are the library's, and the example is computed from them."""

from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.attention import Binary, Index, Normalized, Rotary, Sinusoidal
from regard.look.positions.requirements import REQUIREMENTS, SCHEMES, requirements
from tests.page.conftest import ServerUrl, fresh_page, open_view, read

pytestmark = pytest.mark.start_early(9)


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    with fresh_page(browser, server_url) as page:
        open_view(page, "positions")
        yield page


def schemes(view: Page) -> dict[str, dict[str, list[list[float]]]]:
    return {scheme["name"]: scheme for scheme in read(view, "positions")["positions"]["schemes"]}


def test_encodings_and_similarities_are_the_librarys(view: Page) -> None:
    shown, positions = schemes(view), torch.arange(64)
    for name, kind in {"sinusoidal": Sinusoidal, "index": Index, "normalized": Normalized, "binary": Binary}.items():
        encoding = kind(64).encode(positions)
        assert torch.allclose(torch.tensor(shown[name]["encoding"], dtype=torch.float32), encoding, atol=1e-5)
        assert torch.allclose(
            torch.tensor(shown[name]["similarity"], dtype=torch.float32),
            encoding @ encoding.T / 64,
            rtol=1e-4,
            atol=1e-5,
        )
    cosine = torch.cos((positions[:, None] - positions)[..., None] * Rotary(64).frequencies.values).mean(dim=-1)
    assert torch.allclose(torch.tensor(shown["rotary"]["similarity"]), cosine, atol=1e-4)


def test_length_and_width_can_be_changed(view: Page) -> None:
    for label, value in (("Positions", 16), ("Dimensions", 8)):
        view.get_by_label(label, exact=True).fill(str(value))
    encoding = torch.tensor(schemes(view)["sinusoidal"]["encoding"])
    assert torch.allclose(encoding, Sinusoidal(8).encode(torch.arange(16)), atol=1e-5)
    view.reload()
    assert torch.equal(torch.tensor(schemes(view)["sinusoidal"]["encoding"]), encoding)


def test_arrow_keys_read_values_of_a_matrix(view: Page) -> None:
    encoding = torch.tensor(schemes(view)["sinusoidal"]["encoding"])
    figure = view.locator("[data-scheme=sinusoidal] figure").first
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):  # into the matrix, then 2 down and 1 right
        figure.locator(".matrix-scroller").press(key)
    name, value = figure.locator("output").inner_text().split(":")
    assert name == "position 2 · dimension 2"
    assert float(value.replace("−", "-")) == pytest.approx(float(encoding[2, 1]), abs=1e-3)


def test_requirements_are_those_of_the_library(view: Page) -> None:
    for name, scheme in SCHEMES.items():
        row = view.locator(".requirements tbody tr", has=view.get_by_role("rowheader", name=name, exact=True))
        cells = row.locator("td").evaluate_all("all => all.map(one => [one.dataset.requirement, one.dataset.holds])")
        assert [requirement for requirement, _ in cells] == list(REQUIREMENTS)
        assert {requirement: holds == "true" for requirement, holds in cells} == requirements(scheme)


def test_example_is_computed_from_the_encodings(view: Page) -> None:
    """001: neighbors are 1/7 apart in seven words, 1/8 in eight; three bits repeat at 8; sinusoids do not change."""
    example = read(view, "positions")["example"]
    assert example["normalized"] == pytest.approx([1 / 7, 1 / 8], abs=1e-6)
    first, second = Sinusoidal(4).encode(torch.arange(2))
    assert example["sinusoidal"] == pytest.approx([float((first - second).norm())] * 2, abs=1e-5)
    assert example["bits"] == [f"{position % 8:03b}" for position in range(16)]
    text = view.locator(".sentence-example").inner_text()
    assert "neighbors are 0.143 apart in the first sentence and 0.125 in the second" in text
    assert "position 8 has the same encoding as position 0" in text


def test_refused_request_is_an_error_and_the_rest_stays(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    refusal = '{"detail": "Not now."}'
    view.route("**/positions?*", lambda route: route.fulfill(status=422, body=refusal, content_type="application/json"))
    view.get_by_label("Positions", exact=True).fill("24")
    view.get_by_text("The encodings could not be computed: Not now.").wait_for()
    assert view.locator(".sentence-example").is_visible()
    view.unroute("**/positions?*")
    view.get_by_role("button", name="Try again").click()
    assert len(schemes(view)["sinusoidal"]["encoding"]) == 24
