"""`regard cache`: show and clear the cache."""

import json
from typing import Annotated

import typer

from regard.cli.app import App
from regard.cli.options import JsonOption

app = App(help="Show what the cache has on disk, or clear it.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def cache(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show where the cache is and what it has on disk, or clear it."""
    from regard.cache import cache_contents
    from regard.data.registry import cache_folder

    if context.invoked_subcommand is not None:
        return
    contents = cache_contents()
    if as_json:
        for kind in contents:
            record = {"kind": kind.name, "folder": str(kind.folder), "entries": len(kind.entries), "bytes": kind.bytes}
            print(json.dumps(record, ensure_ascii=False))
        return
    print(f"{cache_folder()} (set REGARD_CACHE for another folder)")
    for kind in contents:
        where = "" if kind.folder.parent == cache_folder() else f", in {kind.folder}"
        print(f"{kind.name:<12} {_megabytes(kind.bytes):>12}  {kind.description}{where}")
    print(f"{'total':<12} {_megabytes(sum(kind.bytes for kind in contents)):>12}")


@app.command("clear")
def clear(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND]...", help="What to remove: tokens, images, data … Default: everything."),
    ] = None,
) -> None:
    """Remove what is cached, without asking.

    All of it can be made or downloaded again.
    """
    from regard.cache import clear_cache

    for cleared in clear_cache(kinds or ()):
        kept = f"; {len(cleared.kept)} could not be removed, such as {cleared.kept[0]}" if cleared.kept else ""
        print(f"{cleared.kind:<12} {_megabytes(cleared.bytes):>12} removed{kept}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
