"""`regard serve`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import DeviceOption, Dtype, DtypeOption, FusedOption, ThreadsOption, select_device
from regard.errors import UserError, how_to_install

if TYPE_CHECKING:
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
        int, typer.Option(min=1, max=4096, help="Outputs, times their beams, that a model decodes together.")
    ] = 64,
    cache_memory: Annotated[float, typer.Option(min=0.001, help="KV cache of a model, in GB.")] = 1.0,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait for a model.")] = 512,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The longest output, in tokens.")] = 2048,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a request may wait and take.")] = 120.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to finish requests in at shutdown.")] = 30.0,
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
    from regard.serve.models.served_model import LoadOptions

    sources = parse_sources(models, languages or ())
    limits = Limits(waiting=max_waiting, new_tokens=max_new_tokens, seconds=timeout)
    access = _access(host, _read_keys(api_key_file), no_auth, cors or [])
    listener = bind(host, port, DEFAULT_PORT)
    options = LoadOptions(
        device=select_device(device, threads),
        dtype=dtype.value,
        fused=fused,
        max_rows=batch_size,
        max_cache_bytes=round(cache_memory * 1e9),
    )
    service = Service(ModelRegistry(sources, limits, options, log_message), limits, access)
    service.models.watch()

    def announce() -> None:
        address, number = listener.getsockname()[:2]
        print(f"http://{f'[{address}]' if ':' in address else address}:{number}/", flush=True)
        print("Press Ctrl-C to stop the server.", file=sys.stderr, flush=True)

    run_service(create_service_app(service, page=page), service, listener, grace=grace, on_ready=announce)


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
