"""The frame: its state is in the address, the keyboard reaches everything, and nothing that goes wrong ends it."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from regard.look.subject import Subject
from regard.look.wire import RunRequest
from regard.serve.app import Desk

from .conftest import SENTENCE, Address, fresh_page, open_view, read, serving


def test_a_link_shows_the_same_and_going_back_works(page: Page) -> None:
    open_view(page, "heads", side="decoder", layer=1, head=2, token=1, threshold=0.3)
    first = read(page, "heads")
    address = page.url
    page.click("nav.views >> text=Model")
    read(page, "model")
    page.go_back()
    assert read(page, "heads")["lines"] == first["lines"]
    assert page.url == address
    page.reload()
    again = read(page, "heads")
    assert (again["matrix"]["values"], again["lines"]) == (first["matrix"]["values"], first["lines"])


def test_a_bent_address_shows_something(page: Page) -> None:
    page.goto(f"{page.home}#view=nonsense&model=nobody&layer=99&head=-4&side=up&threshold=much&token=1e9")
    page.wait_for_selector("nav.views a[aria-current]")
    assert read(page, "box")["output"] == "Kedi fareyi yedi."
    page.click("nav.views >> text=Heads")
    assert read(page, "heads")["matrix"]["values"]


def test_the_page_without_an_address_opens_at_a_clear_head(page: Page) -> None:
    page.goto(str(page.home))
    assert read(page, "box")["output"] == "Kedi fareyi yedi."
    page.click("nav.views >> text=Heads")
    shown = read(page, "heads")
    assert shown["side"] == "cross"
    assert max(shown["matrix"]["values"]) > 0.8
    assert shown["sums"]


def test_light_and_dark_follow_the_system_until_one_is_chosen(browser: Browser, address: Address) -> None:
    with fresh_page(browser, address, dark=True) as page:
        open_view(page, "box")
        assert page.get_attribute("html", "data-theme") == "dark"
        page.emulate_media(color_scheme="light")
        page.wait_for_selector("html[data-theme=light]")
        page.select_option("#theme", "dark")
        page.wait_for_selector("html[data-theme=dark]")
        page.goto("about:blank")
        page.goto(str(address))  # what was chosen is remembered
        page.wait_for_selector("nav.views a[aria-current]")
        assert page.get_attribute("html", "data-theme") == "dark"


def test_the_keyboard_alone_reaches_everything(page: Page) -> None:
    open_view(page, "heads", side="cross", layer=1, head=3)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "title"
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.className + '|' + document.activeElement.tagName"))
        if reached[-1].startswith("scroller"):
            break
    assert any(name.startswith("look") for name in reached)
    assert any(name.startswith("word") for name in reached)
    page.keyboard.press("ArrowRight")  # into the first cell
    page.keyboard.press("ArrowDown")
    assert "“far”" in page.inner_text(".cell-said")
    page.keyboard.press("Enter")
    assert "token=1" in page.url
    page.focus("button.look[tabindex='0']")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    assert "heads=1.3%2C0.3" in page.url


def test_the_server_goes_away_and_comes_back(browser: Browser, subject: Subject) -> None:
    desk = Desk([subject])
    first = serving(desk)
    address = first.__enter__()
    with fresh_page(browser, address) as page:
        page.expected.extend(["ERR_CONNECTION_REFUSED", "Failed to load resource", "ERR_EMPTY", "ERR_CONNECTION"])  # type: ignore[attr-defined]
        open_view(page, "heads", side="encoder", layer=0, head=0)
        first.__exit__()
        page.wait_for_selector(".banner:not([hidden])")
        page.click(".looks .word >> nth=1")  # what is loaded goes on working
        page.mouse.move(5, 5)
        assert {link["from"] for link in read(page, "heads")["lines"]["links"]} == {1}
        page.click("nav.views >> text=Try it")
        assert read(page, "box")["output"] == "Kedi fareyi yedi."
        page.fill("textarea", "Thank you.")
        page.keyboard.press("Enter")
        page.wait_for_selector(".error:has-text('The server does not answer')")
        before = page.url.split("trace=")[1].split("&")[0]
        with serving(Desk([subject]), port=int(address.split(":")[2].strip("/"))):  # anew: it knows no trace
            page.wait_for_selector(".banner[hidden]", state="attached")
            page.wait_for_url(lambda url: url.count("trace=") == 1 and before not in url)
            page.click("nav.views a[data-name=heads]")
            page.click("button.look[data-layer='2'][data-head='2']")
            assert read(page, "heads")["layer"] == 2


def test_a_trace_is_saved_and_opened_again(page: Page, tmp_path: Path) -> None:
    open_view(page, "heads", side="cross", layer=1, head=3)
    shown = read(page, "heads")
    path = saved(page, "The trace as a file", tmp_path)
    page.goto("about:blank")
    open_view(page, "heads", side="cross", layer=1, head=3, text="Thank you.")
    page.set_input_files("#trace-file", path)
    page.wait_for_selector(f".sentence .read:has-text('{SENTENCE}')")
    assert read(page, "heads")["matrix"]["values"] == shown["matrix"]["values"]


def test_a_trace_that_cannot_be_opened_is_refused_with_a_sentence(page: Page, tmp_path: Path) -> None:
    open_view(page, "box")
    page.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(b"this is no trace at all")
    page.set_input_files("#trace-file", path)
    page.wait_for_selector(".error")
    assert page.inner_text(".error span").endswith(".")
    assert read(page, "box")["output"] == "Kedi fareyi yedi."


def test_views_are_saved_as_pictures_and_tables(page: Page, tmp_path: Path) -> None:
    for name in ("box", "model", "heads"):
        open_view(page, name, side="cross", layer=1, head=3)
        drawing = saved(page, "This view as SVG", tmp_path).read_text(encoding="utf-8")
        assert 'xmlns="http://www.w3.org/2000/svg"' in drawing
        assert "var(" not in drawing
        picture = saved(page, "This view as PNG", tmp_path).read_bytes()
        assert picture.startswith(b"\x89PNG")
        table = saved(page, "Its numbers as CSV", tmp_path).read_text(encoding="utf-8").splitlines()
        assert len(table) > 5
    head, *rows = (line.split(",") for line in table)
    shown = read(page, "heads")["matrix"]
    assert head[-1] == "weight"
    assert [float(row[-1]) for row in rows] == [float(f"{value:.6g}") for value in shown["values"]]


def test_the_whole_page_as_one_file_works_from_disk(page: Page, browser: Browser, tmp_path: Path) -> None:
    shown = {name: open_view(page, name, side="cross", layer=1, head=3) for name in ("box", "model", "heads")}
    path = saved(page, "The whole page as one HTML file", tmp_path)
    with fresh_page(browser, path.as_uri()) as file:
        for name in ("box", "model", "heads"):
            file.goto("about:blank")
            file.goto(f"{path.as_uri()}#view={name}&side=cross&layer=1&head=3")
            found = read(file, name)
            for part in ("output", "tokens", "parts", "matrix", "sums"):
                assert shortened(found.get(part)) == shortened(shown[name].get(part))
        assert SENTENCE in file.inner_text(".sentence")


def shortened(value: Any) -> Any:
    """The same with numbers of five digits: a file holds six, for it is to be small."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [shortened(each) for each in value]
    return {name: shortened(each) for name, each in value.items()} if isinstance(value, dict) else value


def saved(page: Page, entry: str, folder: Path) -> Path:
    """What an entry of the menu saves."""
    page.click(".menu summary")
    with page.expect_download() as found:
        page.click(f".menu button:has-text('{entry}')")
    path = folder / found.value.suggested_filename
    found.value.save_as(path)
    return path


def test_the_policy_allows_nothing_from_elsewhere(page: Page) -> None:
    answer = page.goto(str(page.home))
    assert answer is not None
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


def test_a_trace_shows_itself_in_a_notebook(browser: Browser, subject: Subject, tmp_path: Path) -> None:
    """In a frame without an address, a store or an origin of its own."""
    path = tmp_path / "notebook.html"
    shown = subject.trace(RunRequest(text=SENTENCE))._repr_html_()
    path.write_text(f"<!doctype html><meta charset=utf-8><title>A notebook</title>{shown}", encoding="utf-8")
    with fresh_page(browser, path.as_uri()) as page:
        page.goto(path.as_uri())
        page.wait_for_selector("iframe")
        inside = page.frames[1]
        inside.wait_for_selector(".answer .output:has-text('Kedi fareyi yedi.')")
        inside.click("nav.views a[data-name=heads]")
        inside.wait_for_selector("[data-painted]")
        assert inside.evaluate("window.regard.read('heads').side") == "cross"
