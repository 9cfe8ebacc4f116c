"""The overview of all commands in `regard --help`, in groups, with whole summaries."""

from typing import Any

import typer

GROUPS = {
    "Train": ("train", "recipes", "recipe", "settings", "cost", "compare", "ablate", "average"),
    "Use a model": (
        "translate",
        "generate",
        "fill",
        "classify",
        "tag",
        "parse",
        "search",
        "score",
        "shortlist",
        "dictionary",
    ),
    "Serve": ("serve",),
    "Look inside": ("look", "vectors"),
    "Files": ("data", "cache", "import", "export"),
}
"""The commands of each group, in the order in which they are shown. A command of no group comes last."""


class GroupedCommands(typer.core.TyperGroup):
    """A group of commands whose help lists them under headings."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for names in GROUPS.values() for name in names if name in self.commands]
        return order + [name for name in self.commands if name not in order]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        grouped = {name for names in GROUPS.values() for name in names}
        rest = tuple(name for name in self.commands if name not in grouped)
        width = max(map(len, self.commands))
        for title, names in {**GROUPS, "More": rest}.items():
            rows = [(name.ljust(width), summary(self.commands[name])) for name in names if name in self.commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class CommandsAfterModel(typer.core.TyperGroup):
    """Commands that stand after a model: `regard vectors MODEL near`. For their help the model may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if len(args) > 1 and args[0] in self.commands and args[1] == "--help":
            args = ["MODEL", *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def summary(command: Any) -> str:
    """The short help of a command: the first sentence of its help."""
    text: str = command.get_short_help_str(limit=1000)
    return text
