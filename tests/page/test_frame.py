"""The frame of the page: state in the URL, keyboard access, and recovery from errors."""

import json
from decimal import ROUND_HALF_UP, Context
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.serve.inspector.app import AppState
from tests.page.conftest import SENTENCE, ServerUrl, fresh_page, open_view, read, serving

pytestmark = pytest.mark.start_early(9)


def test_link_and_back_button_restore_the_state(page: Page) -> None:
    open_view(page, "heads", attention_type="decoder", layer=1, head=2, token=1, threshold=0.3)
    first = read(page, "heads")
    url = page.url
    page.click("nav.views >> text=Model")
    read(page, "model")
    page.go_back()
    assert read(page, "heads")["lines"] == first["lines"]
    assert page.url == url
    page.reload()
    again = read(page, "heads")
    assert (again["matrix"]["values"], again["lines"]) == (first["matrix"]["values"], first["lines"])


def test_another_view_starts_at_the_top(page: Page) -> None:
    open_view(page, "decoding", step=2)
    page.evaluate("scrollTo(0, 600)")
    page.click("nav.views >> text=Head ablation")
    read(page, "ablation")
    assert page.evaluate("scrollY") == 0
    open_view(page, "playground")
    page.click("button:has-text('Ask why')")  # it goes away with its view; the focus does not go back to the start
    assert page.evaluate("document.activeElement.id") == "title"


def test_invalid_url_state_falls_back_to_defaults(page: Page) -> None:
    page.goto(f"{page.home}#view=nonsense&model=nobody&layer=99&head=-4&attention_type=up&threshold=much&token=1e9")
    page.wait_for_selector("nav.views a[aria-current]")
    assert read(page, "playground")["output"] == "Kedi fareyi yedi."
    page.click("nav.views >> text=Attention heads")
    assert read(page, "heads")["matrix"]["values"]


def test_default_head_is_the_sharpest(page: Page) -> None:
    page.goto(str(page.home))
    assert read(page, "playground")["output"] == "Kedi fareyi yedi."
    page.click("nav.views >> text=Attention heads")
    shown = read(page, "heads")
    assert shown["attention_type"] == "cross"
    assert max(shown["matrix"]["values"]) > 0.8
    assert shown["sums"]


def test_theme_follows_the_system_until_chosen(browser: Browser, server_url: ServerUrl) -> None:
    with fresh_page(browser, server_url, dark=True) as page:
        open_view(page, "playground")
        assert page.get_attribute("html", "data-theme") == "dark"
        page.emulate_media(color_scheme="light")
        page.wait_for_selector("html[data-theme=light]")
        page.select_option("#theme", "dark")
        page.wait_for_selector("html[data-theme=dark]")
        page.goto("about:blank")
        page.goto(str(server_url))  # the choice is remembered
        page.wait_for_selector("nav.views a[aria-current]")
        assert page.get_attribute("html", "data-theme") == "dark"


def test_keyboard_reaches_everything(page: Page) -> None:
    open_view(page, "heads", attention_type="cross", layer=1, head=3)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "title"
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.className + '|' + document.activeElement.tagName"))
        if reached[-1].startswith("matrix-scroller"):
            break
    assert any(name.startswith("select-head") for name in reached)
    assert any(name.startswith("line-token") for name in reached)
    page.keyboard.press("ArrowRight")  # into the first cell
    page.keyboard.press("ArrowDown")
    assert "The step “Kedi → far” attends to “The”" in page.inner_text(".cell-value")
    page.keyboard.press("Enter")
    assert "token=1" in page.url
    page.focus("button.select-head[tabindex='0']")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    assert "heads=1.3%2C0.3" in page.url


def test_page_survives_a_server_restart(browser: Browser, traced_model: TracedModel) -> None:
    state = AppState([traced_model])
    first = serving(state)
    server_url = first.__enter__()
    with fresh_page(browser, server_url) as page:
        page.expected.extend(["ERR_CONNECTION_REFUSED", "Failed to load resource", "ERR_EMPTY", "ERR_CONNECTION"])  # type: ignore[attr-defined]
        open_view(page, "heads", attention_type="encoder", layer=0, head=0)
        first.__exit__()
        page.wait_for_selector(".banner:not([hidden])")
        page.click(".queries .line-token >> nth=1")  # loaded data still works
        page.mouse.move(5, 5)
        assert {line["query"] for line in read(page, "heads")["lines"]["lines"]} == {1}
        page.click("nav.views >> text=Try it")
        assert read(page, "playground")["output"] == "Kedi fareyi yedi."
        page.fill("textarea", "Thank you.")
        page.keyboard.press("Enter")
        page.wait_for_selector(".error:has-text('The server is not responding')")
        before = page.url.split("trace=")[1].split("&")[0]
        with serving(AppState([traced_model]), port=int(server_url.split(":")[2].strip("/"))):  # without the trace
            page.wait_for_selector(".banner[hidden]", state="attached")
            assert page.locator(".errors .message").count() == 0
            page.wait_for_url(lambda url: url.count("trace=") == 1 and before not in url)
            page.click("nav.views a[data-name=heads]")
            page.click("button.select-head[data-layer='2'][data-head='2']")
            assert read(page, "heads")["layer"] == 2


def test_what_could_not_be_loaded_is_loaded_when_the_server_is_back(page: Page) -> None:
    open_view(page, "decoding", step=1)
    page.expected.append("ERR_FAILED")  # type: ignore[attr-defined]
    page.route("**/api/**", lambda route: route.abort())
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".problem:has-text('The server is not responding')")
    page.click("button:has-text('Translate')")
    page.wait_for_selector(".error:has-text('The server is not responding')")
    page.unroute("**/api/**")
    page.wait_for_selector(".banner[hidden]", state="attached")
    assert len(read(page, "decoding")["parent"]["prefix"]) == 2
    assert page.locator(".problem, .error").count() == 0


def test_busy_server_is_said_and_tried_again(page: Page) -> None:
    open_view(page, "playground")
    page.expected.append("503")  # type: ignore[attr-defined]
    refusals: list[str] = []

    def refuse_once(route: Route) -> None:
        refusals.append(route.request.url)
        body = json.dumps({"detail": "The server is busy: try again in 1 seconds."})
        route.fulfill(status=503, headers={"retry-after": "1", "content-type": "application/json"}, body=body)

    page.route("**/api/models/*/traces", refuse_once, times=1)
    page.fill("textarea", "Thank you.")
    page.keyboard.press("Enter")
    page.wait_for_selector(
        ".notes:has-text('The server is busy: try again in 1 seconds. This page does so by itself.')"
    )
    page.wait_for_selector(".trace-summary .input-text:has-text('Thank you.')")
    assert len(refusals) == 1
    assert page.locator(".error").count() == 0


def test_trace_is_saved_and_opened(page: Page, tmp_path: Path) -> None:
    open_view(page, "heads", attention_type="cross", layer=1, head=3)
    shown = read(page, "heads")
    path = download(page, "The trace as a file", tmp_path)
    page.goto("about:blank")
    open_view(page, "heads", attention_type="cross", layer=1, head=3, text="Thank you.")
    page.set_input_files("#trace-file", path)
    page.wait_for_selector(f".trace-summary .input-text:has-text('{SENTENCE}')")
    assert read(page, "heads")["matrix"]["values"] == shown["matrix"]["values"]


def test_damaged_trace_file_is_an_error(page: Page, tmp_path: Path) -> None:
    open_view(page, "playground")
    page.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(b"this is no trace at all")
    page.set_input_files("#trace-file", path)
    page.wait_for_selector(".error")
    assert page.inner_text(".error span").endswith(".")
    assert read(page, "playground")["output"] == "Kedi fareyi yedi."


def test_views_are_saved_as_svg_png_and_csv(page: Page, tmp_path: Path) -> None:
    for name in ("playground", "model", "heads"):
        open_view(page, name, attention_type="cross", layer=1, head=3)
        svg = download(page, "This view as SVG", tmp_path).read_text(encoding="utf-8")
        assert 'xmlns="http://www.w3.org/2000/svg"' in svg
        assert "var(" not in svg
        png = download(page, "This view as PNG", tmp_path).read_bytes()
        assert png.startswith(b"\x89PNG")
        table = download(page, "This view’s data as CSV", tmp_path).read_text(encoding="utf-8").splitlines()
        assert len(table) > 5
    head, *rows = (line.split(",") for line in table)
    shown = read(page, "heads")["matrix"]
    assert head[-1] == "weight"
    rounding = Context(prec=6, rounding=ROUND_HALF_UP)  # as JavaScript's toPrecision rounds
    assert [float(row[-1]) for row in rows] == [float(rounding.create_decimal(value)) for value in shown["values"]]


def test_standalone_file_works_from_disk(page: Page, browser: Browser, tmp_path: Path) -> None:
    shown = {
        name: open_view(page, name, attention_type="cross", layer=1, head=3)
        for name in ("playground", "model", "heads")
    }
    path = download(page, "The page as a standalone HTML file", tmp_path)
    with fresh_page(browser, path.as_uri()) as file:
        for name in ("playground", "model", "heads"):
            file.goto("about:blank")
            file.goto(f"{path.as_uri()}#view={name}&attention_type=cross&layer=1&head=3")
            values = read(file, name)
            for part in ("output", "tokens", "modules", "matrix", "sums"):
                assert rounded(values.get(part)) == rounded(shown[name].get(part))
        assert SENTENCE in file.inner_text(".trace-summary")
        path.write_text(
            path.read_text(encoding="utf-8").replace('"float32": "', '"float32": "damaged'), encoding="utf-8"
        )
        file.goto("about:blank")
        file.goto(path.as_uri())
        assert "The data in this file is damaged" in file.inner_text(".error span")


def rounded(value: Any) -> Any:
    """Round all numbers to five digits; standalone files have only six."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return {name: rounded(item) for name, item in value.items()} if isinstance(value, dict) else value


def download(page: Page, entry: str, folder: Path) -> Path:
    """Click on an entry of the menu, and save the file that it downloads."""
    page.click(".save-menu summary")
    with page.expect_download() as pending:
        page.click(f".save-menu button:has-text('{entry}')")
    path = folder / pending.value.suggested_filename
    pending.value.save_as(path)
    return path


def test_content_security_policy_allows_only_the_same_origin(page: Page) -> None:
    response = page.goto(str(page.home))
    assert response is not None
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


def test_trace_is_shown_in_a_notebook(browser: Browser, traced_model: TracedModel, tmp_path: Path) -> None:
    """There it is in an iframe without a URL, storage or origin."""
    path = tmp_path / "notebook.html"
    shown = traced_model.trace(RunRequest(text=SENTENCE))._repr_html_()
    path.write_text(f"<!doctype html><meta charset=utf-8><title>A notebook</title>{shown}", encoding="utf-8")
    with fresh_page(browser, path.as_uri()) as page:
        page.goto(path.as_uri())
        page.wait_for_selector("iframe")
        frame = page.frames[1]
        frame.wait_for_selector(".output-panel .output:has-text('Kedi fareyi yedi.')")
        frame.click("nav.views a[data-name=heads]")
        frame.wait_for_selector("[data-painted]")
        assert frame.evaluate("window.regard.read('heads').attention_type") == "cross"
