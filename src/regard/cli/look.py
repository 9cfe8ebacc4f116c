"""`regard look`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, Threads, chosen_device
from regard.cli.processes import leave_at_once
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.look.subject import Subject
    from regard.look.trace import Trace

PORT = 8765
"""Where the page is, unless that is taken."""


def look(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [TEXT]",
            help="Run folders, models that ship (en-tr) or saved traces; then a text, or the path of a picture.",
        ),
    ],
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"The page's port; {PORT} if not given, or another if taken.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")] = True,
    runs: Annotated[
        Path | None, typer.Option(help="Folder whose runs are shown, with their training curves; runs if not given.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one file that holds the whole page, and leave.")
    ] = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """See a model at work: attention of every head and step, the beam as a tree, heads switched off."""
    names, text = _split(words)
    if runs is not None and not runs.is_dir():
        raise UserError(f"--runs {runs}: there is no such folder.")
    if html is None:
        _check_extra()
    where = chosen_device(device, threads)
    subjects, traces = _opened(names, where)
    if html is not None:
        if len(subjects) + len(traces) != 1:
            raise UserError(f"--html writes a page about one model; {len(names)} were named.")
        _write(html, subjects, traces, text)
        return
    _serve(subjects, traces, text, port, browser, runs)


def _split(words: list[str]) -> tuple[list[str], str | None]:
    """Models, and the text behind them if there is one: whatever comes last and is no model."""
    from regard.run import find

    *first, last = words
    if not first or find(last).is_dir() or _is_trace(last):
        return words, None
    return first, last


def _is_trace(word: str) -> bool:
    return word.endswith(".safetensors") and Path(word).is_file()


def _opened(names: list[str], where: "torch.device") -> "tuple[list[Subject], list[Trace]]":
    from regard.look.opening import open_subject
    from regard.look.trace import load_trace

    traces = [load_trace(name) for name in names if _is_trace(name)]
    return [open_subject(name, where) for name in names if not _is_trace(name)], traces


def _traced(subject: "Subject", text: str | None) -> "Trace":
    from regard.look.tracing import request_for

    wanted = text or subject.example
    if not wanted:
        raise UserError(f"{subject.name} needs something to look at: give a text or a picture behind its name.")
    return subject.trace(request_for(subject, wanted))


def _write(path: Path, subjects: "list[Subject]", traces: "list[Trace]", text: str | None) -> None:
    from regard.files import write_text

    if traces and text is not None:
        raise UserError("A saved trace holds its text already; leave the text out.")
    trace = traces[0] if traces else _traced(subjects[0], text)
    write_text(path, trace.html())
    print(path)


def _serve(
    subjects: "list[Subject]",
    traces: "list[Trace]",
    text: str | None,
    port: int | None,
    browser: bool,
    runs: Path | None,
) -> None:
    from urllib.parse import quote

    from regard.look.readers import PicturesSubject
    from regard.serve.app import Desk
    from regard.serve.hosting import host

    usual = Path("runs")
    desk = Desk(subjects, runs if runs is not None else usual if usual.is_dir() else None)
    names = [desk.add(trace) for trace in traces]
    if subjects and text is not None and isinstance(subjects[0], PicturesSubject):
        names.append(desk.add(_traced(subjects[0], text)))
    place = f"#trace={names[-1]}" if names else f"#model={quote(subjects[0].id)}"
    if text is not None and not names:
        place += f"&text={quote(text)}"

    def say(address: str) -> None:
        print(address, flush=True)
        print("The page is there until you press Ctrl-C.", file=sys.stderr, flush=True)

    host(desk, port, PORT, place, open_browser=browser, say=say)
    leave_at_once()  # what it was in the midst of is asked for by nobody any more


def _check_extra() -> None:
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError(
            "The page needs the extra `serve`: pip install 'regard[serve]'. Without it, --html FILE writes the page "
            "as a file."
        )
