"""`regard dictionary`."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.commands.shortlist import DatasetOption, PairsOption, SourceOption, TargetOption
from regard.cli.options import ModelArgument, parallel_corpus
from regard.cli.progress import progress_bar


def dictionary(
    model: ModelArgument,
    source: SourceOption = None,
    target: TargetOption = None,
    pairs: PairsOption = None,
    dataset: DatasetOption = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: the model's dictionary.tsv.")] = None,
) -> None:
    """Learn a dictionary of words, to replace unknown ones.

    It is learned from parallel text, and `regard translate --replace-unk dictionary` looks up in it what the model's
    vocabulary lacks. Without --source, --target or --pairs it learns from the model's training data.
    """
    from regard.data.text.corpus import Corpus, corpus_files
    from regard.files import check_output
    from regard.task.translation.shortlist import learned_path, training_corpus
    from regard.task.translation.unknown_words import DICTIONARY, learn_dictionary, save_dictionary

    given = parallel_corpus(pairs, source, target, "target", dataset)
    path = learned_path(model, out, DICTIONARY)
    corpus = training_corpus(model) if given is None else Corpus("given", (given,))
    check_output(path, [file for part in corpus.parts for file in corpus_files(part)])
    with progress_bar("Aligning words", "pairs", None) as progress:
        learned = learn_dictionary(corpus.read, progress)
    save_dictionary(learned, path)
    print(f"{path}: {len(learned):,} words")
