"""Tune the rungs of a ladder with the same small effort: a few settings each, compared on the validation set.

    python benchmarks/quality/ladder_tries.py what-attention-buys --parallel 12 --set budget.value=8e6

Every rung is trained with each of its learning rates and dropouts in `FIRST_ROUND`, for less than the ladder's budget;
`--round 2` goes on where the best was at an edge, and `--round 3` with the whole budget. No choice depends on test
data. All tries and their scores are written to benchmarks/results/tries-LADDER.json; the best of each rung is what the
ladder then says.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, write_results

from regard.lab.compare.ladder import Ladder, RungConfig, read_ladder
from regard.lab.compare.plan import validate
from regard.lab.compare.runner import run_ladder
from regard.task.init_from import merge_settings

Grid = tuple[tuple[float, ...], tuple[float, ...]]
FIRST_ROUND: dict[str, dict[str, Grid]] = {
    "what-attention-buys": {
        "dnn1": ((0.0005, 0.0015), (0.3, 0.5)),
        "dnn2": ((0.0005, 0.0015), (0.3, 0.5)),
        "context-mean": ((0.0005, 0.0015), (0.1, 0.3)),
        "context-learned": ((0.0005, 0.0015), (0.1, 0.3)),
        "context-cosine": ((0.0005, 0.0015), (0.1, 0.3)),
        "context-query-key": ((0.0005, 0.0015), (0.1, 0.3)),
        "lstm": ((0.001, 0.003), (0.3, 0.5)),
        "gru": ((0.001, 0.003), (0.3, 0.5)),
        "bytenet": ((0.0005, 0.0015), (0.2, 0.4)),
        "luong": ((0.001, 0.003), (0.3, 0.5)),
        "bahdanau": ((0.001, 0.003), (0.3, 0.5)),
        "deep-att-words": ((0.001, 0.003), (0.2, 0.4)),
        "deep-att": ((0.001, 0.003), (0.2, 0.4)),
        "gnmt": ((0.001, 0.003), (0.2, 0.4)),
        "recurrent-experts": ((0.0005, 0.0015), (0.3, 0.5)),
        "convs2s": ((0.0005, 0.0015), (0.2, 0.4)),
        "lm": ((0.001, 0.003), (0.2, 0.3)),
        "transformer-experts": ((0.001, 0.003), (0.2, 0.3)),
        "transformer": ((0.001, 0.003), (0.2, 0.3)),
    },
    "language": {
        "window": ((0.001, 0.003), (0.1, 0.3)),
        "convolutional": ((0.001, 0.003), (0.1, 0.3)),
        "lstm": ((0.001, 0.003), (0.3, 0.5)),
        "transformer": ((0.001, 0.003), (0.1, 0.2)),
    },
    "what-attention-buys-quick": {
        "dnn1": ((0.002, 0.005), (0.0, 0.1)),
        "dnn2": ((0.002, 0.005), (0.0, 0.1)),
        "context-mean": ((0.002, 0.005), (0.0, 0.1)),
        "context-learned": ((0.002, 0.005), (0.0, 0.1)),
        "context-cosine": ((0.002, 0.005), (0.0, 0.1)),
        "context-query-key": ((0.002, 0.005), (0.0, 0.1)),
        "gru": ((0.002, 0.005), (0.0, 0.1)),
        "bahdanau": ((0.005,), (0.0, 0.1)),  # for the seven above, the larger rate was better by far
        "convs2s": ((0.005,), (0.0, 0.1)),
        "transformer": ((0.003, 0.005), (0.0, 0.1)),
    },
    "language-quick": {
        "window": ((0.002, 0.005), (0.1, 0.3)),
        "lstm": ((0.002, 0.005), (0.1, 0.3)),
        "transformer": ((0.002, 0.005), (0.1, 0.3)),
    },
}
"""By ladder and rung: learning rates and dropouts."""
SECOND_ROUND: dict[str, dict[str, Grid]] = {
    "what-attention-buys": {
        "dnn1": ((0.0015, 0.004), (0.1,)),
        "dnn2": ((0.0015, 0.004), (0.1,)),
        "context-mean": ((0.004,), (0.1,)),
        "context-learned": ((0.004,), (0.1,)),
        "context-cosine": ((0.004,), (0.1,)),
        "context-query-key": ((0.004,), (0.1,)),
        "lstm": ((0.003, 0.006), (0.2,)),
        "gru": ((0.003, 0.006), (0.2,)),
        "luong": ((0.003, 0.006), (0.2,)),
        "bahdanau": ((0.003, 0.006), (0.2,)),
        "bytenet": ((0.004,), (0.2,)),
        "convs2s": ((0.004,), (0.2,)),
        "recurrent-experts": ((0.003,), (0.3,)),
    }
}
"""For rungs whose best was the largest learning rate and the smallest dropout."""
THIRD_ROUND: dict[str, dict[str, Grid]] = {
    "what-attention-buys": {
        "lstm": ((0.006,), (0.3,)),
        "gru": ((0.003,), (0.4,)),
        "luong": ((0.003,), (0.3, 0.4)),
        "bahdanau": ((0.003,), (0.3, 0.4)),
        "deep-att": ((0.003,), (0.3, 0.4)),
        "gnmt": ((0.003,), (0.3, 0.4)),
        "recurrent-experts": ((0.003,), (0.4, 0.5)),
        "convs2s": ((0.004,), (0.3,)),
        "lm": ((0.003,), (0.3, 0.4)),
        "transformer-experts": ((0.003,), (0.3, 0.4)),
        "transformer": ((0.003,), (0.3, 0.4)),
    },
    "language": {
        "window": ((0.003, 0.006), (0.1, 0.2)),
        "convolutional": ((0.003, 0.006), (0.1, 0.2)),
        "lstm": ((0.003, 0.006), (0.3, 0.4)),
        "transformer": ((0.003, 0.006), (0.1, 0.2)),
    },
}
"""With the ladder's own budget, with which the dropout that is best for half of it may be too small."""
ROUNDS = (FIRST_ROUND, SECOND_ROUND, THIRD_ROUND)
_DROPOUT_KEYS = ("embedding", "encoder", "decoder")
"""The tables of a Transformer that have a dropout of their own."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", choices=sorted(FIRST_ROUND))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--parallel", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--device", default=None)
    parser.add_argument("--round", type=int, choices=(1, 2, 3), default=1, help="which settings to try (default: 1)")
    parser.add_argument("--rungs", default=None, help="tune these only, separated by commas")
    parser.add_argument("--out", type=Path, default=None, help="folder of the runs, to continue later")
    options = parser.parse_args()
    overrides = [*options.overrides, f"parallel={options.parallel}", "seeds=1", "sizes=[1.0]", "recall=[]"]
    ladder, rest = read_ladder(options.ladder, overrides)
    grids = ROUNDS[options.round - 1].get(options.ladder, {})
    chosen = list(grids) if options.rungs is None else options.rungs.split(",")
    tries = make_tries(ladder, {name: grids[name] for name in chosen})
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder)
        results = run_ladder(tries, rest, out, device=options.device, log=lambda message: print(message, flush=True))
    changes = {rung.name: rung.note for rung in tries.rungs}
    cases = [
        {
            "rung": result["rung"].partition(".")[0],
            "changes": changes[result["rung"]],
            "budget": ladder.budget.plain(),
            **({"problem": result["problem"]} if "problem" in result else {"scores": result["scores"]["valid"]}),
        }
        for result in results
    ]
    for case in cases:
        print(json.dumps(case), flush=True)
    cases = [*known_cases(f"tries-{options.ladder}"), *cases]
    print(f"Results written to {write_results(f'tries-{options.ladder}', cases)}")
    return 0


def known_cases(name: str) -> list[dict[str, Any]]:
    """The tries that are recorded already."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []


def make_tries(ladder: Ladder, grids: Mapping[str, Grid]) -> Ladder:
    """A ladder with a rung for each try, tested on the validation set."""
    recipes = validate(ladder)
    valid = next(iter(recipes.values())).recipe.data.valid
    rungs = []
    for name, grid in grids.items():
        rung = ladder.rung(name)
        own = recipes[name].recipe.model
        for number, (lr, dropout) in enumerate(product(*grid)):
            model: dict[str, Any] = {"dropout": dropout}
            if "dropout" not in own:
                model = {key: {"dropout": dropout} for key in _DROPOUT_KEYS if key in own}
            changed = merge_settings(rung.overrides, {"train": {"schedule": {"lr": lr}}, "model": model})
            settings = {"name": f"{name}.{number}", "overrides": changed, "note": f"lr = {lr}, dropout = {dropout}"}
            rungs.append(RungConfig(**{**rung.plain(), **settings}))
    data = {"data": {"test": {"valid": valid.plain()}}}
    shared = {**ladder.overrides, "data": {**ladder.overrides.get("data", {}), **data["data"]}}
    return ladder.model_copy(update={"rungs": tuple(rungs), "overrides": shared, "test": "valid"})


if __name__ == "__main__":
    raise SystemExit(main())
