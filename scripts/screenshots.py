"""The pictures of the page in the README: every view of the model that ships, as it looks in a browser.

python scripts/screenshots.py                    # writes docs/pictures/*.png
python scripts/screenshots.py heads --dark       # one view, in dark
"""

import argparse
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

import torch
import uvicorn
from chromium import FLAGS, find_chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from regard.look.opening import open_subject
from regard.serve.app import Desk, create_app

ROOT = Path(__file__).parent.parent
SENTENCE = "The cat ate the mouse."
STATES: dict[str, dict[str, str]] = {
    "box": {},
    "heads": {"side": "cross", "layer": "1", "head": "3", "token": "1"},
    "decoding": {"step": "2"},
    "cell": {"side": "cross", "layer": "1", "head": "3", "token": "0"},
    "model": {},
    "switch": {},
    "positions": {},
}
"""What each view shows, beside the sentence."""
TALLEST = 1500
"""Pixels of a picture; what is below is cut off."""


def main() -> int:
    options = _options()
    found = find_chromium()
    if found is None:
        print("There is no Chromium here; `make chromium` installs one where it may.", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    address = _serve(options.model)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        page = browser.new_page(
            viewport={"width": options.width, "height": 900}, color_scheme="dark" if options.dark else "light"
        )
        for name in options.views or STATES:
            path = options.out / f"{name}{'-dark' if options.dark else ''}.png"
            _photograph(page, address, name, path)
            print(path)
        browser.close()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("views", nargs="*", choices=[[], *STATES], metavar="VIEW", help=f"of {', '.join(STATES)}; all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures", help="the folder they are written into")
    parser.add_argument("--model", default="en-tr")
    parser.add_argument("--width", type=int, default=1280, help="of the browser, in pixels")
    parser.add_argument("--dark", action="store_true")
    return parser.parse_args()


def _serve(model: str) -> str:
    """A server in a thread of its own. Gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_app(Desk([open_subject(model)], Path("runs")))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{port}/"


def _photograph(page: Page, address: str, view: str, path: Path) -> None:
    page.goto("about:blank")  # an address that differs behind the # alone would not load anew
    page.goto(f"{address}#{urlencode({'view': view, 'text': SENTENCE, **STATES[view]})}")
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_timeout(1500)  # views fetch what they show
    page.screenshot(path=path, full_page=True)
    with Image.open(path) as taken:
        cut = taken.convert("RGB").crop((0, 0, taken.width, min(TALLEST, taken.height)))
    cut.quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
