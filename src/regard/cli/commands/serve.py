"""`regard serve`."""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import DeviceOption, Dtype, DtypeOption, FusedOption, ThreadsOption, select_device
from regard.cli.processes import exit_now
from regard.errors import UserError, how_to_install

if TYPE_CHECKING:
    import socket

    from regard.serve.api.access import Access

DEFAULT_PORT = 8000
KEYS_VARIABLE = "REGARD_API_KEYS"


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="Run folders (or RUN@STEP) and pretrained models (en-tr). NAME=MODEL serves one under another name.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen on. Others than this machine's own need --api-key-file.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Default: {DEFAULT_PORT}, or the next free.")
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"API keys that clients need, one a line. Also: {KEYS_VARIABLE}, with commas."
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let everyone who reaches a public --host use the server, without a key.")
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="An origin whose pages may use the API (CORS). Repeatable."),
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=SOURCE:TARGET", help="The languages of a translator: en-tr=en:tr. Repeatable."),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="The page of `regard look` at /, to try the models in a browser.")
    ] = True,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65536,
            help="Outputs, times their beams, that a model decodes together. Default: 640 on a CPU, 2048 on a GPU.",
        ),
    ] = None,
    cache_memory: Annotated[float, typer.Option(min=0.001, help="KV cache of a model, in GB.")] = 1.0,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait for a model.")] = 512,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The longest output, in tokens.")] = 2048,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a request may wait and take.")] = 120.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to finish requests in at shutdown.")] = 30.0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, help="Processes that share the work, on GPUs one each. One that dies is replaced."
        ),
    ] = None,
    fused: FusedOption = None,
    dtype: DtypeOption = Dtype.float32,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Serve models over HTTP, to existing clients as well.

    Speaks its own JSON, and the protocols of OpenAI, LibreTranslate and DeepL.
    """
    _check_extra()
    from regard.serve.api.app import create_service_app
    from regard.serve.api.hosting import run_service
    from regard.serve.api.logs import log_message
    from regard.serve.api.service import Service
    from regard.serve.limits import Limits
    from regard.serve.listening import bind
    from regard.serve.models.registry import ModelRegistry, parse_sources
    from regard.serve.models.served_model import MAX_ROWS, MAX_ROWS_GPU, LoadOptions
    from regard.serve.workers.devices import worker_devices
    from regard.serve.workers.member import join_supervisor

    sources = parse_sources(models, languages or ())
    limits = Limits(waiting=max_waiting, new_tokens=max_new_tokens, seconds=timeout)
    access = _access(host, _read_keys(api_key_file), no_auth, cors or [])
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a model that is being loaded is the newest already
    member = join_supervisor()
    if workers is not None and member is None:
        _supervise(bind(host, port, DEFAULT_PORT), worker_devices(workers, device), threads, grace)
    listener = member.listener if member is not None else bind(host, port, DEFAULT_PORT)
    selected = select_device(member.device if member is not None else device, threads)
    options = LoadOptions(
        device=selected,
        dtype=dtype.value,
        fused=fused,
        max_rows=batch_size or (MAX_ROWS_GPU if selected.type == "cuda" else MAX_ROWS),
        max_cache_bytes=round(cache_memory * 1e9),
    )
    service = Service(ModelRegistry(sources, limits, options, log_message), limits, access)
    service.models.watch()
    run_service(
        create_service_app(service, page=page and workers in (None, 1)),  # its traces are in one process
        service,
        listener,
        grace=grace,
        on_ready=member.report_ready if member is not None else lambda: _announce(listener),
        shared=member is not None,
    )
    exit_now()  # a thread may still compute what was given up


def _supervise(listener: "socket.socket", devices: list[str], threads: int | None, grace: float) -> None:
    """Run this command in several processes on one socket until they are told to stop, and exit."""
    import tempfile

    from regard.serve.api.logs import log_message
    from regard.serve.api.metrics import FOLDER_VARIABLE, forget_process
    from regard.serve.workers.supervisor import Plan, Supervisor

    with tempfile.TemporaryDirectory(prefix="regard-metrics-") as folder:
        variables = {FOLDER_VARIABLE: folder}
        if threads is None and "OMP_NUM_THREADS" not in os.environ:  # otherwise they would compete for the same cores
            variables["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // len(devices)))
        supervisor = Supervisor(
            Plan([sys.executable, "-m", "regard", *sys.argv[1:]], devices, variables, grace),
            listener,
            on_ready=lambda: _announce(listener),
            on_exit=lambda process: forget_process(process, folder),
            log=log_message,
        )
        code = supervisor.run()
    raise typer.Exit(code)


def _announce(listener: "socket.socket") -> None:
    """Say where the server is, once it answers."""
    address, number = listener.getsockname()[:2]
    print(f"http://{f'[{address}]' if ':' in address else address}:{number}/", flush=True)
    print("Press Ctrl-C to stop the server.", file=sys.stderr, flush=True)


def _access(host: str, keys: list[str], no_auth: bool, origins: list[str]) -> "Access":
    from regard.serve.api.access import Access
    from regard.serve.listening import is_loopback

    if keys and no_auth:
        raise UserError("--no-auth lets everyone in, and there are API keys; leave out one of the two.")
    if not is_loopback(host) and not keys and not no_auth:
        raise UserError(
            f"--host {host} can be reached from other machines; require a key with --api-key-file FILE (or "
            f"{KEYS_VARIABLE}), or let everyone in with --no-auth."
        )
    return Access.with_keys(keys, local_only=is_loopback(host) and not keys, origins=origins)


def _read_keys(path: Path | None) -> list[str]:
    from regard.data.text.lines import read_lines

    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    if path is not None:
        found = [line.strip() for line in read_lines(path) if line.strip()]
        if not found:
            raise UserError(f"--api-key-file {path}: there is no key in it; write one key on each line.")
        keys += found
    return keys


def _check_extra() -> None:
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError(f"The server needs packages that are not installed; {how_to_install('serve')}.")
