"""From a recipe to a finished run folder.

    recipe.toml         the recipe, everything filled in
    held-out.jsonl      the pairs taken out to watch the run, where the recipe names none
    tokenizer.json      what makes ids of text (target_tokenizer.json too, where the two languages differ)
    metrics.jsonl       how training went, a line of numbers at a time; tensorboard/ the same for TensorBoard
    checkpoints/        what a stopped run goes on from
    run.json, model.safetensors, README.md   the model, once it is finished, and its card

Nothing is done twice that is there already, and nothing that is there is lost.
"""

import contextlib
import platform
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.config import ConfigError
from regard.cost import Cost, Work, advice_for_memory, estimate, this_hardware
from regard.data.corpus import Corpus
from regard.data.pairs import Pair
from regard.errors import UserError
from regard.files import sweep, write_text
from regard.model import EncoderDecoder
from regard.run import finish, read_facts
from regard.score import TranslationScore
from regard.task.card import model_card
from regard.task.prepare import HELD_OUT, Prepared, prepare
from regard.task.recipe import Recipe, read_recipe, write_recipe
from regard.task.translation import TranslationTask
from regard.task.translator import load_translator
from regard.train.layout import check_division
from regard.train.loop import Listener, Loop, Outcome, Silent
from regard.train.settings import TrainConfig
from regard.train.world import ALONE, World

_ORDINARY = 25
"""Tokens of a sentence, where nothing is known of it."""


@dataclass(frozen=True)
class Trained:
    """A finished run: where it is and how it did on each of its test sets."""

    folder: Path
    scores: dict[str, TranslationScore]
    seconds: float


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    listener: Listener | None = None,
    world: World = ALONE,
) -> Trained:
    """Train a recipe in a folder: from its beginning, or where it was left if `resume` is given.

    Called in each process of a `world`; the folder must be one they all see. Only the first speaks and writes.
    """
    listener = listener if listener is not None and world.first else Silent()
    place = torch.device(device)
    check_division(recipe.train.parallel, world.size)
    fresh = world.first and not (folder / "recipe.toml").exists()
    if world.from_first(lambda: _claim(recipe, folder, resume)):
        listener.say(f"{folder}: this run is finished already.")
        return _finished(folder)
    try:
        prepared, model = world.in_turn(lambda: _model_and_data(recipe, folder, listener))
        task = TranslationTask(recipe, prepared, model, world)
        loop = Loop(task, recipe.train, folder, device=place, listener=listener, world=world)
    except UserError:
        if fresh:
            _give_up(folder)
        raise
    listener.say(f"Training on {task.batches.report}")
    cost = _preflight(recipe, task, place, listener)
    outcome = loop.run(resume=resume)
    half = recipe.train.store == "float16"
    if half:  # what is scored is what is stored
        model.load_state_dict({key: value.half().float() for key, value in model.state_dict().items()})
    scores = _score_tests(task, listener)
    if world.first:
        origin = _origin(task, outcome, cost, scores, place)
        write_text(folder / "README.md", model_card(recipe, origin))
        finish(model, folder, origin=origin, half=half)
    return Trained(folder, scores, outcome.progress.seconds)


def with_parallel(recipe: Recipe, kind: str | None, shard: int | None, processes: int | None = None) -> Recipe:
    """The recipe, computed by several processes in the way asked for; what it gives is the same."""
    before = recipe.train.parallel
    kind = kind or before.kind
    given = {"kind": kind, "shard": shard or (before.shard if kind == before.kind else None)}
    try:
        train = TrainConfig(**(recipe.train.plain() | {"parallel": before.plain() | given}))
    except ConfigError as error:
        raise ConfigError(f"train.{error.key}", error.problem) from None
    check_division(train.parallel, processes or 1)
    return recipe.model_copy(update={"train": train})


def _claim(recipe: Recipe, folder: Path, resume: bool) -> bool:
    """Make the folder this recipe's, or see that it is; whether its run is finished already."""
    path = folder / "recipe.toml"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another folder by --out.")
    if folder.exists() and not resume and (path.exists() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; go on with it by --resume, or choose another folder by --out.")
    if path.is_file():
        before = read_recipe(path)
        difference = _difference(before.plain(), Recipe.read(tomllib.loads(write_recipe(recipe))).plain())
        if difference is not None:
            raise UserError(
                f"{folder} was started with another recipe: {difference}. Go on without changes, or start a new run "
                f"from its weights with --set init_from={folder}."
            )
        sweep(folder)
        return (folder / "run.json").is_file()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot write there ({error.strerror}); choose another folder by --out.") from None
    write_text(path, write_recipe(recipe))
    return False


def _give_up(folder: Path) -> None:
    """Take back what a run wrote that found no data to begin with: nothing is to be in the next attempt's way."""
    for name in ("tokenizer.json", "target_tokenizer.json", HELD_OUT, "recipe.toml"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _difference(before: Any, after: Any, key: str = "") -> str | None:
    """The first setting two recipes differ in, that has to do with how a run goes."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            if not key and name in ("name", "description", "expect"):
                continue
            if (key, name) == ("train", "parallel"):  # any number of processes takes the same steps
                continue
            found = _difference(before.get(name), after.get(name), f"{key}.{name}" if key else name)
            if found is not None:
                return found
        return None
    return None if before == after else f"{key} was {before!r} and is {after!r} now"


def _model_and_data(recipe: Recipe, folder: Path, listener: Listener) -> tuple[Prepared, EncoderDecoder]:
    """Tokenizers, stores of ids and a model with its first weights."""
    if recipe.init_from is None:
        prepared = prepare(recipe, folder, listener.say, None)
        shared = prepared.source is prepared.target
        sizes = (prepared.target.vocabulary, None if shared else prepared.source.vocabulary)
        torch.manual_seed(recipe.train.seed)
        return prepared, recipe.model_settings(*sizes).build()
    first = load_translator(recipe.init_from)
    tokenizers = first.source_text, first.target_text
    tokenizers[0].save(folder / "tokenizer.json")
    if tokenizers[1] is not tokenizers[0]:
        tokenizers[1].save(folder / "target_tokenizer.json")
    listener.say(f"Starting from the weights and tokenizers of {recipe.init_from}.")
    torch.manual_seed(recipe.train.seed)
    return prepare(recipe, folder, listener.say, tokenizers), first.encoder_decoder.train()


def likely_cost(recipe: Recipe) -> Cost:
    """What a run will take, guessed from the recipe alone: full batches, rows of ordinary sentences."""
    config, length = recipe.train, min(_ORDINARY, recipe.train.tokens)
    rows = max(1, config.tokens // length)
    work = Work(rows, length, length, config.steps, config.accumulate, passes=_passes(recipe))
    return estimate(
        recipe.settings,
        work,
        precision=config.precision,
        optimiser=config.optimiser.kind,
        recompute=config.recompute,
    )


def _preflight(recipe: Recipe, task: TranslationTask, device: torch.device, listener: Listener) -> Cost:
    """What the run will take, of all processes together, said before it begins."""
    report, config, size = task.batches.report, recipe.train, task.world.size
    sides = [sum(shape.lengths[side] * shape.rows for shape in task.batches.shapes) for side in (0, 1)]
    rows = max(1, round(report.items / report.batches))
    cells = report.cells / report.batches / (sum(sides) or 1)
    lengths = [max(1, round(side * cells / rows)) for side in sides]
    work = Work(
        rows=rows,
        source=lengths[0],
        target=lengths[1],
        steps=config.steps,
        accumulate=config.accumulate,
        tokens=max(config.tokens, *lengths),
        passes=_passes(recipe),
    )
    shared_out = size > 1 and config.parallel.kind == "fsdp"
    cost = estimate(
        task.model.config,
        work,
        precision=config.precision,
        optimiser=config.optimiser.kind,
        processes=size,
        shards=(config.parallel.shard or size) if shared_out else 1,
        recompute=config.recompute,
    )
    hardware = this_hardware(device)
    captured = device.type == "cuda" and config.capture and cost.recordable  # as the loop decides it
    listener.say(f"Before it begins: {cost.describe(hardware, captured=captured)}.")
    advice = advice_for_memory(cost, hardware, captured=captured)
    if advice is not None:
        listener.say(advice)
    return cost


def _passes(recipe: Recipe) -> int:
    return 2 if recipe.train.loss.consistency else 1


def _score_tests(task: TranslationTask, listener: Listener) -> dict[str, TranslationScore]:
    """The test sets, by the search the recipe names; without any, the pairs held out."""
    recipe, prepared = task.recipe, task.prepared
    sets: dict[str, list[Pair]] = {name: list(Corpus(name, (part,)).read()) for name, part in recipe.data.test.items()}
    if not sets and prepared.valid_pairs:
        sets = {"valid" if recipe.data.valid is not None else "held-out": prepared.valid_pairs}
    scores = {}
    for name, pairs in sets.items():
        scores[name] = task.score(pairs, recipe.decode)
        listener.say(f"{name}: BLEU {scores[name].bleu:.2f}, chrF {scores[name].chrf:.2f}{_expected(recipe, name)}.")
    return scores


def _expected(recipe: Recipe, name: str) -> str:
    """What the recipe says to expect, for whoever asks what number they should get."""
    score = None if recipe.expect is None else recipe.expect.scores.get(name)
    if score is None or recipe.expect is None:
        return ""
    spread = "" if score.spread is None else f" ± {score.spread:.2f}"
    chrf = "" if score.chrf is None else f", chrF {score.chrf:.1f}"
    source = "" if recipe.expect.measured else f"; {recipe.expect.source}"
    return f" (expected: BLEU {score.bleu:.1f}{spread}{chrf}{source})"


def _origin(
    task: TranslationTask, outcome: Outcome, cost: Cost, scores: dict[str, TranslationScore], device: torch.device
) -> dict[str, Any]:
    """Where a model comes from, as plain data for run.json and the card."""
    import regard

    recipe, prepared, processes = task.recipe, task.prepared, task.world.size
    progress = outcome.progress
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "recipe": recipe.name,
        "task": recipe.task,
        "seed": recipe.train.seed,
        "steps": progress.step,
        "stopped_early": outcome.stopped_early,
        "weights": outcome.weights,
        "words": progress.words,
        "parts": progress.parts,
        "seconds": round(progress.seconds, 1),
        "flops": cost.flops_per_step * progress.step,
        "parameters": cost.parameters,
        "non_embedding": cost.non_embedding,
        "device": name if processes == 1 else f"{processes} × {name}",
        "versions": {"regard": regard.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
        "data": prepared.fingerprints,
        "decode": recipe.decode.plain(),
        "scores": {
            name: {
                "bleu": round(score.bleu, 2),
                "chrf": round(score.chrf, 2),
                "sentences": score.sentences,
                "bleu_signature": score.bleu_signature,
                "chrf_signature": score.chrf_signature,
            }
            for name, score in scores.items()
        },
    }


def _finished(folder: Path) -> Trained:
    origin = read_facts(folder)["origin"]
    scores = {name: TranslationScore(**values) for name, values in origin["scores"].items()}
    return Trained(folder, scores, origin["seconds"])
