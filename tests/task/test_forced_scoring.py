"""Forced scores of files: in the order of the lines, shared by several processes, refused in one sentence."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from regard import UserError
from regard.data.text.corpus import CorpusConfig
from regard.task.forced_scoring import ForcedScore, score_given
from regard.train.distributed.process_group import ProcessGroup
from tests.task.language_modeling.test_pipeline import save_random_writer
from tests.task.small import pairs, save_random_model, write_lines, write_table


class ThreadGroup(ProcessGroup):
    """Threads instead of processes: what they exchange is JSON as well."""

    def __init__(self, rank: int, values: list[str], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.values, self.barrier = rank, len(values), values, barrier

    def all_gather_object(self, value: Any) -> list[Any]:
        self.values[self.rank] = json.dumps(value)
        self.barrier.wait()
        gathered = [json.loads(each) for each in self.values]
        self.barrier.wait()
        return gathered


def test_two_processes_score_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, table = save_random_model(tmp_path / "model"), write_table(tmp_path / "test.tsv", pairs(11, seed=3))
    data = CorpusConfig(path=str(table))
    expected = list(score_given(model, data))
    assert [(one.source, one.text) for one in expected] == pairs(11, seed=3)
    monkeypatch.setattr("regard.task.forced_scoring.CHUNK_LINES", 2)
    values, barrier = [""] * 2, threading.Barrier(2)
    groups = [ThreadGroup(rank, values, barrier) for rank in range(2)]
    done: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda group: list(score_given(model, data, process_group=group, progress=done.append)), groups)
    for found in runs:
        assert [(one.source, one.text, one.tokens) for one in found] == [
            (one.source, one.text, one.tokens) for one in expected
        ]
        assert [one.logprob for one in found] == pytest.approx([one.logprob for one in expected], rel=1e-4)
    assert max(done) >= 11


def test_lines_of_a_text(tmp_path: Path) -> None:
    lines = ["the old cat", "", "red"]
    model, path = save_random_writer(tmp_path / "writer"), write_lines(tmp_path / "text.txt", lines)
    found = list(score_given(model, CorpusConfig(path=str(path))))
    assert ["".join(one.tokens) for one in found] == [one.text for one in found] == lines
    assert (found[1].logprob, math.isnan(found[1].perplexity), found[1].record()["perplexity"]) == (0, True, None)


def test_perplexity_is_that_of_a_token() -> None:
    assert ForcedScore(None, "ab", ("a", "b"), (math.log(0.5), math.log(0.125))).perplexity == pytest.approx(4)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    model, path = save_random_writer(tmp_path / "writer"), write_lines(tmp_path / "empty.txt", [])
    with pytest.raises(UserError, match=r"empty\.txt"):
        list(score_given(model, CorpusConfig(path=str(path))))
