"""metrics.jsonl is always valid JSON, and a resumed run removes the lines after the step it resumes from."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from regard import UserError
from regard.train.metrics import MetricsWriter


def lines(folder: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def write(folder: Path, *steps: int, value: float = 1.0, after: int = 0, tensorboard: bool = False) -> None:
    metrics = MetricsWriter(folder, after=after, tensorboard=tensorboard)
    for step in steps:
        metrics.write(step, {"loss": value})
    metrics.close()


def test_line_is_an_object_with_its_step(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    assert lines(tmp_path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0}]


def test_lines_after_the_resumed_step_are_removed(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 2, 3, 4)
    write(tmp_path, 3, after=2, value=5.0)
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(1, 1.0), (2, 1.0), (2, 1.0), (3, 5.0)]


def test_new_run_removes_all_lines(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    write(tmp_path)
    assert lines(tmp_path) == []


@pytest.mark.parametrize("half", ['{"step": 2, "lo', '{"st', '{"step": 2, "loss": 1.0', "\0\0\0", "2", "[]", "{}"])
def test_incomplete_line_is_removed(tmp_path: Path, half: str) -> None:
    write(tmp_path, 1)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(half)
    write(tmp_path, 3, after=2)
    assert [line["step"] for line in lines(tmp_path)] == [1, 3]


def test_line_without_newline_does_not_run_into_the_next(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text(encoding="utf-8").rstrip("\n"), encoding="utf-8")
    write(tmp_path, 3, after=2)
    assert lines(tmp_path)[-1] == {"step": 3, "loss": 1.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_null(tmp_path: Path, value: float) -> None:
    write(tmp_path, 1, value=value)
    assert lines(tmp_path) == [{"step": 1, "loss": None}]


@pytest.mark.parametrize("value", [0, 7, 1e-300, -1.5])
def test_number_round_trips(tmp_path: Path, value: float) -> None:
    write(tmp_path, 1, value=value)
    assert lines(tmp_path) == [{"step": 1, "loss": value}]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics\.jsonl could not be written"):
        MetricsWriter(tmp_path / "nowhere", tensorboard=False)


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        MetricsWriter(tmp_path, tensorboard=False)


def test_binary_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        MetricsWriter(tmp_path, tensorboard=False)


def test_line_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path, tensorboard=False)
    metrics.path.unlink()
    metrics.path.mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl could not be written"):
        metrics.write(1, {"loss": 1.0})


# TensorBoard


def on_the_board(folder: Path, name: str = "loss") -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_round_trips(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    write(tmp_path, 1, 2, value=0.5, tensorboard=True)
    assert on_the_board(tmp_path) == [(1, 0.5), (2, 0.5)]


@pytest.mark.parametrize("after", [2, 0])
def test_tensorboard_drops_events_after_the_resumed_step(tmp_path: Path, after: int) -> None:
    pytest.importorskip("tensorboard")
    write(tmp_path, 1, 2, 3, 4, tensorboard=True)
    write(tmp_path, after + 1, after=after, value=5.0, tensorboard=True)
    assert on_the_board(tmp_path) == [*((step, 1.0) for step in range(1, after + 1)), (after + 1, 5.0)]


def test_without_tensorboard_only_lines_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    write(tmp_path, 1, tensorboard=True)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert len(lines(tmp_path)) == 1


def test_event_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("in the way", encoding="utf-8")
    with pytest.raises(UserError, match="tensorboard"):
        MetricsWriter(tmp_path)
