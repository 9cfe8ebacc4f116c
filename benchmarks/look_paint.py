"""How long each view of `regard look` takes from navigation to its first complete painting, for a long text.

    python benchmarks/look_paint.py

A translator with random weights, 6 + 6 layers of 8 heads, traces an input and an output of 512 tokens. Chromium opens
each view by its address, in a page that has nothing cached; what the server computes for the view is part of the time.
A view is complete as soon as it has drawn all that `window.regard.read` tells, and painted two frames later. Reported
are the seconds of three visits, their median, and the elements of the view.
"""

import statistics
import sys
from typing import Any

import torch
from benchmarks.common import log, write_results
from playwright.sync_api import Browser, sync_playwright
from tests.page.conftest import FLAGS, ServerUrl, find_chromium, serving

from regard import load
from regard.look.models.auto import make_traced_model
from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.look.trace import Trace
from regard.model import EncoderDecoderConfig
from regard.run import LoadedModel
from regard.serve.inspector.app import AppState
from regard.task.translation.pipeline import Translator

LAYERS, HEADS, WIDTH, HIDDEN = 6, 8, 256, 1024
TOKENS = 512
VISITS = 3
VIEWS = (
    "playground",
    "heads",
    "decoding",
    "why",
    "cell",
    "model",
    "ablation",
    "embeddings",
    "positions",
    "patterns",
    "runs",
)
WORDS = ("cat", "dog", "man", "sun")
PAINTED = """name => new Promise((done) => {
  const look = () => {
    const start = performance.now();
    const complete = document.documentElement.dataset.ready === "yes" && (name === "runs" || window.regard.read(name));
    const reading = performance.now() - start; // not part of painting
    if (!complete) return void requestAnimationFrame(look);
    requestAnimationFrame(() => requestAnimationFrame(() => done({
      seconds: (performance.now() - reading) / 1000,
      elements: document.querySelectorAll(".view *").length,
    })));
  };
  look();
})"""
"""Seconds since the navigation started. The view of training runs is complete without any."""


def main() -> None:
    executable = find_chromium()
    if executable is None:
        sys.exit("Chromium was not found; install it with `make chromium`.")
    model = random_translator()
    state = AppState([model])
    with serving(state) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        trace = state.add_trace(long_trace(model))
        measure(browser, url, trace, VIEWS[0])  # the first page of a browser takes longer
        cases = []
        for view in VIEWS:
            visits = [measure(browser, url, trace, view) for _ in range(VISITS)]
            seconds = [round(visit["seconds"], 3) for visit in visits]
            case = {"view": view, "seconds": seconds, "median": statistics.median(seconds)}
            cases.append(log(case | {"elements": visits[-1]["elements"]}))
        browser.close()
    settings = {"case": "model", "layers": LAYERS, "heads": HEADS, "width": WIDTH, "tokens": TOKENS}
    print(write_results("look-paint", [settings, *cases]))


def random_translator() -> TracedModel:
    """With the tokenizer of the model that ships."""
    pretrained = load("en-tr")
    assert isinstance(pretrained, Translator)
    stack = {"layers": LAYERS, "attention": {"heads": HEADS}, "feed_forward": {"hidden": HIDDEN}}
    torch.manual_seed(1)
    sizes = {"width": WIDTH, "encoder": stack, "decoder": stack}
    model = EncoderDecoderConfig.read(pretrained.config.plain() | sizes).build()
    return make_traced_model(Translator(LoadedModel(model, pretrained.loaded.tokenizer), pretrained.decode), "random")


def long_trace(model: TracedModel) -> Trace:
    """A trace with an input and an output of 512 tokens, and with the search of the model's own beam size."""
    text = " ".join(WORDS[number % len(WORDS)] for number in range(TOKENS - 1))
    request = {"text": text, "decoding": {"max_new_tokens": TOKENS - 1}}
    trace = model.trace(RunRequest.model_validate(request))
    lengths = len(trace.header.source), len(trace.header.target)
    if max(abs(length - TOKENS) for length in lengths) > TOKENS // 50:
        raise SystemExit(f"The trace has {lengths[0]} and {lengths[1]} tokens instead of {TOKENS}.")
    return trace


def measure(browser: Browser, url: ServerUrl, trace: str, view: str) -> dict[str, Any]:
    """One visit, in a page of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"{url}#view={view}&model=random&trace={trace}&step=2")
    found: dict[str, Any] = page.evaluate(PAINTED, view)
    context.close()
    return found


if __name__ == "__main__":
    main()
