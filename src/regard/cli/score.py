"""`regard score`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Device, Threads, given_pairs
from regard.cli.processes import PATIENCE, Processes, one_voice, start_others, taking_part
from regard.cli.progress import counting
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.task.scoring import Test
    from regard.train.world import World


def score(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a shipped model, or a file of outputs.")],
    against: Annotated[str | None, typer.Option(help="A second model: do the two really differ?")] = None,
    test: Annotated[str | None, typer.Option(help="Which of the model's own test sets; all if not given.")] = None,
    source: Annotated[Path | None, typer.Option(help="Sentences to translate, one a line …")] = None,
    reference: Annotated[Path | None, typer.Option(help="… and what they should become.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Both in one file: .tsv or .jsonl.")] = None,
    tokenised: Annotated[bool, typer.Option("--tokenised", help="Text is tokenised already.")] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Case does not count.")] = False,
    sentences: Annotated[bool, typer.Option("--sentences", help="Score every sentence by itself, too.")] = False,
    samples: Annotated[int, typer.Option(min=1, help="Samples of the paired bootstrap (--against).")] = 1000,
    beams: Annotated[int | None, typer.Option(min=1, help="1 is greedy; the model's own number if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    processes: Processes = None,
) -> None:
    """Score a model on its own test sets; translations by sacreBLEU, with files of your own, too.

    Of translations it is BLEU and chrF, each with its signature; other tasks have measures of their own.
    """
    from regard.task.scoring import given_test_set, outputs, own_test_sets
    from regard.task.testing import task_of
    from regard.task.translation_recipe import ScoreConfig
    from regard.train.world import ALONE, joined_size

    show = _show_json if as_json else _show_text
    task = task_of(model)
    if task not in (None, "translation"):
        with one_voice():
            for_translations = {
                "--against": against,
                "--source": source,
                "--reference": reference,
                "--pairs": pairs,
                "--tokenised": tokenised or None,
                "--lowercase": lowercase or None,
                "--sentences": sentences or None,
            }
            _refuse(for_translations, f"{model} is a model for {task}")
            start_others(processes, device, threads)
        with taking_part(device, threads, PATIENCE) as (world, place):
            _score_by_recipe(show, model, test, beams, place, world)
        return
    with one_voice():
        given = given_pairs(pairs, source, reference, "reference")
        if given is not None and test is not None:
            raise UserError("--test names one of the model's own sets; leave it out where files are given.")
        tests = own_test_sets(model, test) if given is None else [given_test_set(given, ScoreConfig())]
        _check_shares(tests, processes or joined_size())
        start_others(processes, device, threads)
    with taking_part(device, threads, PATIENCE) as (world, place):
        for one in tests:
            how = {"tokenised": one.score.tokenised or tokenised, "lowercase": one.score.lowercase or lowercase}
            systems = {}
            for name in [model] if against is None else [model, against]:
                shares = world if not Path(name).is_file() else ALONE  # a file has all its lines already
                mine = shares.share(one.sources)
                with counting(f"translating {one.name}", len(mine), shown=world.first) as progress:
                    systems[name] = shares.whole(outputs(name, mine, beams=beams, device=place, progress=progress))
            if not world.first:
                continue
            for name, found in systems.items():
                _score_all(show, name, one, found, how)
                if sentences:
                    _score_each(show, one, found, how)
            if against is not None:
                _compare(show, one, systems, how, samples)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, given in options.items():
        if given is not None:
            raise UserError(f"{name} is for translations, and {why}; leave it out.")


def _score_by_recipe(
    show: "Show", model: str, test: str | None, beams: int | None, place: "torch.device", world: "World"
) -> None:
    """A model that does not translate, on the test sets of its own recipe."""
    from regard.task.testing import run_tests

    for name, scored in run_tests(model, test, beams=beams, device=place, world=world).items():
        if world.first:
            show(f"{model} on {name}: {scored}", {"model": model, "test": name} | scored.rounded())


def _check_shares(tests: list["Test"], processes: int) -> None:
    for one in tests:
        if 1 < processes > len(one.sources):
            raise UserError(f"{processes} processes cannot share the {len(one.sources)} sentences of {one.name}.")


Show = Callable[[str, dict[str, Any]], None]
"""Shows a result: as text, or as plain facts."""


def _score_all(show: Show, name: str, test: "Test", found: list[str], how: dict[str, bool]) -> None:
    from regard.score import score_translations

    scored = score_translations(found, test.references, **how)
    text = (
        f"{name} on {test.name} ({scored.sentences:,} sentences): BLEU {scored.bleu:.2f}, chrF {scored.chrf:.2f}"
        f"\n  BLEU {scored.bleu_signature}\n  chrF {scored.chrf_signature}"
    )
    rounded = {"bleu": round(scored.bleu, 2), "chrf": round(scored.chrf, 2)}
    show(text, {"model": name, "test": test.name} | asdict(scored) | rounded)


def _score_each(show: Show, test: "Test", found: list[str], how: dict[str, bool]) -> None:
    from regard.score import score_sentences

    scores = score_sentences(found, test.references, **how)
    rows = zip(test.sources, test.references, found, scores, strict=True)
    for number, (line, wanted, got, (bleu, chrf)) in enumerate(rows, start=1):
        facts: dict[str, Any] = {"sentence": number, "bleu": round(bleu, 2), "chrf": round(chrf, 2)}
        facts |= {"source": line, "reference": wanted, "output": got}
        show(f"{number}\tBLEU {bleu:.1f}\tchrF {chrf:.1f}\t{line}\t{wanted}\t{got}", facts)


def _compare(show: Show, test: "Test", systems: dict[str, list[str]], how: dict[str, bool], samples: int) -> None:
    from regard.score import compare_translations

    names, outputs = list(systems), list(systems.values())
    if len(names) == 1:  # a model against itself
        names, outputs = names * 2, outputs * 2
    result = compare_translations(outputs[0], outputs[1], test.references, samples=samples, **how)
    verdict = "differ" if result.p_value < 0.05 else "may well be equally good"
    text = (
        f"{names[0]} {result.first:.2f} ± {result.first_range:.2f}, {names[1]} {result.second:.2f} ± "
        f"{result.second_range:.2f}: p = {result.p_value:.3f} ({samples:,} samples), so the two {verdict}."
    )
    rounded = {"first": round(result.first, 2), "second": round(result.second, 2)}
    show(text, {"test": test.name, "models": names} | asdict(result) | rounded)


def _show_text(text: str, facts: dict[str, Any]) -> None:
    print(text)


def _show_json(text: str, facts: dict[str, Any]) -> None:
    print(json.dumps(facts, ensure_ascii=False))
