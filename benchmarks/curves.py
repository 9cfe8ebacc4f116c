"""Does the fast path learn as the plain one does? Loss curves of both on real batches, over several seeds.

    python benchmarks/curves.py --device cuda            # 300 steps, 3 seeds
    python benchmarks/curves.py --device cpu --quick     # a few steps of a toy model; nothing is written

The model of the recipe multi30k-en-de, dropout and all, is trained from the same first weights on the same batches in
two ways. The reference is as plain as it gets: the model's own forward in float32 without TF32, PyTorch's cross
entropy, nothing fused, nothing recorded. The other way is the training loop itself: on a GPU the fast form in bf16,
replayed from CUDA graphs; on a CPU the fast form in float32. Optimiser, schedule and clipping are the recipe's in both,
with a rate that peaks within the few steps. Dropout draws other numbers in the two, so the curves of a seed differ by
chance; what is compared are means over seeds.

It passes if the means over the last 50 steps differ by at most two standard errors, taken from the seeds, or by 1 % of
the loss where that is more. The validation loss at the end is taken in float32 with the plain model for both.
"""

import argparse
import math
import statistics
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from common import say, write_results
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import Batch
from regard.model import EncoderDecoder
from regard.task.prepare import Prepared, prepare
from regard.task.reading import read_translation
from regard.task.translation import TranslationTask
from regard.task.translation_recipe import TranslationRecipe
from regard.train.gradient import Gradients
from regard.train.loop import Loop
from regard.train.loss import Loss

RECIPE = "multi30k-en-de"
MARKS = (50, 100, 200, 300)
SMOOTHED, COMPARED, DRAWN = 20, 50, 10
"""Over how many steps a loss is taken at a mark, in the comparison, and for each point of a curve."""
TOY = [
    "model.width=32",
    *(f"model.{side}.layers=1" for side in ("encoder", "decoder")),
    *(f"model.{side}.feed_forward.hidden=64" for side in ("encoder", "decoder")),
    "tokenizer.vocabulary=600",
    "train.tokens=1024",
]


class PlainTask(TranslationTask):
    """The task with a loss of PyTorch's own."""

    def loss(self, forward: Any, batch: Batch) -> Loss:
        return self._entropy(forward, batch, self.recipe.train.loss.smoothing)

    def plain_loss(self, forward: Any, batch: Batch) -> Loss:
        return self._entropy(forward, batch, 0.0)

    def _entropy(self, forward: Any, batch: Batch, smoothing: float) -> Loss:
        start = self.model.config.tokens.start
        assert start is not None
        before = torch.cat((torch.full_like(batch.target[:, :1], start), batch.target[:, :-1]), dim=1)
        logits = forward(batch.source, before, source_lengths=batch.source_lengths).flatten(0, 1)
        real = torch.arange(batch.target.shape[1], device=logits.device) < batch.target_lengths[:, None]
        wanted = batch.target.masked_fill(~real, -100).flatten()
        total = functional.cross_entropy(logits, wanted, label_smoothing=smoothing, reduction="sum")
        with torch.no_grad():
            plain = functional.cross_entropy(logits, wanted, reduction="sum") if smoothing else total
        return Loss(total, plain, real.sum())


def plain_losses(recipe: TranslationRecipe, prepared: Prepared, model: EncoderDecoder, device: str) -> list[float]:
    """The loss of every step, taken the plain way."""
    config = recipe.train
    task = PlainTask(recipe, prepared, model.to(device).train())
    optimiser = config.optimiser.build(model)
    gradients = Gradients[Batch](task, "fp32", model)
    losses: list[Tensor] = []
    for step, batch in enumerate(islice(task.batches.epochs(), config.steps), start=1):
        loss = gradients.add(batch.to(device), torch.full((), 1 / batch.count, device=device))
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimiser.step(config.schedule.at(step))
        optimiser.forget_gradients()
        losses.append(loss.mean)
    return _numbers(losses)


def fast_losses(recipe: TranslationRecipe, prepared: Prepared, model: EncoderDecoder, device: str) -> list[float]:
    """The loss of every step, taken as `regard train` takes it."""
    task = TranslationTask(recipe, prepared, model)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(task, recipe.train, Path(folder), device=device)
        return _numbers([loss.mean for loss in loop.steps(recipe.train.steps)])


@torch.no_grad()
def validation_loss(recipe: TranslationRecipe, prepared: Prepared, model: EncoderDecoder, device: str) -> float:
    """In float32, by the plain model, nothing smoothed."""
    task = PlainTask(recipe, prepared, model.eval())
    losses = [task.plain_loss(model, batch.to(device)) for batch in task.validation()]
    return float(sum(float(loss.plain) for loss in losses) / sum(int(loss.count) for loss in losses))


def run_seed(recipe: TranslationRecipe, seed: int, device: str) -> dict[str, dict[str, Any]]:
    """Both ways with one seed: losses of all steps, and the validation loss at the end."""
    seeded = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed})})
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(seeded, Path(folder), lambda sentence: None, None)
        for way, train in (("plain", plain_losses), ("fast", fast_losses)):
            torch.manual_seed(seed)  # the same first weights
            model = seeded.encoder_decoder_settings(prepared.target.vocabulary).build()
            losses = train(seeded, prepared, model, device)
            found[way] = {"losses": losses, "validation": validation_loss(seeded, prepared, model, device)}
    return found


def judge(runs: list[dict[str, dict[str, Any]]], steps: int) -> dict[str, Any]:
    """What the curves of all seeds say."""
    last = {way: [_late(run[way]["losses"], steps, COMPARED) for run in runs] for way in ("plain", "fast")}
    plain, fast = (statistics.mean(last[way]) for way in ("plain", "fast"))
    error = math.sqrt(sum(_spread(values) ** 2 for values in last.values()) / len(runs))
    allowed = max(2 * error, 0.01 * plain)
    apart = [one - other for one, other in zip(last["fast"], last["plain"], strict=True)]
    valid = {way: [run[way]["validation"] for run in runs] for way in ("plain", "fast")}
    return {
        f"loss_of_the_last_{COMPARED}_steps": {"plain": plain, "fast": fast},
        "difference": fast - plain,
        "standard_error": error,
        "allowed": allowed,
        "difference_by_seed": apart,
        "passed": abs(fast - plain) <= allowed,
        "marks": [_mark(runs, step) for step in MARKS if step <= steps] or [_mark(runs, steps)],
        "validation_loss": {way: statistics.mean(values) for way, values in valid.items()},
        "validation_spread": {way: _spread(values) for way, values in valid.items()},
        "validation_difference": statistics.mean(valid["fast"]) - statistics.mean(valid["plain"]),
    }


def _mark(runs: list[dict[str, dict[str, Any]]], step: int) -> dict[str, float]:
    plain, fast = ([_late(run[way]["losses"], step, SMOOTHED) for run in runs] for way in ("plain", "fast"))
    return {
        "step": step,
        "plain": statistics.mean(plain),
        "fast": statistics.mean(fast),
        "difference": statistics.mean(fast) - statistics.mean(plain),
        "plain_spread": _spread(plain),
        "fast_spread": _spread(fast),
    }


def _late(losses: list[float], step: int, count: int) -> float:
    """The mean of the last losses up to a step."""
    return statistics.mean(losses[max(0, step - count) : step])


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _numbers(losses: list[Tensor]) -> list[float]:
    numbers: list[float] = torch.stack(losses).float().tolist()
    return numbers


def _curve(losses: list[float]) -> list[float]:
    """A loss for every few steps."""
    return [round(statistics.mean(losses[first : first + DRAWN]), 4) for first in range(0, len(losses), DRAWN)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--quick", action="store_true", help="a toy model, few steps, and nothing is written")
    options = parser.parse_args()
    steps = options.steps or (12 if options.quick else 300)
    torch.set_float32_matmul_precision("highest")
    precision = "bf16" if options.device == "cuda" else "fp32"
    recipe = read_translation(
        RECIPE,
        [
            f"train.steps={steps}",
            f"train.precision={precision}",
            "train.schedule.rate=0.001",
            f"train.schedule.warmup={max(1, steps // 3)}",
            *(TOY if options.quick else []),
            *options.changes,
            "train.loss.consistency=0.0",  # the plain way has one pass
        ],
    )
    runs, cases = [], []
    for seed in options.seeds:
        runs.append(run_seed(recipe, seed, options.device))
        for way, found in runs[-1].items():
            facts = {"curve": _curve(found["losses"]), "validation_loss": found["validation"]}
            cases.append(say({"case": f"{way}, seed {seed}", "steps_a_point": DRAWN, **facts}))
    case = f"{RECIPE}, {steps} steps: plain float32 and the training loop's {precision}"
    cases.append(say({"case": case, "seeds": options.seeds, "changes": options.changes, **judge(runs, steps)}))
    if not options.quick:
        print(f"written: {write_results(f'curves-{options.device}', cases)}")
    return 0 if cases[-1]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
