"""Reports of sweeps: their numbers are those of the runs, and their verdicts follow from the numbers."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from regard.lab.ablate.analysis import Row, Verdict, findings_of, judge, read_rows, steps_to_loss
from regard.lab.ablate.measure import measure
from regard.lab.ablate.plan import Sweep, plan_sweep, read_sweep
from regard.lab.ablate.reading import reading
from regard.lab.ablate.sections import write_ablation
from regard.lab.ablate.variations import BASE, select_variations
from regard.lab.samples import Sample
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.lab.tiny import write_tiny

GRADIENTS = {
    "untrained": {"encoder": [1.0, 1.0], "decoder": [1.0, 1.0]},
    "trained": {"encoder": [0.5, 1.0], "decoder": [1.0, 1.0]},
    "deep": {"encoder": [0.0, 1.0, 2.0], "decoder": [4.0, 2.0, 2.0]},
}


def result(ppl: float, bleu: float, **other: Any) -> dict[str, Any]:
    """What was measured on a run, with made-up numbers."""
    nll = math.log(ppl)
    return {
        "steps": 100,
        "seconds": 60.0,
        "device": "cpu",
        "parameters": 1_234_567,
        "scores": {"test <b>": {"bleu": bleu}},
        "curve": [{"step": 50, "nll": nll + 1}, {"step": 100, "nll": nll}],
        "gradients": None,
        "valid_nll": nll,
        "train_nll": nll - 0.25,
        "valid_tokens": 500,
        "lengths": None,
        **other,
    }


def written(sweep: Sweep, results: dict[str, list[dict[str, Any]]]) -> Sweep:
    for name, seeds in results.items():
        for seed, found in enumerate(seeds, start=1):
            path = sweep.measured(name, seed)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(found))
    return read_sweep(sweep.out)


def tiny_sweep(tmp_path: Path, only: list[str], seeds: int = 1) -> Sweep:
    recipe = write_tiny(tmp_path).parent / "recipe.toml"
    return plan_sweep(recipe, [], select_variations(only), tmp_path / "out", seeds=seeds)


def test_numbers_are_those_of_the_run_folders(tmp_path: Path) -> None:
    sweep = tiny_sweep(tmp_path, ["norm"])
    for plan in sweep.planned:
        recipe = read_recipe(sweep.out / "recipes" / f"{plan.name}-s1.toml")
        folder = sweep.folder(plan.name, 1)
        train(recipe, folder)
        written(sweep, {plan.name: [measure(plan.name, folder)]})
    _, markdown = write_ablation(read_sweep(sweep.out))
    report = markdown.read_text(encoding="utf-8")
    for plan in sweep.planned:
        folder = sweep.folder(plan.name, 1)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        nll = [line["valid/nll"] for line in lines if "valid/nll" in line][-1]  # the weights of the last step
        origin = json.loads((folder / "run.json").read_text())["origin"]
        (row,) = [line for line in report.splitlines() if line.startswith(f"| {plan.name} | ")]
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert float(cells[2].replace(",", "")) == pytest.approx(math.exp(nll), abs=0.01)
        assert float(cells[3]) == origin["scores"]["test"]["bleu"]
        assert cells[4] == f"{origin['parameters']:,}"


def test_verdicts_need_a_difference_beyond_the_spread() -> None:
    base = Sample((10.0, 10.2, 9.8))
    assert judge("higher", Sample((11.0, 11.2, 10.8)), base, 0.1) is Verdict.holds
    assert judge("lower", Sample((11.0, 11.2, 10.8)), base, 0.1) is Verdict.fails
    assert judge("same", Sample((11.0, 11.2, 10.8)), base, 0.1) is Verdict.fails
    assert judge("same", Sample((11.0, 11.2, 10.8)), base, 2.0) is Verdict.holds
    assert judge("higher", Sample((10.1, 10.3, 9.9)), base, 0.01) is Verdict.unknown
    assert judge("same", Sample((10.1, 10.3, 9.9)), base, 0.01) is Verdict.unknown
    assert judge("same", Sample((10.1, 10.3, 9.9)), base, 0.2) is Verdict.holds
    # t = 0.4 / (0.2 · √(2/3)) = 2.45 is below the quantile for 4 degrees of freedom, 2.78; 0.5 is above it: 3.06
    assert judge("higher", Sample((10.4, 10.6, 10.2)), base, 0.01) is Verdict.unknown
    assert judge("higher", Sample((10.5, 10.7, 10.3)), base, 0.01) is Verdict.holds


def test_with_one_seed_only_large_differences_count() -> None:
    assert judge("higher", Sample((10.3,)), Sample((10.0,)), 0.1) is Verdict.holds
    assert judge("higher", Sample((10.1,)), Sample((10.0,)), 0.1) is Verdict.unknown
    assert judge("lower", Sample((10.3,)), Sample((10.0,)), 0.1) is Verdict.fails
    assert judge("same", Sample((10.1,)), Sample((10.0,)), 0.11) is Verdict.holds
    assert judge("same", Sample((10.15,)), Sample((10.0,)), 0.1) is Verdict.unknown
    assert judge("same", Sample((10.3,)), Sample((10.0,)), 0.1) is Verdict.fails
    assert judge("higher", Sample((10.3, 10.5)), Sample((10.0,)), 0.5) is Verdict.unknown


def test_steps_to_a_loss_are_interpolated() -> None:
    curve = [{"step": 10, "nll": 5.0}, {"step": 20, "nll": 3.0}, {"step": 30, "nll": 3.5}, {"step": 40, "nll": 1.0}]
    assert steps_to_loss(curve, 4.0) == 15
    assert steps_to_loss(curve, 3.0) == 20
    assert steps_to_loss(curve, 6.0) == 10
    assert steps_to_loss(curve, 0.5) is None
    assert steps_to_loss(curve, 2.25) == 35


def test_reading_says_what_holds_what_does_not_and_what_could_not_be_told(tmp_path: Path) -> None:
    sweep = tiny_sweep(tmp_path, ["heads", "smoothing", "norm"], seeds=2)
    sweep = written(
        sweep,
        {
            BASE: [result(5.00, 30.0), result(5.02, 30.2)],
            "heads-1": [result(6.00, 29.0), result(6.02, 29.2)],
            "heads-quadruple": [result(4.00, 30.1), result(4.02, 30.0)],
            "smoothing-0": [result(4.50, 28.0)],
            "norm": [result(7.00, 20.0), result(7.00, 20.0)],
        },
    )
    rows = read_rows(sweep)
    text = "\n".join(reading(sweep, rows))
    assert "The base has PPL 5.01 ± 0.01, BLEU 30.10 ± 0.14; 9 of 14 runs are done." in text
    assert "heads-1 (h = 1, d_k = 16): PPL +1.00, BLEU −1.00" in text
    assert "Directions that do not hold here: heads-quadruple (h = 8, d_k = 2): PPL −1.00 (expected: higher)" in text
    assert "Too close to tell: heads-quadruple: BLEU." in text
    assert f"Steps to a validation loss of {math.log(7):.3f}: pre-norm (base) 83 ± 0, post-norm 100 ± 0." in text
    verdicts = {str(one) for row in rows if row.name == "smoothing-0" for one in findings_of(row, rows)}
    assert verdicts == {"PPL: holds (−0.51)", "BLEU: holds (−2.10)"}  # one seed: a large difference only
    report = write_ablation(sweep)[1].read_text(encoding="utf-8")
    assert "| 4.50 (1 of 2 seeds) | 28.00 | 1.235 M | ε_ls = 0.0 | 4.67 | 25.3 |" in report
    assert (
        "| (A) heads-double | h = 4, d_k = 4 | – | – | – | h = 16, d_k = d_v = 32 | 4.91 | 25.8 |   | not done yet |"
        in report
    )


def test_over_fitting_is_the_validation_loss_beyond_the_training_loss(tmp_path: Path) -> None:
    found = {
        BASE: [result(5.0, 30.0, valid_nll=1.5, train_nll=0.5)],
        "dropout-double": [result(5.0, 30.0, valid_nll=1.6, train_nll=1.2)],
    }
    sweep = written(tiny_sweep(tmp_path, ["dropout"]), found)
    report = write_ablation(sweep)[1].read_text(encoding="utf-8")
    assert "| P_drop = 0 (base) | 0.500 | 1.500 | 1.000 |" in report
    assert "| P_drop = 0.2 | 1.200 | 1.600 | 0.400 |" in report
    assert "the validation loss minus the training loss at the end: base 1.000, P_drop = 0.2 0.400." in report
    (verdict,) = [str(one) for one in findings_of(*_last_and_all(sweep)) if one.measure == "gap"]
    assert verdict == "gap: holds (−0.600)"


def _last_and_all(sweep: Sweep) -> tuple[Row, list[Row]]:
    rows = read_rows(sweep)
    return rows[-1], rows


def test_nothing_is_compared_with_a_base_that_failed(tmp_path: Path) -> None:
    sweep = written(tiny_sweep(tmp_path, ["smoothing"]), {"smoothing-0": [result(5.0, 30.0)]})
    (sweep.out / "failures").mkdir()
    failure = {"problem": "its process was killed by SIGKILL", "diverged": False}
    (sweep.out / "failures" / "base-s1.json").write_text(json.dumps(failure))
    rows = read_rows(sweep)
    assert reading(sweep, rows) == [
        "The base has no result, so nothing is compared with it; 1 of 3 runs are done, 1 failed."
    ]
    report = write_ablation(sweep)[1].read_text(encoding="utf-8")
    assert "base, seed 1, did not finish: its process was killed by SIGKILL." in report


def test_html_refers_to_nothing_outside_and_is_well_formed(tmp_path: Path) -> None:
    lengths = {part: {"nll": 1.0, "bleu": 20.0, "pairs": 30} for part in ("short", "long")}
    sweep = written(
        tiny_sweep(tmp_path, ["norm", "residual", "dropout", "lengths"]),
        {
            BASE: [result(5.0, 30.0, gradients=GRADIENTS)],
            "norm": [result(5.5, 30.0, gradients=GRADIENTS)],
            "no-residual": [result(50.0, 1.0, gradients=GRADIENTS)],
            "dropout-double": [result(6.0, 29.0)],
            "short-none": [result(6.0, 29.0, lengths=lengths)],
            "short-sinusoidal": [result(6.0, 29.0, lengths=lengths)],
        },
    )
    html, markdown = write_ablation(sweep)
    text = html.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    tags = [element.tag for element in root.iter()]
    assert not {"script", "link", "iframe", "img", "object", "a"} & set(tags)
    assert tags.count("svg") == 7  # learning curves, two of each stack's gradients, lengths, dropout
    for element in root.iter():
        assert not {"src", "href", "onload"} & set(element.attrib)
    assert not re.findall(r"https?://|url\(|@import", text)
    report = markdown.read_text(encoding="utf-8")
    assert "encoder: base 0, post-norm 0, no residual 0; decoder: base 2, post-norm 2, no residual 2." in report
    assert "| P_drop = 0 (base) | 1.359 | 1.609 | 0.250 |" in report
    assert "| none | 1.000 | 20.00 | 1.000 | 20.00 | 0.000 | 6.00 | PPL: could not be told (+0.00) |" in report
