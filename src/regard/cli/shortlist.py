"""`regard shortlist`."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import given_pairs
from regard.cli.progress import counting


def shortlist(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, or a model that ships: en-tr.")],
    source: Annotated[Path | None, typer.Option(help="Sentences to learn from, one a line …")] = None,
    target: Annotated[Path | None, typer.Option(help="… and their translations, line by line.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Both in one: a .tsv or .jsonl file, or a folder.")] = None,
    data: Annotated[str | None, typer.Option(metavar="SET", help="The named data set that these are in.")] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Target tokens kept for each source token.")] = 50,
    frequent: Annotated[int, typer.Option(min=0, help="The most frequent target tokens that may always come.")] = 100,
    out: Annotated[Path | None, typer.Option(help="File to write; shortlist.safetensors of the model if none.")] = None,
) -> None:
    """Learn which words can translate which, so that `regard translate --shortlist` scores no others.

    Without --source, --target or --pairs it learns from what the model was trained on.
    """
    from regard.data.corpus import Corpus
    from regard.task import load_translator
    from regard.task.shortlist import learn_shortlist, save_shortlist, shortlist_place, training_corpus

    given = given_pairs(pairs, source, target, "target", data)
    place = shortlist_place(model, out)
    translator = load_translator(model)
    corpus = training_corpus(model) if given is None else Corpus("given", (given,))
    with counting("pairs", None) as progress:
        learnt = learn_shortlist(
            corpus.read(),
            translator.source_text,
            translator.target_text,
            candidates=candidates,
            frequent=frequent,
            progress=progress,
        )
    save_shortlist(learnt, place)
    print(place)
