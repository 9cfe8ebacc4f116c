"""Tables about `regard compare`: the ladders that ship, the keys of a ladder file, and measured comparisons."""

import json
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from doc_figures.markers import ROOT, cases, figure, table
from regard.config import Config
from regard.lab.charts import number
from regard.lab.compare.ladder import (
    BudgetConfig,
    ContrastConfig,
    Ladder,
    PublishedConfig,
    RungConfig,
    RungWordVectorsConfig,
    list_ladders,
)
from regard.lab.samples import Sample
from regard.task.settings import config_fields

Row = tuple[object, ...]


@table("ladder | models | base recipe | trained on | budget of each model | runs")
def ladders() -> Iterator[Row]:
    for ladder in list_ladders():
        device = "a CPU" if ladder.device == "cpu" else "a GPU"
        budget = f"{ladder.budget.value / 1e6:g} million {ladder.budget.kind}"
        yield f"`{ladder.name}`", len(ladder.rungs), f"`{ladder.base}`", device, budget, _runs(ladder)


def _runs(ladder: Ladder) -> int:
    """How many runs a ladder has; see `plan_runs`."""
    count = 0
    for rung in ladder.rungs:
        if rung.ensemble > 1:
            count += rung.ensemble <= ladder.seeds
        else:
            count += sum(ladder.seeds if size == 1 else ladder.seeds_of_parts for size in ladder.sizes)
    return count


def _keys(config: type[Config]) -> Iterator[Row]:
    for field in config_fields(config):
        default = "required" if field.required else _shown(field.default)
        if field.name == "name" and config is Ladder:
            default = "the file's name"
        meaning = field.meaning or "What every rung gets the same amount of; see below."
        yield f"`{field.name}`", field.type, default, meaning.replace("|", "\\|")


def _shown(value: Any) -> str:
    if value is None or value in ("", (), {}):
        return "not set"
    return f"`{json.dumps(value)}`"


@table("key | type | default | meaning")
def ladder_keys() -> Iterator[Row]:
    yield from _keys(Ladder)


@table("key | type | default | meaning")
def budget_keys() -> Iterator[Row]:
    yield from _keys(BudgetConfig)


@table("key | type | default | meaning")
def rung_keys() -> Iterator[Row]:
    yield from _keys(RungConfig)


@table("key | type | default | meaning")
def rung_word_vectors_keys() -> Iterator[Row]:
    yield from _keys(RungWordVectorsConfig)


@table("key | type | default | meaning")
def published_keys() -> Iterator[Row]:
    yield from _keys(PublishedConfig)


@table("key | type | default | meaning")
def contrast_keys() -> Iterator[Row]:
    yield from _keys(ContrastConfig)


def _measured(name: str) -> tuple[list[dict[str, Any]], dict[tuple[str, float], dict[str, Any]]]:
    """The runs on all data in the order of the ladder, and all runs by rung and size."""
    runs = [each for each in cases(f"ladder-{name}") if each.get("status") == "finished"]
    return [run for run in runs if run["size"] == 1], {(run["rung"], run["size"]): run for run in runs}


def _recalled(run: dict[str, Any], distance: int) -> str:
    row = next(row for row in run["recall"] if row["distance"] == distance)
    return "–" if row["recalled"] is None else f"{row['recalled'] / row['total']:.0%}"


@table("idea | BLEU without it | BLEU with it | on sentences of 21–30 words")
def what_attention_buys() -> Iterator[Row]:
    """The ladder's contrasts; a translator's score on long sentences is the mean over its seeds."""
    *runs, summary = cases("ladder-what-attention-buys")
    full: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run["status"] == "finished" and run["size"] == 1:
            full.setdefault(run["rung"], []).append(run)
    for contrast in summary["ladder"]["contrasts"]:
        pair = [full.get(contrast[key]) for key in ("without", "having")]
        if pair[0] and pair[1]:
            scores = (
                Sample(tuple(run["scores"]["test_2016"]["bleu"] for run in each)).shown(1) for each in pair if each
            )
            long = (f"{fmean(map(_long_sentences, each)):.1f}" for each in pair if each)
            yield contrast["idea"], *scores, " → ".join(long)


def _long_sentences(run: dict[str, Any]) -> float:
    (bleu,) = (row["bleu"] for row in run["by_length"] if row["from"] == 21)
    return float(bleu)


@table("model | BLEU | with a quarter of the data | training FLOPs | parameters | recall: 1 word | 8 words | 16 words")
def ladder_what_attention_buys_quick() -> Iterator[Row]:
    full, by_size = _measured("what-attention-buys-quick")
    for run in full:
        part = by_size[run["rung"], 0.25]["scores"]["test"]["bleu"]
        recall = (_recalled(run, distance) for distance in (1, 8, 16))
        costs = number(run["flops"]), number(run["parameters"])
        yield run["label"], f"{run['scores']['test']['bleu']:.1f}", f"{part:.1f}", *costs, *recall


@table(
    "model | bits per byte | with a quarter of the data | training FLOPs | parameters | nats saved: 1 token | 16 tokens"
)
def ladder_language_quick() -> Iterator[Row]:
    full, by_size = _measured("language-quick")
    for run in full:
        part = by_size[run["rung"], 0.25]["scores"]["test"]["bits_per_byte"]
        saved = {row["distance"]: row["nats_saved"] for row in run["recall"]}
        costs = number(run["flops"]) if run["flops"] else "–", number(run["parameters"])
        score = f"{run['scores']['test']['bits_per_byte']:.3f}"
        yield run["label"], score, f"{part:.3f}", *costs, f"{saved[1]:.2f}", f"{saved[16]:.2f}"


@table("treebank | model | F1 | exact match | up to 10 words | over 40 words | training FLOPs | parameters | minutes")
def ladder_parsing_quick() -> Iterator[Row]:
    for treebank, name in (("GUM", "parsing-quick"), ("Penn Treebank sample", "parsing-ptb-sample-quick")):
        for run in _measured(name)[0]:
            scores, lengths = run["scores"]["test"], [row["f1"] for row in run["by_length"]]
            score = f"{scores['f1']:.1f}", f"{scores['exact']:.1f}%"
            ends = (f"{lengths[0]:.1f}", f"{lengths[-1]:.1f}")
            costs = number(run["flops"]), number(run["parameters"])
            yield treebank, run["label"], *score, *ends, *costs, f"{run['seconds'] / 60:.1f}"


def _cost(name: str) -> str:
    """How long the runs of a comparison took, and where."""
    results = json.loads((ROOT / "benchmarks" / "results" / f"ladder-{name}.json").read_text(encoding="utf-8"))
    (summary,) = [each for each in results["cases"] if each["case"] == "summary"]
    runs, torch = len(results["cases"]) - 1, results["versions"]["torch"].partition("+")[0]
    return (
        f"\n\n{runs} runs, one seed: {summary['minutes']:.1f} minutes on {summary['hardware']}, "
        f"{summary['cpu_minutes']:.1f} CPU minutes in all, with PyTorch {torch}.\n\n"
    )


@figure
def quick_cost_what_attention_buys_quick() -> str:
    return _cost("what-attention-buys-quick")


@figure
def quick_cost_language_quick() -> str:
    return _cost("language-quick")


def _reading(name: str) -> str:
    (summary,) = [each for each in cases(f"ladder-{name}") if each["case"] == "summary"]
    return "\n\n" + "\n".join(f"- {line}" for line in summary["reading"]) + "\n\n"


@figure
def reading_what_attention_buys_quick() -> str:
    return _reading("what-attention-buys-quick")


@figure
def reading_language_quick() -> str:
    return _reading("language-quick")
