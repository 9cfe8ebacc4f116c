"""Claiming a run folder: a new run begins in it, or an earlier one is resumed, by one process at a time.

A resumed run has the recipe it was started with. Settings that only say how long it goes on, what it writes and which
weights it ends with may change (`MAY_CHANGE`), also after the run has finished: it is then extended. The recipe.toml in
the folder is replaced before any step is taken, so that it always says what runs.
"""

import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import check_encodable, remove_unfinished, write_text
from regard.run import read_origin
from regard.run.checkpoint import CheckpointReader
from regard.run.folder import check_digests
from regard.run.lock import check_not_in_use, is_unused, lock_run
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe, write_recipe
from regard.task.registry import read_values
from regard.train.config import TrainConfig
from regard.train.task import LogFn

MAY_CHANGE = (
    "steps",
    "epochs",
    "patience",
    "log_every",
    "validate_every",
    "save_every",
    "keep_checkpoints",
    "final_weights",
    "average_last",
)
"""Keys of [train] that may change when a run is resumed."""
_DECIDE_RESULT = ("steps", "epochs", "patience", "final_weights", "average_last")
"""Those of them that a finished model depends on."""


def claim_folder(recipe: Recipe, folder: Path, resume: bool, stack: ExitStack, log: LogFn) -> bool:
    """Prepare a folder to train a recipe in; returns whether the run has already finished.

    The folder is locked until `stack` is closed. Nothing changes if the run has finished, or if it is refused.
    """
    check_encodable(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another folder with --out.")
    if _is_finished(recipe, folder, resume):
        return True
    text = write_recipe(recipe)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot write there ({error.strerror}); choose another folder with --out.") from None
    stack.callback(_remove_if_empty, folder)
    stack.enter_context(lock_run(folder, log))
    if _is_finished(recipe, folder, resume):  # by the process that had the lock before
        return True
    for part in (folder, folder / "checkpoints"):
        remove_unfinished(part)
    path = folder / "recipe.toml"
    if not path.is_file():
        write_text(path, text)
        return False
    reader = CheckpointReader(folder / "checkpoints")
    newest = reader.newest(())
    if newest is not None:  # the tokenizers must be those that it was trained with
        check_digests(folder, reader.read_state(newest).get("run") or {}, reader.path(newest) / "state.json")
    elif (folder / "run.json").is_file():
        raise UserError(f"{folder} has a finished model but no checkpoint to continue from; start a new run.")
    if _may_continue(read_recipe(path).train, recipe.train, reader, newest, log):
        write_text(path, text)
    return False


def settings_of_result(config: TrainConfig) -> dict[str, Any]:
    """The settings that may change, for run.json: they tell whether its model is that of the recipe."""
    return {key: value for key, value in config.plain().items() if key in _DECIDE_RESULT}


def _is_finished(recipe: Recipe, folder: Path, resume: bool) -> bool:
    """Whether the run in a folder has finished with the settings of this recipe; an error if it is another run."""
    if not folder.exists():
        return False
    path = folder / "recipe.toml"
    if not resume and not is_unused(folder):
        check_not_in_use(folder)
        raise UserError(f"{folder} exists already; continue it with --resume, or choose another folder with --out.")
    if not path.is_file():
        return False
    before, after = read_recipe(path), read_values(tomllib.loads(write_recipe(recipe)))
    for key, old, new in _differences(before.plain(), after.plain()):
        if not _is_permitted(key, before.train, after.train):
            raise UserError(
                f"{folder} was started with another recipe: {key} was {old!r} and is {new!r} now. Resume without "
                f"changes, or start a new run from its weights with --set init_from={folder}."
            )
    if not (folder / "run.json").is_file():
        return False
    origin = read_origin(folder)
    if "train" in origin:
        return bool(origin["train"] == settings_of_result(after.train))
    return bool(origin.get("stopped_early")) or origin.get("steps", 0) >= after.train.steps


def _is_permitted(key: str, before: TrainConfig, after: TrainConfig) -> bool:
    """Whether a setting may differ from that of the run so far."""
    if key == "train.schedule.steps":  # a schedule that ends with the run follows it; others do not use the key
        follows = (before.schedule.steps, after.schedule.steps) == (before.steps, after.steps)
        return follows or after.schedule.kind not in ("linear", "cosine")
    return key in {f"train.{name}" for name in MAY_CHANGE}


def _may_continue(
    before: TrainConfig, after: TrainConfig, reader: CheckpointReader, newest: int | None, log: LogFn
) -> bool:
    """Whether settings have changed; an error if the run cannot go on with them. Logs what the change means."""
    old, new = before.plain(), after.plain()
    changed = [key for key in MAY_CHANGE if old.get(key) != new.get(key)]
    if not changed:
        return False
    if newest is not None:
        _check_extension(before, after, reader, newest)
    log("Continuing with " + ", ".join(f"train.{key} = {new[key]} (was {old[key]})" for key in changed) + ".")
    if after.schedule.kind in ("linear", "cosine") and before.schedule.steps != after.schedule.steps:
        step = (newest or 0) + 1
        log(
            f"The {after.schedule.kind} schedule now ends at step {after.steps:,} instead of {before.steps:,}: the "
            f"learning rate of step {step:,} is {after.schedule.at(step):.3g}, and was to be "
            f"{before.schedule.at(step):.3g}."
        )
    return True


def _check_extension(before: TrainConfig, after: TrainConfig, reader: CheckpointReader, newest: int) -> None:
    """Refuse settings that contradict the steps already taken."""
    folder = reader.folder.parent
    best = reader.read_state(newest)["metadata"].get("best", {})
    if 0 < after.steps < newest:
        raise UserError(f"{folder} has taken {newest:,} steps, so train.steps cannot be {after.steps:,}.")
    if before.steps < after.steps and 0 < after.patience <= best.get("stale", 0):
        raise UserError(
            f"{folder} has stopped early, after {best['stale']} validations without improvement; to go on, set "
            f"train.patience to more than {best['stale']}, or to 0."
        )
    is_saved = not best.get("step") or best["step"] in reader.steps()
    if after.final_weights == "best" != before.final_weights and not is_saved:
        raise UserError(
            f"{folder}: train.final_weights cannot become best: the weights that did best so far, those of step "
            f"{best['step']:,}, were not kept."
        )


def _differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The settings in which two recipes differ, of those that affect training: key, old and new value."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        if before != after:
            yield key, before, after
        return
    for name in {**before, **after}:
        if not key and name in ("name", "description", "limitations", "expect"):
            continue
        if (key, name) == ("train", "parallel"):  # the number of processes does not change the steps
            continue
        yield from _differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)


def _remove_if_empty(folder: Path) -> None:
    """Leave no empty folder behind if the run could not begin."""
    with suppress(OSError):
        folder.rmdir()
