"""`regard look`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import DeviceOption, ThreadsOption, select_device
from regard.cli.processes import exit_now
from regard.errors import UserError, how_to_install
from regard.files import check_encodable

if TYPE_CHECKING:
    import torch

    from regard.look.models.traced_model import TracedModel
    from regard.look.trace import Trace

DEFAULT_PORT = 8765


def look(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|TEXT",
            help="Run folders (or RUN@STEP), pretrained models (en-tr) or saved traces; then a text or an image file.",
        ),
    ],
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Port of the page. Default: {DEFAULT_PORT}, or the next free.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser, or only print its address.")
    ] = True,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of runs whose training curves are shown. Default: runs.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Write the page as one file instead of serving it."),
    ] = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
) -> None:
    """Look inside a model: attention, beam search, head ablation.

    Opens a page in the browser with the attention of every head, the beam search as a tree, and more.
    """
    names, text = _split(arguments)
    if runs is not None and not runs.is_dir():
        raise UserError(f"--runs {runs}: this folder does not exist.")
    if html is None:
        _check_extra()
    else:
        check_encodable(html)
        _check_html(html, names, text)
    traced_models, traces = _load(names, select_device(device, threads))
    if html is not None:
        _write(html, traced_models, traces, text)
        return
    _serve(traced_models, traces, text, port, browser, runs)


def _split(arguments: list[str]) -> tuple[list[str], str | None]:
    """The models, and the text: the last argument if it is not a model."""
    from regard.run import find_model

    *first, last = arguments
    try:
        is_model = find_model(last).is_dir() or _is_trace(last)
    except OSError:  # a text is often too long for a file name
        is_model = False
    return (arguments, None) if is_model or not first else (first, last)


def _is_trace(name: str) -> bool:
    return name.endswith(".safetensors") and Path(name).is_file()


def _load(names: list[str], device: "torch.device") -> "tuple[list[TracedModel], list[Trace]]":
    from regard.look.models.auto import load_traced_model
    from regard.look.trace import load_trace

    traces = [load_trace(name) for name in names if _is_trace(name)]
    return [load_traced_model(name, device) for name in names if not _is_trace(name)], traces


def _trace(traced_model: "TracedModel", text: str | None) -> "Trace":
    from regard.look.tracing import make_request

    item = text or traced_model.example
    if not item:
        raise UserError(f"{traced_model.name} needs an input: give a text or the path of an image after its name.")
    return traced_model.trace(make_request(traced_model, item))


def _check_html(path: Path, names: list[str], text: str | None) -> None:
    """Refuse, before a model is loaded, a page that cannot be made or written."""
    from regard.files import check_output

    if len(names) != 1:
        raise UserError(f"--html writes a page about one model, but {len(names)} were given.")
    if _is_trace(names[0]) and text is not None:
        raise UserError("A saved trace contains its text; leave the text out.")
    check_output(path, map(Path, [*names, *([] if text is None else [text])]))


def _write(path: Path, traced_models: "list[TracedModel]", traces: "list[Trace]", text: str | None) -> None:
    from regard.files import write_text

    trace = traces[0] if traces else _trace(traced_models[0], text)
    write_text(path, trace.html())
    print(path)


def _serve(
    traced_models: "list[TracedModel]",
    traces: "list[Trace]",
    text: str | None,
    port: int | None,
    browser: bool,
    runs: Path | None,
) -> None:
    from urllib.parse import quote

    from regard.serve.inspector.app import AppState
    from regard.serve.inspector.hosting import run_server

    default = Path("runs")
    state = AppState(traced_models, runs if runs is not None else default if default.is_dir() else None)
    names = [state.add_trace(trace) for trace in traces]
    if traced_models and text is not None and traced_models[0].input == "image":
        names.append(state.add_trace(_trace(traced_models[0], text)))
    fragment = f"#trace={names[-1]}" if names else f"#model={quote(traced_models[0].id)}"
    if text is not None and not names:
        fragment += f"&text={quote(text)}"

    def log(url: str) -> None:
        print(url, flush=True)
        print("Press Ctrl-C to stop the server.", file=sys.stderr, flush=True)

    run_server(state, port, DEFAULT_PORT, fragment, open_browser=browser, log=log)
    exit_now()  # do not wait for computations that are still running


def _check_extra() -> None:
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError(
            f"The server needs packages that are not installed; {how_to_install('serve')}. Without them, --html FILE "
            "writes the page as a file."
        )
