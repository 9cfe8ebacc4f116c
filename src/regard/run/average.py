"""Averaging checkpoints into a model of its own, after or during a run (Vaswani et al. 2017, §6.1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import check_encodable, new_folder
from regard.model import build_empty, read_any_config
from regard.run.checkpoint import CheckpointReader, average_tensors
from regard.run.folder import TOKENIZERS, check_digests, checkpoint_metadata, load_weights, origin_of, write_model
from regard.run.locate import find_checkpoint, note, split_checkpoint

_COPIED = ("recipe.toml", "held-out.jsonl", "held-out.mrg", "held-out.npz")
"""Files of a run that its averaged model needs to be evaluated on the same test sets."""


def average_checkpoints(names: Sequence[str | Path], out: Path | None = None, *, last: int = 5) -> tuple[Path, str]:
    """Write the mean of the weights of some checkpoints as a model; returns its folder, and a description.

    A name is a run folder, of which the `last` checkpoints are taken (no temporary ones), or a single checkpoint,
    RUN@STEP. Several runs must have the same model and tokenizers. `out` is a new folder: by default, RUN-average.
    """
    first = split_checkpoint(names[0])[0]
    out = Path(f"{first if first.name.strip('.') else first.resolve()}-average") if out is None else out
    check_encodable(out)
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder with --out.")
    sources = list(dict.fromkeys(source for name in names for source in _sources(name, last)))
    readers = {folder: CheckpointReader(folder / "checkpoints") for folder, _ in sources}
    states = {(folder, step): readers[folder].read_state(step) for folder, step in sources}
    metadata = _shared_metadata(sources, states, readers)
    check_digests(first, metadata, readers[first].path(sources[0][1]) / "state.json")
    labels = [f"{folder}@{step}" for folder, step in sources]
    step = max(step for _, step in sources)
    origin = origin_of(metadata) | {
        "steps": step,
        "final_weights": {"kind": "average", "step": step, "checkpoints": len(sources)},
        "averaged": labels,
    }
    model = build_empty(read_any_config(metadata.get("model"), f"{labels[0]}: model"))
    with new_folder(out) as temporary:
        weights = average_tensors(
            readers[folder].read_group(step, states[folder, step], "model") for folder, step in sources
        )
        load_weights(model, weights, readers[first].path(sources[0][1]))
        files = dict.fromkeys((*TOKENIZERS, *metadata.get("sha256", {}), *_COPIED))
        write_model(temporary, model, [first / name for name in files], origin)
    return out, f"the average of {_count(labels)}: {', '.join(labels)}."


def _sources(name: str | Path, last: int) -> list[tuple[Path, int]]:
    """The run folders and steps of the checkpoints that a name means, all with intact weights."""
    folder, chosen = split_checkpoint(name)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder.")
    if chosen is not None:
        _, step = find_checkpoint(name)
        assert step is not None
        return [(folder, step)]
    reader = CheckpointReader(folder / "checkpoints", note)
    if not reader.steps():
        raise UserError(f"{folder} has no checkpoints to average.")
    steps = reader.last_steps(last)
    if len(steps) < last:
        note(f"{folder} has {_count(steps)}, fewer than the {last} that --last asks for.")
    return [(folder, step) for step in steps]


def _shared_metadata(
    sources: Sequence[tuple[Path, int]], states: dict[tuple[Path, int], Any], readers: dict[Path, CheckpointReader]
) -> dict[str, Any]:
    """What the checkpoints say about their model; an error if they do not agree."""
    found = [checkpoint_metadata(states[source], readers[source[0]].path(source[1])) for source in sources]
    for (folder, _), metadata in zip(sources, found, strict=True):
        for key, what in (("model", "model config"), ("sha256", "tokenizers")):
            if metadata.get(key) != found[0].get(key):
                raise UserError(f"{folder} and {sources[0][0]} have different {what}, so they cannot be averaged.")
    return found[-1]


def _count(checkpoints: Sequence[object]) -> str:
    return "1 checkpoint" if len(checkpoints) == 1 else f"{len(checkpoints)} checkpoints"
