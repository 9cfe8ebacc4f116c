"""`regard score`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.decoding import change_decode, decode_changes
from regard.cli.options import (
    BeamSizeOption,
    DecodeOverridesOption,
    DeviceOption,
    JsonOption,
    LengthPenaltyOption,
    MinLengthOption,
    NoRepeatNgramOption,
    SplitOption,
    ThreadsOption,
    parallel_corpus,
)
from regard.cli.processes import TIMEOUT, ProcessesOption, join_process_group, launch_processes, report_errors_once
from regard.cli.progress import progress_bar
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.task.evaluate import TextTestSet
    from regard.train.distributed.process_group import ProcessGroup

Print = Callable[[str, dict[str, Any]], None]
"""Prints a result, given as text and as a JSON record."""


def score(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run folder (or RUN@STEP), a pretrained model, or a file of outputs."),
    ],
    against: Annotated[str | None, typer.Option(help="A second model to compare with, by paired bootstrap.")] = None,
    test: Annotated[str | None, typer.Option(help="One of the recipe's test sets. Default: all.")] = None,
    source: Annotated[Path | None, typer.Option(help="Your own sentences to translate, one per line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Their reference translations, line by line.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Both sides in one file: .tsv or .jsonl.")] = None,
    tokenized: Annotated[bool, typer.Option("--tokenized", help="The text is already tokenized.")] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    sentences: Annotated[bool, typer.Option("--sentences", help="Also score every sentence.")] = False,
    samples: Annotated[int, typer.Option(min=1, max=1_000_000, help="Bootstrap samples for --against.")] = 1000,
    beam_size: BeamSizeOption = None,
    min_length: MinLengthOption = None,
    length_penalty: LengthPenaltyOption = None,
    no_repeat_ngram: NoRepeatNgramOption = None,
    overrides: DecodeOverridesOption = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    processes: ProcessesOption = None,
) -> None:
    """Score a model on the test sets of its recipe; translations also on your own files.

    Translations get BLEU and chrF by sacreBLEU with their signatures; other tasks have their own metrics. Lines of a
    recipe's test sets are translated as they are, as its scores were measured; those of your own files are split into
    sentences, as `regard translate` does it. --split and --no-split choose either.
    """
    from regard.files import check_plain_file
    from regard.task.evaluate import TextTestSet, compares_texts, recipe_test_sets, recorded_task
    from regard.task.translation.recipe import ScoreConfig
    from regard.train.distributed.process_group import world_size

    print_result = _print_json if as_json else _print_text
    with report_errors_once():
        changes = decode_changes(
            overrides,
            beam_size=beam_size,
            min_length=min_length,
            length_penalty=length_penalty,
            no_repeat_ngram_size=no_repeat_ngram,
        )
    if not compares_texts(model):
        with report_errors_once():
            for_translations = {
                "--against": against,
                "--source": source,
                "--reference": reference,
                "--pairs": pairs,
                "--tokenized": tokenized or None,
                "--lowercase": lowercase or None,
                "--sentences": sentences or None,
                "--split": split,
            }
            _refuse(for_translations, f"{model} is a model for {getattr(recorded_task(model), 'name', None)}")
            launch_processes(processes, device, threads)
        with join_process_group(device, threads, TIMEOUT) as (process_group, own_device):
            _evaluate(print_result, model, test, changes, own_device, process_group)
        return
    with report_errors_once():
        given = parallel_corpus(pairs, source, reference, "reference")
        if given is not None and test is not None:
            raise UserError("--test names a test set of the recipe; leave it out, or the files.")
        if (processes or world_size()) > 1:  # each process reads them
            for path in (pairs, source, reference):
                if path is not None:
                    check_plain_file(path)
        tests = recipe_test_sets(model, test) if given is None else [TextTestSet.read(given, ScoreConfig())]
        _check_shards(tests, processes or world_size())
        launch_processes(processes, device, threads)
    models = [model] if against is None else [model, against]
    with join_process_group(device, threads, TIMEOUT) as (process_group, own_device):
        for one in tests:
            splits = given is not None if split is None else split
            outputs = _translate(one, models, changes, splits, own_device, process_group)
            if process_group.is_rank0:
                options = {"tokenized": one.score.tokenized or tokenized, "lowercase": one.score.lowercase or lowercase}
                _print_scores(print_result, one, outputs, options, splits, sentences=sentences)
                if against is not None:
                    _compare(print_result, one, outputs, options, samples)


def _refuse(options: Mapping[str, object], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise UserError(f"{name} is for translations, but {reason}; leave it out.")


def _evaluate(
    print_result: Print,
    model: str,
    test: str | None,
    changes: dict[str, Any],
    device: "torch.device",
    process_group: "ProcessGroup",
) -> None:
    """Evaluate a model whose outputs are not compared with references, on the test sets of its recipe."""
    from regard.task.evaluate import evaluate

    scores = evaluate(model, test, decode=changes, device=device, process_group=process_group)
    for name, scored in scores.items():
        if process_group.is_rank0:
            print_result(f"{model} on {name}: {scored}", {"model": model, "test": name} | scored.rounded())


def _check_shards(tests: Sequence["TextTestSet"], processes: int) -> None:
    for one in tests:
        if 1 < processes > len(one.sources):
            raise UserError(f"{one.name} has {len(one.sources)} sentences, too few for {processes} processes.")


def _translate(
    test: "TextTestSet",
    models: Sequence[str],
    changes: dict[str, Any],
    splits: bool,
    device: "torch.device",
    process_group: "ProcessGroup",
) -> dict[str, list[str]]:
    """The outputs of each model, gathered from all processes."""
    from regard.task.evaluate import is_output_file, make_outputs
    from regard.train.distributed.process_group import SINGLE_PROCESS

    outputs = {}
    for name in models:
        group = SINGLE_PROCESS if is_output_file(Path(name)) else process_group  # a file already has all its lines
        sources = group.shard(test.sources)
        with progress_bar(f"Translating {test.name}", len(sources), visible=process_group.is_rank0) as progress:
            mine = make_outputs(
                name,
                sources,
                lambda config: change_decode(config, changes),
                split=splits,
                device=device,
                progress=progress,
            )
            outputs[name] = group.gather_interleaved(mine)
    return outputs


def _print_scores(
    print_result: Print,
    test: "TextTestSet",
    outputs: Mapping[str, list[str]],
    options: dict[str, bool],
    splits: bool,
    *,
    sentences: bool,
) -> None:
    from regard.score import score_translations
    from regard.task.evaluate import is_output_file

    for name, translations in outputs.items():
        scored = score_translations(translations, test.references, **options)
        is_file = is_output_file(Path(name))
        split = "" if is_file else f"\n  lines {'split into sentences' if splits else 'as they are (--no-split)'}"
        text = (
            f"{name} on {test.name} ({scored.sentences:,} sentences): BLEU {scored.bleu:.2f}, chrF {scored.chrf:.2f}"
            f"\n  BLEU {scored.bleu_signature}\n  chrF {scored.chrf_signature}{split}"
        )
        rounded = {"bleu": round(scored.bleu, 2), "chrf": round(scored.chrf, 2)}
        record = {"model": name, "test": test.name} | asdict(scored) | rounded
        print_result(text, record if is_file else record | {"split": splits})
        if sentences:
            _print_sentence_scores(print_result, test, translations, options)


def _print_sentence_scores(
    print_result: Print, test: "TextTestSet", translations: list[str], options: dict[str, bool]
) -> None:
    from regard.score import score_sentences

    scores = score_sentences(translations, test.references, **options)
    rows = zip(test.sources, test.references, translations, scores, strict=True)
    for number, (source, reference, output, (bleu, chrf)) in enumerate(rows, start=1):
        record: dict[str, Any] = {"sentence": number, "bleu": round(bleu, 2), "chrf": round(chrf, 2)}
        record |= {"source": source, "reference": reference, "output": output}
        print_result(f"{number}\tBLEU {bleu:.1f}\tchrF {chrf:.1f}\t{source}\t{reference}\t{output}", record)


def _compare(
    print_result: Print,
    test: "TextTestSet",
    outputs: Mapping[str, list[str]],
    options: dict[str, bool],
    samples: int,
) -> None:
    from regard.score import compare_translations

    names, systems = list(outputs), list(outputs.values())
    if len(names) == 1:  # a model against itself
        names, systems = names * 2, systems * 2
    result = compare_translations(systems[0], systems[1], test.references, samples=samples, **options)
    verdict = "significant" if result.p_value < 0.05 else "not significant"
    text = (
        f"{names[0]} {result.first:.2f} ± {result.first_range:.2f}, {names[1]} {result.second:.2f} ± "
        f"{result.second_range:.2f}: p = {result.p_value:.3f} ({samples:,} samples); the difference is {verdict}."
    )
    rounded = {"first": round(result.first, 2), "second": round(result.second, 2)}
    print_result(text, {"test": test.name, "models": names} | asdict(result) | rounded)


def _print_text(text: str, record: dict[str, Any]) -> None:
    print(text)


def _print_json(text: str, record: dict[str, Any]) -> None:
    print(json.dumps(record, ensure_ascii=False))
