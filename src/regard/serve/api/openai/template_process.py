"""The process that renders chat templates, so that one that never ends, or fills the memory, can be killed.

A template is code that came with a model's files. Jinja2's sandbox keeps it from reaching anything, but not from
looping: nested loops, filters and growing strings escape any count. So it runs in a process that has a deadline and a
memory limit, and that starts fast, because it imports nothing of regard.

It reads a JSON object a line, {"template", "variables"}, and answers each with {"text"} or {"error"}. It ends when its
input ends, so it does not outlive the server.
"""

import json
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 1.0
"""How long a template may take."""
MEMORY_BYTES = 512 << 20
"""How much memory the process may have."""
MAX_CHARACTERS = 1_000_000
"""The longest text that a template may write."""


def main() -> None:
    """Answer requests until the input ends."""
    _limit_memory()
    print("ready", flush=True)
    for line in sys.stdin:
        with _Alarm():
            answer = json.dumps(render(**json.loads(line)))
        print(answer, flush=True)


def render(template: str, variables: dict[str, Any]) -> dict[str, str]:
    """The text of a template, or why there is none."""
    try:
        pieces, length = [], 0
        for piece in _compile(template).generate(**variables):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_CHARACTERS:
                return {"error": f"it writes more than {MAX_CHARACTERS:,} characters"}
        return {"text": "".join(pieces)}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except Exception as error:  # a template can raise anything
        return {"error": f"{type(error).__name__}: {error}"[:300]}


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    """With what templates of transformers can use."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Without the escapes that HTML needs."""
    return json.dumps(value, ensure_ascii=options.get("ensure_ascii", False), indent=indent)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


class _Alarm:
    """Ends the process if the block takes too long, also when there is no server anymore that would."""

    def __enter__(self) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, SECONDS)

    def __exit__(self, *_: object) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main()
