"""Tune the rungs of a ladder with the same small effort: a few settings each, compared on the validation set.

    python benchmarks/quality/ladder_tries.py what-attention-buys --parallel 12 --set budget.value=8e6

Every rung in `TRIES` is trained with each of its learning rates and dropouts, for a smaller budget than the ladder's.
No choice depends on test data. All tries and their scores are written to benchmarks/results/tries-LADDER.json; the best
of each rung is what the ladder then says.
"""

import argparse
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import write_results

from regard.lab.compare.ladder import Ladder, RungConfig, read_ladder
from regard.lab.compare.plan import validate
from regard.lab.compare.runner import run_ladder
from regard.task.init_from import merge_settings

TRIES: dict[str, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
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
}
"""By ladder and rung: learning rates and dropouts."""
_DROPOUT_KEYS = ("embedding", "encoder", "decoder")
"""The tables of a Transformer that have a dropout of their own."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", choices=sorted(TRIES))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--parallel", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--device", default=None)
    parser.add_argument("--rungs", default=None, help="tune these only, separated by commas")
    parser.add_argument("--out", type=Path, default=None, help="folder of the runs, to continue later")
    options = parser.parse_args()
    overrides = [*options.overrides, f"parallel={options.parallel}", "seeds=1", "sizes=[1.0]", "recall=[]"]
    ladder, rest = read_ladder(options.ladder, overrides)
    rungs = list(TRIES[options.ladder]) if options.rungs is None else options.rungs.split(",")
    tries = make_tries(ladder, rungs)
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
    print(f"Results written to {write_results(f'tries-{options.ladder}', cases)}")
    return 0


def make_tries(ladder: Ladder, names: list[str]) -> Ladder:
    """A ladder with a rung for each try, tested on the validation set."""
    recipes = validate(ladder)
    valid = next(iter(recipes.values()))[0].data.valid
    rungs = []
    for name in names:
        rung = ladder.rung(name)
        own = recipes[name][0].model
        for number, (lr, dropout) in enumerate(product(*TRIES[ladder.name][name])):
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
