"""`regard score`."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.decoding import change_decode, decode_changes
from regard.cli.options import (
    BeamSizeOption,
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
from regard.cli.progress import offset_progress, progress_bar
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.data.text.corpus import CorpusConfig
    from regard.task.translation.evaluate import TextTestSet
    from regard.train.distributed.process_group import ProcessGroup

Print = Callable[[str, dict[str, Any]], None]
"""Prints a result, given as text and as a JSON record."""


def score(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run folder (or RUN@STEP), a pretrained model, a file of outputs, or a file of word vectors.",
        ),
    ],
    data: Annotated[
        Path | None, typer.Option(help="Your own file or folder to test on, of the kind that the model is trained on.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="One of the recipe's test sets. Default: all.")] = None,
    logprobs: Annotated[
        bool,
        typer.Option("--logprobs", help="Forced scores: the log-probability of each given translation, or line."),
    ] = False,
    against: Annotated[
        str | None, typer.Option(help="A second model to compare with: translations by paired bootstrap resampling.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Your own sentences to translate, one per line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Their reference translations, line by line.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Both sides in one file; the same as --data.")] = None,
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="Tokenized BLEU: the text is already tokenized, and compared as it is.")
    ] = False,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Case-insensitive BLEU and chrF: both sides are lowercased first.")
    ] = False,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Sentence-level BLEU and chrF: also print those of every sentence.")
    ] = False,
    samples: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="The number of bootstrap samples, for --against.")
    ] = 1000,
    beam_size: BeamSizeOption = None,
    min_length: MinLengthOption = None,
    length_penalty: LengthPenaltyOption = None,
    no_repeat_ngram: NoRepeatNgramOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A decoding setting of a recipe, such as decode.beam_size=8, or one that says how --data is read, "
            "such as data.columns=[3,1].",
        ),
    ] = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    processes: ProcessesOption = None,
) -> None:
    """Score a model of any task on the test sets of its recipe, or on your own data.

    Translations get BLEU and chrF by sacreBLEU with their signatures, language models perplexity and bits per byte,
    classifiers accuracy (with --json also precision, recall and F1 of each label), parsers bracket F1, word vectors
    correlations with judgments of similarity and accuracies of analogies (--test wordsim-353, simlex-999, men,
    analogies-30000 or analogies; with --against, both are tested on the words that both know). Your own data
    is read as the recipe's is. Lines of a recipe's test sets are translated as they are, as its scores were measured;
    those of your own files are split into sentences, as `regard translate` does it. --split and --no-split choose
    either.

    With --logprobs, nothing is translated: one line per given pair has the log-probability that the model gives to the
    translation, its perplexity and its number of tokens. For a language model, each line of the file is scored.
    """
    from regard.cli.commands.score_vectors import score_vectors
    from regard.task.evaluate import compares_texts, task_of_model
    from regard.task.translation.evaluate import TextTestSet, recipe_test_sets
    from regard.task.word_vectors.opening import has_word_vectors

    command = _Command(model, _print_json if as_json else _print_text, processes, device, threads)
    translation_options: dict[str, object] = {
        "--against": against,
        "--tokenized": tokenized or None,
        "--lowercase": lowercase or None,
        "--sentences": sentences or None,
        "--split": split,
    }
    with report_errors_once():
        changes = decode_changes(
            [one for one in overrides or () if not _is_data(one)],
            beam_size=beam_size,
            min_length=min_length,
            length_penalty=length_penalty,
            no_repeat_ngram_size=no_repeat_ngram,
        )
        settings = _data_settings(overrides, given=bool(data or pairs or source or reference))
        command.check_files(data, pairs, source, reference)
        if has_word_vectors(model) and not (pairs or source or reference):
            _refuse(translation_options | {"--against": None}, "is for translations, but these are word vectors")
            _refuse({"--set": overrides, "--logprobs": logprobs or None, "--processes": processes}, "is for models")
            score_vectors(model, test, data, against, command.print_result)
            return
        texts = compares_texts(model)
        if not texts and not logprobs:
            files = {"--source": source, "--reference": reference, "--pairs": pairs}
            name = getattr(task_of_model(model), "name", "another task")
            _refuse(translation_options | files, f"is for translations, but {model} is a model for {name}")
    if not texts and not logprobs:
        command.evaluate(test, data, settings, changes)
        return
    with report_errors_once():
        given = _given_files(data, pairs, source, reference, test, settings)
        if logprobs:
            _refuse(translation_options | {"--test": test}, "has no effect with --logprobs")
            _refuse(
                {f"decode.{key}": value for key, value in changes.items()}, "is for a search, and --logprobs has none"
            )
            if given is None:
                raise UserError("--logprobs scores given translations or lines; name their file with --data.")
    if logprobs:
        assert given is not None
        command.score_given(given)
        return
    with report_errors_once():
        tests = recipe_test_sets(model, test) if given is None else [TextTestSet.given(given)]
        tests = [one.updated(split, tokenized=tokenized, lowercase=lowercase) for one in tests]
        command.check_shards(tests)
    models = [model] if against is None else [model, against]
    for one, outputs in command.translations(tests, models, changes):
        _print_scores(command.print_result, one, outputs, sentences=sentences)
        if against is not None:
            _compare(command.print_result, one, outputs, samples)


@dataclass(frozen=True)
class _Command:
    """What all kinds of scores have in common: the model, how results are printed, and where the model runs."""

    model: str
    print_result: Print
    processes: int | None
    device: str
    threads: int | None

    def check_files(self, *paths: Path | None) -> None:
        """Refuse what several processes cannot read: each of them opens the files."""
        from regard.files import check_plain_file
        from regard.train.distributed.process_group import world_size

        if (self.processes or world_size()) > 1:
            for path in paths:
                if path is not None:
                    check_plain_file(path)

    @contextmanager
    def join(self) -> Iterator["tuple[ProcessGroup, torch.device]"]:
        """Launch the processes that are asked for; this process' group and device."""
        with report_errors_once():
            launch_processes(self.processes, self.device, self.threads)
        with join_process_group(self.device, self.threads, TIMEOUT) as joined:
            yield joined

    def evaluate(self, test: str | None, data: Path | None, settings: dict[str, Any], changes: dict[str, Any]) -> None:
        """Have the model's task test it."""
        from regard.task.evaluate import evaluate_task

        with self.join() as (process_group, device):
            where: dict[str, Any] = {"device": device, "process_group": process_group}
            found = evaluate_task(self.model, test, data=data, settings=settings, decode=changes, **where)
            for name in found.scores:
                if process_group.is_rank0:
                    self.print_result(
                        f"{self.model} on {found.describe(name)}", {"model": self.model} | found.record(name)
                    )

    def score_given(self, given: "CorpusConfig") -> None:
        """Print the forced score of each pair or line."""
        from regard.task.forced_scoring import score_given

        with (
            self.join() as (process_group, device),
            progress_bar("Scoring", "lines", None, visible=process_group.is_rank0) as progress,
        ):
            for one in score_given(self.model, given, device=device, process_group=process_group, progress=progress):
                if process_group.is_rank0:
                    text = f"{one.logprob:.4f}\t{one.perplexity:.4f}\t{len(one.tokens)}"
                    self.print_result(text, one.record())

    def check_shards(self, tests: Sequence["TextTestSet"]) -> None:
        """Refuse more processes than a test set has sentences."""
        from regard.train.distributed.process_group import world_size

        for one in tests:
            one.check_processes(self.processes or world_size())

    def translations(
        self, tests: Sequence["TextTestSet"], models: Sequence[str], changes: dict[str, Any]
    ) -> Iterator[tuple["TextTestSet", dict[str, list[str]]]]:
        """Each test set with the outputs of each model; only in the process that prints them."""
        with self.join() as (process_group, device):
            for one in tests:
                outputs = {}
                for name in models:
                    visible = process_group.is_rank0
                    with progress_bar(
                        f"Translating {one.name}", "sentences", len(one.sources), visible=visible
                    ) as progress:
                        outputs[name] = one.translate(
                            name,
                            lambda config: change_decode(config, changes),
                            device=device,
                            process_group=process_group,
                            progress=offset_progress(progress, 0, process_group.size),
                        )
                if process_group.is_rank0:
                    yield one, outputs


def _is_data(override: str) -> bool:
    return override.strip().startswith("data.")


def _data_settings(overrides: list[str] | None, *, given: bool) -> dict[str, Any]:
    """The settings that say how a user's data is read."""
    from regard.task.recipe_io import apply_override

    values: dict[str, Any] = {}
    for override in overrides or ():
        if _is_data(override):
            if not given:
                raise UserError(f"--set {override} says how your own data is read; leave it out, or give --data.")
            values = apply_override(values, override)
    settings: dict[str, Any] = values.get("data", {})
    return settings


def _given_files(
    data: Path | None,
    pairs: Path | None,
    source: Path | None,
    reference: Path | None,
    test: str | None,
    settings: dict[str, Any],
) -> "CorpusConfig | None":
    """The pairs, or lines, that the options name."""
    from regard.config import ConfigError
    from regard.task.evaluate import refuse_both

    if data is not None and pairs is not None:
        raise UserError("--data and --pairs both name the data; give one of the two.")
    given = parallel_corpus(pairs if data is None else data, source, reference, "reference")
    if given is None:
        return None
    refuse_both(test)
    try:
        return type(given)(**given.plain() | settings)
    except ConfigError as error:
        raise ConfigError(f"data.{error.key}", error.problem) from None


def _refuse(options: Mapping[str, object], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise UserError(f"{name} {reason}; leave it out.")


def _print_scores(
    print_result: Print, test: "TextTestSet", outputs: Mapping[str, list[str]], *, sentences: bool
) -> None:
    from regard.task.translation.evaluate import is_output_file

    for name, translations in outputs.items():
        scored = test.score_outputs(translations)
        is_file = is_output_file(Path(name))
        split = "" if is_file else f"\n  lines {'split into sentences' if test.split else 'as they are (--no-split)'}"
        text = (
            f"{name} on {test.name} ({scored.sentences:,} sentences): BLEU {scored.bleu:.2f}, chrF {scored.chrf:.2f}"
            f"\n  BLEU {scored.bleu_signature}\n  chrF {scored.chrf_signature}{split}"
        )
        record = {"model": name, "test": test.name} | scored.rounded()
        print_result(text, record if is_file else record | {"split": test.split})
        if sentences:
            _print_sentence_scores(print_result, test, translations)


def _print_sentence_scores(print_result: Print, test: "TextTestSet", translations: list[str]) -> None:
    from regard.score import score_sentences

    scores = score_sentences(translations, test.references, **test.score.plain())
    rows = zip(test.sources, test.references, translations, scores, strict=True)
    for number, (source, reference, output, (bleu, chrf)) in enumerate(rows, start=1):
        record: dict[str, Any] = {"sentence": number, "bleu": round(bleu, 2), "chrf": round(chrf, 2)}
        record |= {"source": source, "reference": reference, "output": output}
        print_result(f"{number}\tBLEU {bleu:.1f}\tchrF {chrf:.1f}\t{source}\t{reference}\t{output}", record)


def _compare(print_result: Print, test: "TextTestSet", outputs: Mapping[str, list[str]], samples: int) -> None:
    from regard.score import compare_translations

    names, systems = list(outputs), list(outputs.values())
    if len(names) == 1:  # a model against itself
        names, systems = names * 2, systems * 2
    result = compare_translations(systems[0], systems[1], test.references, samples=samples, **test.score.plain())
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
