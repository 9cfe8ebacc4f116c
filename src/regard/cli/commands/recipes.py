"""`regard recipes` and `regard recipe`."""

import json
from typing import Annotated

import typer

from regard.cli.options import JsonOption


def recipes(as_json: JsonOption = False) -> None:
    """List the included recipes: task, training time, score and data.

    The column DATA says whether a recipe runs at once: its data is included in regard, already here on this machine, a
    download when training starts, or yours to bring.
    """
    from regard.task.recipe_io import shipped_recipes

    included = shipped_recipes()
    if as_json:
        for one in included:
            expect = one.recipe.expect
            record = {
                "name": one.name,
                "task": one.recipe.task,
                "description": one.recipe.description,
                "data": one.data_availability(),
                "data_needed": one.recipe.describe_needed_data() or None,
                "expect": None if expect is None else expect.plain(),
            }
            print(json.dumps(record, ensure_ascii=False))
        return
    rows = [("RECIPE", "TASK", "TRAINING TIME", "DATA", "SCORE")]
    for one in included:
        expect = one.recipe.expect
        time, score = ("not measured", "") if expect is None else (expect.time, expect.first_score)
        rows.append((one.name, one.recipe.task, time, one.data_availability(), score))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    header, *lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    print(header.rstrip())
    for line, one in zip(lines, included, strict=True):
        print(f"{line.rstrip()}\n    {one.recipe.description}")
        if needed := one.recipe.describe_needed_data():
            print(f"    Bring your own data: {needed}")


def recipe(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="The name of a recipe, a .toml file, or a run folder.")],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print all settings, with every default filled in, without comments.")
    ] = False,
) -> None:
    """Print a recipe, as the start of one of your own.

    `regard recipe quick > my.toml` writes a copy; edit it, and train it with `regard train my.toml`.
    """
    from regard.task.recipe_io import read_recipe, recipe_text, write_recipe

    text = write_recipe(read_recipe(name)) if resolved else recipe_text(name)
    print(text, end="")
