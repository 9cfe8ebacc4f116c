"""Sweeps: a run that fails does not stop the others, and nothing is done twice."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regard.cli import app, main
from regard.errors import UserError
from regard.lab import processes
from regard.lab.ablate import measure, plan, sweep, variations, worker
from regard.lab.ablate.plan import plan_sweep, read_sweep
from regard.lab.ablate.settings import Change, Settings
from regard.lab.ablate.variations import select_variations
from regard.lab.processes import Finished
from tests.lab.tiny import write_tiny


def diverging(settings: Settings) -> Change:
    overrides = {"train.schedule": {"kind": "constant", "lr": 100.0, "warmup_steps": 0}}
    overrides |= {"train.optimizer": {"kind": "adamw", "weight_decay": 100.0}}
    return Change(overrides, "learning rate of 100")


@pytest.fixture
def with_a_diverging_variation(monkeypatch: pytest.MonkeyPatch) -> None:
    """no-scaling diverges."""
    changed = tuple(
        dataclasses.replace(one, change=diverging) if one.name == "no-scaling" else one for one in variations.VARIATIONS
    )
    for module in (variations, plan, measure):
        monkeypatch.setattr(module, "VARIATIONS", changed)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs in this process, which is faster; gives the keys of those that are started."""
    keys: list[str] = []

    def run_here(
        commands: Mapping[str, list[str]],
        logs: Path,
        *,
        parallel: int,
        on_finish: Callable[[Finished], None],
        **_: object,
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        for key, (*_, module, out, of, device) in commands.items():
            assert (module, of) == ("regard.lab.ablate.worker", key)
            keys.append(key)
            log = logs / f"{key}.log"
            with log.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
                code = worker.main(Path(out), key, device)
            on_finish(Finished(key, code, 1.0, log))

    monkeypatch.setattr(processes, "run_processes", run_here)
    return keys


def ablate(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["ablate", *arguments, "--device", "cpu"])


def written(folder: Path) -> dict[str, int]:
    """When each file of the runs was last written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_sweep_goes_on_after_a_run_that_diverges_and_repeats_nothing(
    tmp_path: Path, started: list[str], with_a_diverging_variation: None
) -> None:
    write_tiny(tmp_path)
    recipe, out = str(tmp_path / "recipe.toml"), tmp_path / "out"
    command = (recipe, "--only", "norm,scaling,big,layers", "--out", str(out))
    ran = ablate(*command)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == f"{out / 'report.html'}\n"
    assert started == ["base-s1", "big-s1", "norm-s1", "no-scaling-s1"]
    assert "layers-third is skipped, because 0.33 times 1 layers is the same number, rounded." in ran.stderr
    assert "4 of 4: no-scaling-s1: failed (The loss is not finite at step" in ran.stderr
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "- no-scaling, seed 1, did not finish: The loss is not finite at step" in report
    assert "- layers-third was skipped, because 0.33 times 1 layers is the same number, rounded." in report
    assert "3 of 4 runs are done, 1 failed" in report
    assert not list(out.glob("runs/big-s1/checkpoints"))

    # Neither finished runs nor the one that diverged are repeated.
    before = written(out / "runs") | written(out / "measured")
    started.clear()
    again = ablate(*command)
    assert again.exit_code == 0
    assert started == []
    assert "4 of 4 runs are done already." in again.stderr
    assert written(out / "runs") | written(out / "measured") == before
    assert (out / "report.md").read_text(encoding="utf-8") == report

    # A run that was interrupted before it was measured is measured, not trained again.
    (out / "measured" / "big-s1.json").unlink()
    weights = (out / "runs" / "big-s1" / "model.safetensors").stat().st_mtime_ns
    assert ablate(*command).exit_code == 0
    assert started == ["big-s1"]
    assert (out / "runs" / "big-s1" / "model.safetensors").stat().st_mtime_ns == weights
    assert (out / "report.md").read_text(encoding="utf-8") == report

    # Another seed and another variation are added to what is there, and the report has all of it.
    started.clear()
    assert ablate(recipe, "--only", "norm", "--seeds", "2", "--out", str(out)).exit_code == 0
    assert started == ["base-s2", "norm-s2"]
    seeds = [json.loads((out / "measured" / f"base-s{seed}.json").read_text())["valid_nll"] for seed in (1, 2)]
    assert seeds[0] != seeds[1]
    joined = read_sweep(out)
    assert joined.seeds == 2
    assert [one.name for one in joined.planned] == ["base", "big", "norm", "no-scaling"]
    assert "(big) big" in (out / "report.md").read_text(encoding="utf-8")

    # What is there holds for its settings only.
    other = ablate(recipe, "--set", "train.batch_tokens=64", "--out", str(out))
    assert isinstance(other.exception, UserError)
    assert "holds a sweep with other settings" in str(other.exception)


def test_short_training_is_tested_on_longer_sentences(tmp_path: Path, started: list[str]) -> None:
    recipe, out = write_tiny(tmp_path).parent / "recipe.toml", tmp_path / "out"
    valid = f"data.valid.path={tmp_path / 'train.tsv'}"
    assert ablate(str(recipe), "--only", "short-none", "--set", valid, "--out", str(out)).exit_code == 0
    lengths = json.loads((out / "measured" / "short-none-s1.json").read_text())["lengths"]
    limit = int((out / "recipes" / "short-none-s1.toml").read_text().split("max_words = ")[1].split()[0])
    lines = [line for name in ("train", "test") for line in (tmp_path / f"{name}.tsv").read_text().splitlines()]
    words = [len(line.split("\t")[0].split()) for line in lines]
    assert lengths["short"]["pairs"] == sum(count <= limit for count in words)
    assert lengths["long"]["pairs"] == sum(limit < count <= 2 * limit for count in words)
    assert "trained on short sequences, tested on longer ones" in (out / "report.md").read_text(encoding="utf-8")


def test_an_interrupted_sweep_has_a_report_and_continues(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path)
    out = tmp_path / "out"
    command = (str(tmp_path / "recipe.toml"), "--only", "smoothing-0", "--out", str(out))
    run_here = processes.run_processes

    def interrupted(commands: dict[str, list[str]], *arguments: Any, **options: Any) -> None:
        run_here({"base-s1": commands["base-s1"]}, *arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(processes, "run_processes", interrupted)
        ran = ablate(*command)
    assert ran.exit_code == 130
    assert ran.stderr.endswith("the same command continues the sweep.\n")
    assert "1 of 2 runs are done" in (out / "report.md").read_text(encoding="utf-8")
    assert ablate(*command).exit_code == 0
    assert started == ["base-s1", "smoothing-0-s1"]


@pytest.mark.start_early(40)
def test_runs_are_processes_of_their_own(tmp_path: Path) -> None:
    recipe = write_tiny(tmp_path).parent / "recipe.toml"
    planned = plan_sweep(recipe, [], select_variations(["smoothing-0"]), tmp_path / "out")
    lines: list[str] = []
    sweep.run_sweep(planned, device="cpu", parallel=2, log=lines.append)
    ended = [line.split(": ")[1] for line in lines if " of 2: " in line]
    assert sorted(ended) == ["base-s1", "smoothing-0-s1"]
    for key in ("base-s1", "smoothing-0-s1"):
        metrics = (tmp_path / "out" / "runs" / key / "metrics.jsonl").read_text().splitlines()
        last = [json.loads(line)["valid/nll"] for line in metrics if "valid/nll" in line][-1]
        found = json.loads((tmp_path / "out" / "measured" / f"{key}.json").read_text())
        assert found["valid_nll"] == pytest.approx(last, rel=1e-5)


def test_unknown_variations_and_recipes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = {
        ("quick", "--only", "nonsense"): "regard: --only: there is no variation 'nonsense'; expected some of heads",
        ("quick", "--only", "dropuot"): "regard: --only: there is no variation 'dropuot'; did you mean 'dropout'?",
        ("quick-images",): "regard: quick-images is for image-classification; `regard ablate` varies translation",
        ("quick-ngram",): "regard: quick-ngram: the model is of kind 'ngram'; `regard ablate` varies Transformers.",
        (): "regard: Name a recipe, or the path of a .toml file",
        ("quick", "--report-only"): "holds no sweep, so there is nothing to report on",
    }
    monkeypatch.chdir(tmp_path)
    for arguments, sentence in cases.items():
        monkeypatch.setattr("sys.argv", ["regard", "ablate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
