"""Which model a name means: a run folder, one of its checkpoints, or a pretrained model.

    runs/quick          the finished model or, if the run has not finished, its newest checkpoint
    runs/quick@last     the newest checkpoint
    runs/quick@best     the checkpoint that did best on the validation set
    runs/quick@1500     the checkpoint of step 1,500
    en-tr               a model that ships with the package

A folder that exists is always taken by its own name, even if that contains an @.
"""

import os
import re
import shlex
import sys
from importlib import resources
from pathlib import Path

from regard.errors import UserError
from regard.run.checkpoint import CheckpointReader

_printed: set[str] = set()
"""Messages that this process has printed."""


def find_model(name: str | Path) -> Path:
    """The folder of a model: of the run, if `name` is one of its checkpoints, or of the pretrained model."""
    return split_checkpoint(name)[0]


def split_checkpoint(name: str | Path) -> tuple[Path, str | None]:
    """The folder of a model, and the checkpoint that its name asks for: "last", "best", a step, or None."""
    path = Path(name)
    if path.exists():
        return path, None
    base, sign, checkpoint = str(name).rpartition("@")
    if sign and base:
        folder = _folder(base)
        if re.fullmatch(r"last|best|[0-9]+", checkpoint):
            return folder, checkpoint
        if folder.is_dir():
            raise UserError(f"{name}: the checkpoint after the @ is last, best, or a step such as 1500.")
    return _folder(str(name)), None


def find_checkpoint(name: str | Path, *, verify: bool = True) -> tuple[Path, int | None]:
    """The folder of a model, and the step of the checkpoint that its name means; None for a finished model.

    With `verify`, the checkpoint's weights are intact; otherwise only its state.json was read.
    """
    folder, chosen = split_checkpoint(name)
    if chosen is None and not is_unfinished(folder):
        return folder, None
    reader = CheckpointReader(folder / "checkpoints", note)
    groups = ("model", "ema") if verify else ()
    steps = reader.steps()
    if not steps and chosen is None:
        raise UserError(
            f"{folder}: this run has not finished, and it has no checkpoint yet; resume it with "
            f"`regard train {shlex.quote(str(folder))} --resume`."
        )
    if not steps:
        raise UserError(f"{name}: {folder} has no checkpoints.")
    if chosen in (None, "last"):
        step = reader.newest(groups)
        if step is None:
            raise UserError(f"{folder / 'checkpoints'}: all checkpoints are damaged; restore one from a copy.")
        return folder, step
    step = reader.best_step() if chosen == "best" else int(str(chosen))
    if step is None:
        raise UserError(f"{name}: no checkpoint is marked as the best; choose {folder}@last, or the step of another.")
    if step not in steps:
        known = ", ".join(map(str, steps))
        raise UserError(f"{name}: {folder} has no checkpoint of step {step}; it has those of {known}.")
    reader.check(step, groups)
    return folder, step


def pin_checkpoint(name: str | Path) -> str:
    """The name of the same model that stays the same while the run goes on: RUN@STEP instead of RUN or RUN@last."""
    folder, step = find_checkpoint(name, verify=False)
    return str(folder) if step is None else f"{folder}@{step}"


def model_files(name: str | Path) -> list[Path]:
    """The files whose contents decide what a model is; the state.json of a checkpoint has a SHA-256 of the others."""
    folder, step = find_checkpoint(name, verify=False)
    names = ["model.safetensors", "run.json"] if step is None else [f"checkpoints/step-{step:08}/state.json"]
    files = [folder / name for name in (*names, "tokenizer.json", "target_tokenizer.json")]
    return [path for path in files if path.is_file()]


def is_unfinished(folder: Path) -> bool:
    """Whether a folder is that of a run without a finished model."""
    if (folder / "run.json").is_file():
        return False
    return (folder / "recipe.toml").is_file() or (folder / "checkpoints").is_dir()


def pretrained_models() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(path.name for path in _pretrained_folder().glob("*") if (path / "run.json").is_file())


def note(message: str) -> None:
    """Print a message on standard error, once however often a model is loaded, and by one process of several."""
    if message not in _printed and os.environ.get("RANK", "0") == "0":
        print(f"regard: {message}", file=sys.stderr, flush=True)
    _printed.add(message)


def _folder(name: str) -> Path:
    """`name` itself if it is a path, else the folder of the pretrained model of this name."""
    path = Path(name)
    if path.exists() or path.name != name:
        return path
    pretrained = _pretrained_folder() / path.name
    return pretrained if pretrained.is_dir() else path


def _pretrained_folder() -> Path:
    return Path(str(resources.files("regard") / "pretrained"))
