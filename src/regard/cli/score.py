"""`regard score`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import Device, Threads, chosen_device, given_pairs
from regard.cli.progress import counting
from regard.errors import UserError


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
) -> None:
    """Score translations with sacreBLEU: BLEU and chrF, each with its signature."""
    from regard.score import compare_translations, score_sentences, score_translations
    from regard.task.recipe import ScoreConfig
    from regard.task.scoring import given_test_set, outputs, own_test_sets

    place = chosen_device(device, threads)
    given = given_pairs(pairs, source, reference, "reference")
    if given is not None and test is not None:
        raise UserError("--test names one of the model's own sets; leave it out where files are given.")
    if given is not None:
        tests = [given_test_set(given, ScoreConfig(tokenised=tokenised, lowercase=lowercase))]
    else:
        tests = own_test_sets(model, test)
    for one in tests:
        how = {"tokenised": one.score.tokenised or tokenised, "lowercase": one.score.lowercase or lowercase}
        systems = {}
        for name in [model] if against is None else [model, against]:
            with counting(f"translating {one.name}", len(one.sources)) as progress:
                systems[name] = outputs(name, one.sources, beams=beams, device=place, progress=progress)
        for name, found in systems.items():
            scored = score_translations(found, one.references, **how)
            _show(
                as_json,
                f"{name} on {one.name} ({scored.sentences:,} sentences): BLEU {scored.bleu:.2f}, chrF {scored.chrf:.2f}"
                f"\n  BLEU {scored.bleu_signature}\n  chrF {scored.chrf_signature}",
                {
                    "model": name,
                    "test": one.name,
                    "bleu": round(scored.bleu, 2),
                    "chrf": round(scored.chrf, 2),
                    "sentences": scored.sentences,
                    "bleu_signature": scored.bleu_signature,
                    "chrf_signature": scored.chrf_signature,
                },
            )
            if sentences:
                each = score_sentences(found, one.references, **how)
                rows = zip(one.sources, one.references, found, each, strict=True)
                for number, (line, wanted, got, (bleu, chrf)) in enumerate(rows, start=1):
                    _show(
                        as_json,
                        f"{number}\tBLEU {bleu:.1f}\tchrF {chrf:.1f}\t{line}\t{wanted}\t{got}",
                        {"sentence": number, "bleu": round(bleu, 2), "chrf": round(chrf, 2), "source": line,
                         "reference": wanted, "output": got},
                    )  # fmt: skip
        if against is not None:
            first, second = systems[model], systems[against]
            result = compare_translations(first, second, one.references, samples=samples, **how)
            verdict = "differ" if result.p_value < 0.05 else "may well be equally good"
            _show(
                as_json,
                f"{model} {result.first:.2f} ± {result.first_range:.2f}, {against} {result.second:.2f} ± "
                f"{result.second_range:.2f}: p = {result.p_value:.3f} ({samples:,} samples), so the two {verdict}.",
                {
                    "test": one.name,
                    "first": round(result.first, 2),
                    "second": round(result.second, 2),
                    "p_value": result.p_value,
                    "samples": result.samples,
                },
            )


def _show(as_json: bool, text: str, facts: dict[str, Any]) -> None:
    print(json.dumps(facts, ensure_ascii=False) if as_json else text)
