"""`regard shortlist`."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import ModelArgument, parallel_corpus
from regard.cli.progress import progress_bar

SourceOption = Annotated[
    Path | None, typer.Option(help="Source sentences to learn from, one per line; needs --target.")
]
TargetOption = Annotated[Path | None, typer.Option(help="The translations of --source, line by line.")]
PairsOption = Annotated[
    Path | None, typer.Option(help="Sentence pairs to learn from: a .tsv or .jsonl file, or a folder.")
]
DatasetOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The named dataset that these files are in (`regard data list`).")
]


def shortlist(
    model: ModelArgument,
    source: SourceOption = None,
    target: TargetOption = None,
    pairs: PairsOption = None,
    dataset: DatasetOption = None,
    candidates: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, help="Candidates: the number of target tokens kept for each source token."),
    ] = 50,
    frequent: Annotated[
        int,
        typer.Option(
            min=0, max=10_000_000, help="The number of most frequent target tokens, which are always allowed."
        ),
    ] = 100,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: the model's shortlist.safetensors.")] = None,
) -> None:
    """Learn a lexical shortlist, for faster translation.

    It is learned from parallel text, and `regard translate --shortlist` then scores only plausible words. Without
    --source, --target or --pairs it learns from the model's training data.
    """
    from regard.data.text.corpus import Corpus, corpus_files
    from regard.files import check_output
    from regard.task.translation.pipeline import Translator
    from regard.task.translation.shortlist import learn_shortlist, learned_path, save_shortlist, training_corpus

    given = parallel_corpus(pairs, source, target, "target", dataset)
    path = learned_path(model, out)
    corpus = training_corpus(model) if given is None else Corpus("given", (given,))
    check_output(path, [file for part in corpus.parts for file in corpus_files(part)])
    translator = Translator.load(model)
    with progress_bar("Aligning words", "pairs", None) as progress:
        learned = learn_shortlist(
            corpus.read(),
            translator.source_tokenizer,
            translator.target_tokenizer,
            candidates=candidates,
            frequent=frequent,
            progress=progress,
        )
    save_shortlist(learned, path)
    print(path)
