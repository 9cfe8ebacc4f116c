"""Reports: self-contained, well-formed, and honest about what the numbers say."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.lab.charts import Series, bar_chart, line_chart, number
from regard.lab.compare.ladder import Ladder, read_ladder
from regard.lab.compare.report.analysis import choose_metric, reading, summarize
from regard.lab.compare.report.sections import write_comparison
from regard.lab.compare.speed import write_speeds
from tests.lab.tiny import LADDER, write_tiny


def result(rung: str, score: float, seed: int = 1, size: float = 1.0, **other: Any) -> dict[str, Any]:
    """A finished run with made-up numbers."""
    return {
        "key": f"{rung}-{size:g}-{seed}",
        "rung": rung,
        "label": rung.capitalize(),
        "size": size,
        "seed": seed,
        "status": "finished",
        "scores": {"test": {"bleu": score, "chrf": score + 10}},
        "steps": 100,
        "tokens": 10_000,
        "seconds": 12.0,
        "flops": 10**9 if rung == "small" else 4 * 10**9,
        "parameters": 9_000,
        "tokens_per_second": 800.0,
        "peak_memory": 10**8,
        "device": "cpu",
        "curve": [{"step": 50, "bleu": score / 2}, {"step": 100, "bleu": score}],
        "decode": {"state_bytes": 2048, "bytes_per_token": 16},
        "by_length": [
            {"from": 1, "to": 5, "sentences": 20, "bleu": score},
            {"from": 6, "to": None, "sentences": 2, "bleu": None},
        ],
        "recall": [{"distance": 1, "total": 10, "recalled": 9}, {"distance": 3, "total": 10, "recalled": 4}],
        "samples": [{"source": "<b> & \x00", "reference": "r | s", "output": "\x1b\ufffe"}],
        "complexity": None,
        **other,
    }


@pytest.fixture
def ladder(tmp_path: Path) -> Ladder:
    return read_ladder(write_tiny(tmp_path, LADDER.replace("sizes = [1.0]", "sizes = [1.0, 0.1]")))[0]


def read(ladder: Ladder, results: list[dict[str, Any]]) -> str:
    metric = choose_metric(results, "test")
    return " ".join(reading(ladder, results, summarize(ladder, results, metric), metric))


def test_report_is_self_contained_and_well_formed(ladder: Ladder, tmp_path: Path) -> None:
    results = [result("small", 30.0 + seed, seed) for seed in (1, 2)] + [result("wide", 20.0)]
    results += [result("small", 3.0, size=0.1), result("wide", 2.0, size=0.1)]
    html, markdown = write_comparison(ladder, results, tmp_path)
    text = html.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    tags = [element.tag for element in root.iter()]
    assert not {"script", "link", "iframe", "img", "object", "a"} & set(tags)
    assert tags.count("svg") == 5
    for element in root.iter():
        assert not {"src", "href", "onload"} & set(element.attrib)
        if element.tag == "svg":
            assert element.attrib["role"] == "img"
            assert element.attrib["aria-label"]
        if element.tag == "table":
            assert element.find("caption") is not None
    assert "url(" not in text
    assert "@import" not in text
    assert re.findall(r"https?://[^\s<)]*", text) == ["https://example.org"]  # the citation, as text
    assert "prefers-color-scheme:dark" in text
    rows = [line for line in markdown.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert any("31.50 ± 0.71" in row for row in rows)
    assert any("r \\| s" in row for row in rows)


def test_reading_says_where_the_order_is_not_as_expected(ladder: Ladder) -> None:
    sure = [result("small", 30 + seed, seed) for seed in (1, 2)] + [result("wide", 20 + seed, seed) for seed in (1, 2)]
    text = read(ladder, sure)
    assert "best first: Small <Transformer> 31.50 ± 0.71; Wide & Transformer 21.50 ± 0.71" in text
    assert "order, in BLEU, these did worse: Wide & Transformer than Small <Transformer> by 10.00." in text
    unsure = [result("small", 30.0), result("wide", 29.9)]
    assert "by differences that these seeds do not establish: Wide & Transformer than Small" in read(ladder, unsure)
    assert "There is one seed" in read(ladder, unsure)
    assert "The order is the expected one" in read(ladder, [result("small", 20.0), result("wide", 30.0)])


def test_report_says_what_an_idea_buys(ladder: Ladder, tmp_path: Path) -> None:
    """In score, with less data, in cost and speed, in parentheses where the seeds do not establish it."""
    contrast = {"idea": "more width", "without": "small", "having": "wide"}
    ladder = Ladder.read(ladder.plain() | {"contrasts": [contrast]}, "ladder")
    runs = [result(rung, score + seed, seed) for rung, score in (("small", 20), ("wide", 30)) for seed in (1, 2)]
    runs += [result("small", 4.0, size=0.1), result("wide", 2.0, size=0.1)]
    assert "What each idea changes, in BLEU: more width +10.00." in read(ladder, runs)
    assert "more width (+10.00)." in read(ladder, [result("small", 20.0), result("wide", 30.0)])
    write_speeds(tmp_path, {"small": {"tokens_per_second": 100.0}, "wide": {"tokens_per_second": 50.0}})
    text = write_comparison(ladder, runs, tmp_path)[1].read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| more width |"))
    assert "21.50 ± 0.71 → 31.50 ± 0.71: +10.00 | 4.000 → 2.000: (-2.00)" in row
    assert row.endswith("| 40% → 40% | × 1 | × 4 | × 0.5 |"), row
    with pytest.raises(UserError, match=r"contrasts.0.having: there is no rung named 'other'"):
        Ladder.read(ladder.plain() | {"contrasts": [contrast | {"having": "other"}]}, "ladder")


def test_reading_names_the_models_that_are_worth_their_cost(ladder: Ladder) -> None:
    text = read(ladder, [result("small", 20.0), result("wide", 30.0)])
    assert "everything cheaper does worse: Small <Transformer> (1 G), Wide & Transformer (4 G)." in text
    assert "Small <Transformer> (1 G) is the best and needs the fewest training FLOPs." in read(
        ladder, [result("small", 30.0), result("wide", 20.0)]
    )
    counted = [result("small", 20.0, flops=None), result("wide", 30.0)]
    assert "worse: Small <Transformer> (counted, not trained), Wide & Transformer (4 G)." in read(ladder, counted)


def test_reading_of_memory_names_the_best_and_the_worst(ladder: Ladder) -> None:
    forgetful = [{"distance": 1, "total": 10, "recalled": 9}, {"distance": 3, "total": 10, "recalled": 1}]
    text = read(ladder, [result("small", 20.0, recall=forgetful), result("wide", 30.0)])
    assert "A planted word with 1 word after it is translated equally often by all models (90%)." in text
    assert "with 3 words after it is translated most often by Wide & Transformer (40%), least often by Small" in text
    saved = [{"distance": 4, "total": 10, "recalled": 0, "nats_saved": 0.5}]
    none = [{"distance": 4, "total": 10, "recalled": 0, "nats_saved": 0.0}]
    text = read(ladder, [result("small", 20.0, recall=none), result("wide", 30.0, recall=saved)])
    assert "After 4 tokens of other text, having read a random sequence before helps Wide" in text
    assert text.endswith("(0.50 nats a token) most and Small <Transformer> (0.00 nats a token) least.")
    text = read(ladder, [result("small", 20.0, recall=none), result("wide", 30.0, recall=none)])
    assert text.endswith("no model remembers a random sequence: it saves at most 0.00 nats a token.")


def test_reading_compares_with_published_numbers(ladder: Ladder) -> None:
    assert "Small <Transformer> falls short of what is published" in read(ladder, [result("small", 20.0)])
    assert "Small <Transformer> reaches what is published" in read(ladder, [result("small", 99.5)])


def test_reading_of_nothing_but_failures(ladder: Ladder, tmp_path: Path) -> None:
    failed = {"rung": "small", "label": "Small", "size": 1.0, "seed": 1, "status": "failed", "problem": "it ran out."}
    text = read(ladder, [failed])
    assert (
        text
        == "No run has finished, so there is nothing to compare. Small (data 100%, seed 1) did not finish: it ran out."
    )
    write_comparison(ladder, [failed], tmp_path)


def test_what_attention_buys_is_compared_with_published_numbers() -> None:
    ladder, _ = read_ladder("what-attention-buys")
    found = [result("bahdanau", 36.0), result("transformer", 42.0)]
    results = [{**each, "scores": {"test_2016": each["scores"]["test"]}} for each in found]
    metric = choose_metric(results, ladder.test)
    said = " ".join(reading(ladder, results, summarize(ladder, results, metric), metric))
    assert "GRU with additive attention falls short of what is published for its kind: 36.00 here, 38 there." in said
    assert "Transformer reaches what is published for its kind: 42.00 here, 41.02 there." in said


def test_report_compares_random_with_pre_trained_word_vectors(tmp_path: Path) -> None:
    wide = 'label = "Wide & Transformer"'
    ladder, _ = read_ladder(write_tiny(tmp_path, LADDER.replace(wide, f"{wide}\nword_vectors = {{}}")))
    results = [result("small", 30.0 + seed, seed) for seed in (1, 2)]
    results += [result("wide", 35.0 + seed, seed) for seed in (1, 2)]
    _, markdown = write_comparison(ladder, results, tmp_path)
    assert "Random against" not in markdown.read_text(encoding="utf-8")  # the two rungs differ in their width too
    same = ladder.rungs[1].model_copy(update={"overrides": {}})
    twins = ladder.model_copy(update={"rungs": (ladder.rungs[0], same)})
    _, markdown = write_comparison(twins, results, tmp_path)
    row = "| Small <Transformer> | full | 31.50 ± 0.71 | 36.50 ± 0.71 | +5.00 |"
    assert row in markdown.read_text(encoding="utf-8")


@pytest.mark.parametrize("points", [((1.0, 1.0),), ((1.0, 2.0), (10.0, 2.0)), ((1e-9, -5.0), (1e12, 1e9))])
@pytest.mark.parametrize("log_x", [False, True])
def test_charts_stay_inside_their_frame(points: tuple[tuple[float, float], ...], log_x: bool) -> None:
    root = ElementTree.fromstring(line_chart("t", "x", "y", [Series("s", points, 9)], log_x=log_x))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    circles = root.findall("circle")
    assert len(circles) == len(points)
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height


@pytest.mark.parametrize("count", [2, 10, 27])
def test_names_of_lines_neither_overlap_nor_leave_the_chart(count: int) -> None:
    names = [f"A model with a rather long name, number {number}" for number in range(count)]
    series = [Series(name, ((1.0, 1.0), (2.0, 5.0 + index % 3)), index) for index, name in enumerate(names)]
    root = ElementTree.fromstring(line_chart("t", "x", "y", series))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    texts = [text for text in root.findall("text") if text.text in names]
    places = sorted(float(text.attrib["y"]) for text in texts)
    assert len(places) == count
    assert all(after - before > 12 for before, after in pairwise(places))
    assert places[0] > 0
    assert places[-1] < height
    assert all(float(text.attrib["x"]) + 6 * len(text.text or "") < width for text in texts)
    styles = {(line.attrib["class"], line.attrib["stroke-dasharray"]) for line in root.findall("polyline")}
    assert len(styles) == count


def test_charts_without_points_are_empty() -> None:
    assert line_chart("t", "x", "y", [Series("s", (), 0)]) == ""
    assert bar_chart("t", "x", []) == ""


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 0.12345, 1234.5, 12345, 3.3e18)] == [
        "0",
        "0.1235",
        "1,234",
        "12.35 k",
        "3.3·10^18",
    ]
