"""The commands: parse the command line, call the library, print. They contain no logic of their own.

A `UserError` becomes one line on standard error and exit code 2, and so does a path that cannot be used.
"""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.app import App
from regard.cli.command_groups import GroupedCommands
from regard.cli.commands import (
    ablate,
    average,
    cache,
    classify,
    compare,
    cost,
    data,
    dictionary,
    fill,
    generate,
    look,
    parse,
    recipes,
    score,
    search,
    serve,
    settings,
    shortlist,
    tag,
    train,
    translate,
    vectors,
)
from regard.cli.options import ModelArgument
from regard.cli.processes import clean_exit
from regard.cli.standard_streams import standard_streams
from regard.errors import UserError
from regard.files import check_encodable

app = App(
    name="regard",
    cls=GroupedCommands,
    help="Train, run, serve and look inside Transformers, from plain files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # usage errors as plain lines, for scripts and screen readers
)
app.add_typer(data.app, name="data")
app.add_typer(cache.app, name="cache")
app.add_typer(vectors.app, name="vectors")
app.command("train")(train.train)
app.command("recipes")(recipes.recipes)
app.command("recipe")(recipes.recipe)
app.command("settings")(settings.settings)
app.command("average")(average.average)
app.command("cost")(cost.cost)
app.command("compare")(compare.compare)
app.command("ablate")(ablate.ablate)
app.command("translate")(translate.translate)
app.command("shortlist")(shortlist.shortlist)
app.command("dictionary")(dictionary.dictionary)
app.command("generate")(generate.generate)
app.command("parse")(parse.parse)
app.command("fill")(fill.fill)
app.command("tag")(tag.tag)
app.command("classify")(classify.classify)
app.command("score", short_help="Score a model on test sets, or on files of your own.")(score.score)
app.command("search")(search.search)
app.command("look")(look.look)
app.command("serve")(serve.serve)


def main() -> None:
    """The entry point of the `regard` command and of `python -m regard`."""
    with clean_exit(), standard_streams():
        try:
            app()
        except UserError as error:
            print(f"regard: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        except OSError as error:  # a path that cannot even be looked up: a name that is too long, a protected folder
            if error.filename is None:
                raise
            print(f"regard: {os.fsdecode(error.filename)}: {error.strerror}.", file=sys.stderr)
            raise SystemExit(2) from None


def _version(requested: bool) -> None:
    if requested:
        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A folder with config.json and *.safetensors, an ARPA file, or a file of word vectors.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Run folder (word vectors: .safetensors file) to write; must not exist."),
    ],
) -> None:
    """Import a Hugging Face model, an ARPA file or word vectors.

    Architectures: Marian, BART, Pegasus, GPT-2, Llama, Mistral, DeepSeek, BERT, ViT. ARPA files (.arpa, .arpa.gz) hold
    n-gram models, as KenLM and SRILM write them. Word vectors are files of word2vec (text or binary), GloVe or fastText
    (.vec), which are recognized by their content and become one file that opens at once.
    """
    from regard.interop import import_arpa, import_huggingface
    from regard.interop.word_vectors import import_word_vectors, is_vector_file

    check_encodable(out)
    if not source.is_file():
        imported = import_huggingface(source, out)
    else:
        imported = (import_word_vectors if is_vector_file(source) else import_arpa)(source, out)
    print(f"{out}: {imported}")


class ExportFormat(StrEnum):
    """The formats that a model can be exported to."""

    hf = "hf"
    ctranslate2 = "ctranslate2"
    arpa = "arpa"
    word2vec = "word2vec"
    word2vec_binary = "word2vec-binary"
    glove = "glove"
    safetensors = "safetensors"


@app.command("export")
def export(
    model: ModelArgument,
    target: Annotated[
        ExportFormat,
        typer.Argument(
            metavar="FORMAT",
            help="The format: hf (transformers), ctranslate2, arpa (n-gram models; KenLM, SRILM), or for word vectors "
            "word2vec (also fastText's .vec), word2vec-binary, glove, safetensors.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Folder (arpa, word vectors: file; text also .gz) to write; must not exist."
        ),
    ],
    quantization: Annotated[
        str, typer.Option(help="Quantization of a ctranslate2 model: float32, float16, int8 …")
    ] = "float32",
) -> None:
    """Export a model, or its word vectors.

    The word vectors of a Transformer are the embeddings of those of its tokens that are whole words.
    """
    from regard.interop import export_arpa, export_ctranslate2, export_huggingface
    from regard.interop.word_vectors import VECTOR_FORMATS, export_word_vectors

    check_encodable(out)
    if target is ExportFormat.ctranslate2:
        print(f"{out}: {export_ctranslate2(model, out, quantization=quantization)}")
        return
    if quantization != "float32":
        raise UserError(f"--quantization is for ctranslate2; leave it out for {target.value}.")
    if target.value in VECTOR_FORMATS:
        from regard.task.word_vectors.opening import open_keyed_vectors

        print(f"{out}: {export_word_vectors(open_keyed_vectors(model), target.value, out)}")
        return
    print(f"{out}: {(export_huggingface if target is ExportFormat.hf else export_arpa)(model, out)}")
