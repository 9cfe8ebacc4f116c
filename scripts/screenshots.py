"""Take the screenshots of the page for the README and the docs: every view of the pretrained model.

python scripts/screenshots.py                    # writes docs/images/*.png
python scripts/screenshots.py heads --dark       # one view, with the dark color scheme
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

from regard.look.models.auto import load_traced_model
from regard.serve.inspector.app import AppState, create_app

ROOT = Path(__file__).parent.parent
SENTENCE = "The cat ate the mouse."
VIEWS: dict[str, dict[str, str]] = {
    "playground": {},
    "heads": {"attention_type": "cross", "layer": "1", "head": "3", "token": "1"},
    "decoding": {"step": "2"},
    "why": {"text": "He sat on the bank of the river.", "position": "5", "contrast": "kıyısına"},
    "cell": {"attention_type": "cross", "layer": "1", "head": "3", "token": "0"},
    "model": {},
    "ablation": {},
    "positions": {},
    "embeddings": {"token": "1"},
    "side-by-side": {
        "view": "heads",
        "text": "The light meal is good.",
        "second": '{"text": "A light meal is good."}',
        "attention_type": "encoder",
        "layer": "3",
        "head": "1",
    },
}
"""The views, each with the URL parameters of its selection."""
MAX_HEIGHT = 1500
"""Height of a screenshot in pixels; the rest is cropped."""


def main() -> int:
    options = _parse_arguments()
    browser_path = find_chromium()
    if browser_path is None:
        print("Chromium is not installed; run `make chromium`.", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    url = _serve(options.model)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        page = browser.new_page(
            viewport={"width": options.width, "height": 900}, color_scheme="dark" if options.dark else "light"
        )
        for view in options.views or VIEWS:
            path = options.out / f"{view}{'-dark' if options.dark else ''}.png"
            _take_screenshot(page, url, view, path)
            print(path)
        browser.close()
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "views", nargs="*", choices=[[], *VIEWS], metavar="VIEW", help=f"{', '.join(VIEWS)} (default: all)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="output folder")
    parser.add_argument("--model", default="en-tr", help="run folder, or name of a pretrained model (default: en-tr)")
    parser.add_argument("--width", type=int, default=1280, help="width of the browser in pixels (default: 1280)")
    parser.add_argument("--dark", action="store_true", help="use the dark color scheme")
    return parser.parse_args()


def _serve(model: str) -> str:
    """Start the server in a thread. Returns its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = create_app(AppState([load_traced_model(model)], Path("runs")))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{port}/"


def _take_screenshot(page: Page, url: str, view: str, path: Path) -> None:
    page.goto("about:blank")  # a URL that differs only in its fragment would not reload the page
    page.goto(f"{url}#{urlencode({'view': view, 'text': SENTENCE} | VIEWS[view])}")
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_timeout(1500)  # views fetch their data
    page.screenshot(path=path, full_page=True)
    with Image.open(path) as image:
        cropped = image.convert("RGB").crop((0, 0, image.width, min(MAX_HEIGHT, image.height)))
    cropped.quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
