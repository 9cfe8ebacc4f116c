"""`regard vectors MODEL`: the model that all its commands are about, and the words that they are given."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.app import App
from regard.cli.command_groups import CommandsAfterModel
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.model.before.word_vectors.keyed_vectors import KeyedVectors

app = App(
    cls=CommandsAfterModel,
    help="Ask word vectors: neighbors, analogies, comparisons and pictures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

WordsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="WORD", help="Words. Default: standard input, one per line.")
]


class Side(StrEnum):
    """The vocabulary of a translation model."""

    source = "source"
    target = "target"


@dataclass(frozen=True)
class Asked:
    """The vectors that a command is about."""

    model: str
    side: Side

    def open(self) -> "KeyedVectors":
        from regard.task.word_vectors.opening import open_keyed_vectors

        return open_keyed_vectors(self.model, self.side.value)


@app.callback()
def vectors(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A file of word vectors (word2vec, GloVe, fastText .vec, safetensors), a run of word vectors, or any "
            "other model with token embeddings.",
        ),
    ],
    side: Annotated[
        Side, typer.Option(help="The vocabulary, for a translation model that has two; before MODEL.")
    ] = Side.source,
) -> None:
    """Ask word vectors: neighbors, analogies, comparisons and pictures."""
    context.obj = Asked(model, side)


def read_words(words: list[str] | None) -> list[str]:
    """The words of the command line, or those of standard input, on one line or on several."""
    from regard.cli.lines import read_chunks

    found = words or [word for lines in read_chunks(None, None, 1000) for line in lines for word in split_words(line)]
    if not found:
        raise UserError("No words were given; name some, or write them to standard input.")
    return found


def split_words(line: str) -> list[str]:
    """The words of a line: between tabs if it has any, so that a word may have spaces, or else between spaces."""
    return [word for word in line.split("\t") if word] if "\t" in line else line.split()
