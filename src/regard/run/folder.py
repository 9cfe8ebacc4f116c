"""The run folder: save a model as a folder of plain files and load it again.

    run.json            metadata: format version, the regard version that wrote it, the model's config, its origin, and
                        a SHA-256 of each of the other files, which are compared when the model is loaded
    model.safetensors   the weights, under their state-dict names
    tokenizer.json      the tokenizer, if there is one (and target_tokenizer.json, if the target side has its own)
    chat_template.jinja how the messages of a chat become a prompt, if an imported language model brought that

A run that has not finished has checkpoints instead of run.json (checkpoint.py), which are loaded in the same way.

Nothing in a folder is ever executed: JSON and safetensors only. A new folder is written under a temporary name and then
renamed, so that a run is either complete or absent. The format version is raised when an older regard could no longer
read what is written; every version of regard reads all earlier formats.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.config import parse_json
from regard.data.tokenizers.tokenizer import read_tokenizer
from regard.errors import UserError, how_to_upgrade
from regard.files import check_encodable, file_sha256, new_file, new_folder, write_text
from regard.model import (
    AnyModel,
    CausalLM,
    Encoder,
    VisionTransformer,
    build_empty,
    build_meta,
    read_any_config,
)
from regard.model.embedding import out_of_vocabulary
from regard.progress import phase
from regard.run.checkpoint import CheckpointReader
from regard.run.locate import find_checkpoint, note, pretrained_models, split_checkpoint
from regard.run.tensors import read_shapes, read_tensors, unusable_reason, write_tensors

FORMAT_VERSION = 1
TOKENIZERS = ("tokenizer.json", "target_tokenizer.json")
CHAT_TEMPLATE = "chat_template.jinja"

Ids = Tensor | Sequence[Sequence[int]]


class LoadedModel:
    """A model from a run folder with its tokenizers.

    `model` is the PyTorch module in evaluation mode, of any kind, and `config` the config it was built from.
    `tokenizer` is None if the folder has none; `target_tokenizer` is the same object unless the two sides differ.
    `path` is the folder the model was loaded from, or None, and `origin` what its run.json says about how it was made.
    `checkpoint` is the step of the run's checkpoint that it was loaded from, or None.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer | None = None,
        target_tokenizer: Tokenizer | None = None,
        *,
        path: Path | None = None,
        origin: Mapping[str, Any] | None = None,
        checkpoint: int | None = None,
    ) -> None:
        self.model = model.eval()
        self.path = path
        self.checkpoint = checkpoint
        self.origin = dict(origin or {})
        self.config = model.config
        self.tokenizer = tokenizer
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer

    def __repr__(self) -> str:
        where = "" if self.path is None else f"{str(self.path)!r}, "
        return f"LoadedModel({where}{self.config.kind}, {self.model.device})"

    @torch.no_grad()
    def logits(self, *ids: Ids, lengths: Sequence[int] | Tensor | None = None) -> Tensor:
        """Next-token logits in float32.  # (batch, tokens, vocabulary)

        A language model takes `logits(ids)`, an encoder–decoder `logits(source_ids, target_ids)`; ids are rows of
        equal length. If rows are padded on the right (for an encoder–decoder, the source rows), `lengths` gives their
        true lengths. An encoder takes `logits(ids)` and returns what its head does, a vision transformer
        `logits(pixels)`.
        """
        device = self.model.device
        true_lengths = None if lengths is None else torch.as_tensor(lengths, device=device)
        if isinstance(self.model, VisionTransformer):
            if len(ids) != 1 or not isinstance(ids[0], Tensor) or true_lengths is not None:
                raise UserError("A vision transformer takes logits(pixels): one tensor and nothing else.")
            logits: Tensor = self.model(ids[0].to(device))
            return logits.float()
        if isinstance(self.model, CausalLM | Encoder):
            kind = "a language model" if isinstance(self.model, CausalLM) else "an encoder"
            (tokens,) = self._checked_ids(ids, f"{kind} takes logits(ids)", [self.config.vocab_size])
            logits = self.model(tokens, lengths=true_lengths)
            return logits.float()
        source_size = getattr(self.config, "source_vocab_size", None) or self.config.vocab_size
        expected = "an encoder–decoder takes logits(source_ids, target_ids)"
        source, target = self._checked_ids(ids, expected, [source_size, self.config.vocab_size])
        logits = self.model(source, target, source_lengths=true_lengths)
        return logits.float()

    def _checked_ids(self, ids: tuple[Ids, ...], expected: str, vocab_sizes: list[int]) -> list[Tensor]:
        """The ids as tensors on the model's device, checked against the vocabulary size of each side."""
        if len(ids) != len(vocab_sizes):
            raise UserError(f"{len(ids)} groups of ids were given, but {expected}.")
        device = self.model.device
        tensors = []
        for rows, size in zip(ids, vocab_sizes, strict=True):
            try:
                tensor = torch.as_tensor(rows, device=device)
            except (ValueError, TypeError, RuntimeError):
                raise UserError("Token ids must be rows of integers of equal length; pad shorter rows.") from None
            if tensor.dim() != 2 or tensor.dtype.is_floating_point or tensor.dtype in (torch.bool, torch.complex64):
                raise UserError(
                    f"Token ids must be integers of shape (rows, tokens); found {tuple(tensor.shape)} of "
                    f"{tensor.dtype}. For a single sentence, pass [ids]."
                )
            if ((tensor < 0) | (tensor >= size)).any():
                raise UserError(out_of_vocabulary(tensor, size))
            tensors.append(tensor.long())
        return tensors


def save_model(
    model: AnyModel,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
    origin: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Path:
    """Write a model as a run folder. `origin` (plain data) is stored in run.json as given.

    An existing folder is an error unless `replace` is true.
    """
    path = Path(folder)
    check_encodable(path)
    with new_folder(path, replace=replace) as temporary:
        for name, given in zip(TOKENIZERS, (tokenizer, target_tokenizer), strict=True):
            if given is not None:
                given.save(str(temporary / name))
        if chat_template is not None:
            (temporary / CHAT_TEMPLATE).write_text(chat_template, encoding="utf-8", newline="")
        write_model(temporary, model, [temporary / name for name in (*TOKENIZERS, CHAT_TEMPLATE)], origin or {})
    return path


def write_model(folder: Path, model: AnyModel, files: Iterable[Path], origin: Mapping[str, Any]) -> None:
    """Write a model into a new folder, with those of the `files` that exist: they are copied if they are elsewhere."""
    write_tensors(folder / "model.safetensors", model.state_dict())
    names = ["model.safetensors"]
    for path in files:
        if path.is_file():
            if path.parent != folder:
                shutil.copyfile(path, folder / path.name)
            names += [path.name] if path.suffix == ".json" or path.name == CHAT_TEMPLATE else []
    (folder / "run.json").write_text(_json(model_metadata(model, origin, folder, names)), encoding="utf-8")


def save_trained_model(
    model: AnyModel,
    folder: Path,
    *,
    origin: Mapping[str, Any],
    half: bool = False,
    files: Iterable[str] = TOKENIZERS,
) -> None:
    """Write a trained model into the folder of its own run, which already holds the tokenizers (or other `files`).

    run.json is written last: its presence makes the folder a model that can be loaded. That of an earlier model is
    removed first, so that it is never found beside the weights of another.
    """
    weights = half_weights(model) if half else model.state_dict()
    with new_file(folder / "model.safetensors") as temporary:
        write_tensors(temporary, weights)
        (folder / "run.json").unlink(missing_ok=True)
    write_text(folder / "run.json", _json(model_metadata(model, origin, folder, ("model.safetensors", *files))))


def half_weights(model: AnyModel) -> dict[str, Tensor]:
    """The weights of a model in float16. Buffers, which are the experts' biases, stay in float32: rounded, they would
    send tokens to other experts."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: tensor.half() if name in parameters else tensor for name, tensor in model.state_dict().items()}


def model_metadata(
    model: AnyModel, origin: Mapping[str, Any], folder: Path, files: Iterable[str] = ()
) -> dict[str, Any]:
    """The contents of run.json, with a SHA-256 of those of the `files` that are in the folder."""
    import regard

    return {
        "format": FORMAT_VERSION,
        "regard": regard.__version__,
        "model": model.config.plain(),
        "origin": dict(origin),
        "sha256": {name: file_sha256(folder / name) for name in files if (folder / name).is_file()},
    }


@phase("Loading the model")
def load_model(name: str | Path) -> LoadedModel:
    """Load a run folder written by this version of regard or an earlier one, or a pretrained model by its name.

    Of a run that has not finished, the newest checkpoint is loaded; RUN@best, RUN@last and RUN@1500 name one.
    """
    folder, step = find_checkpoint(name)
    while step is not None:
        try:
            return _load_checkpoint(folder, step, unfinished=split_checkpoint(name)[1] is None)
        except UserError:
            newer = find_checkpoint(name)[1]  # the run may have deleted the checkpoint while it was being read
            if newer == step:
                raise
            step = newer
    metadata = _read_run_json(folder)
    config = read_any_config(metadata.get("model"), f"{folder / 'run.json'}: model")
    path = folder / "model.safetensors"
    _check_shapes(read_shapes(path), build_meta(config), path)  # before memory is allocated for what run.json claims
    model = build_empty(config)
    load_weights(model, read_tensors(path), path)
    tokenizers = [_read_tokenizer(folder / name) for name in TOKENIZERS]
    check_digests(folder, metadata, folder / "run.json")
    return LoadedModel(model, *tokenizers, path=folder, origin=origin_of(metadata))


def _load_checkpoint(folder: Path, step: int, *, unfinished: bool) -> LoadedModel:
    """The model in a checkpoint whose files are intact: with the average of its weights if the run ends with that."""
    reader = CheckpointReader(folder / "checkpoints")
    state, path = reader.read_state(step), reader.path(step)
    metadata = checkpoint_metadata(state, path)
    model = build_empty(read_any_config(metadata.get("model"), f"{path / 'state.json'}: model"))
    final = metadata.get("final_weights")
    weights = dict(reader.read_group(step, state, "model"))
    ema = dict(reader.read_group(step, state, "ema")) if final == "ema" else {}
    load_weights(model, weights | ema, path)
    tokenizers = [_read_tokenizer(folder / name) for name in TOKENIZERS]
    check_digests(folder, metadata, path / "state.json")
    weights_note = ""
    if ema:
        weights_note = ", with the moving average of its weights (train.final_weights = ema)"
    elif final == "average":
        weights_note = ", with its own weights: only a finished run has their average, or one made by `regard average`"
    if unfinished:
        note(f"{folder} has not finished: using its checkpoint of step {step:,}{weights_note}.")
    elif weights_note:
        note(f"{folder}@{step}: using the checkpoint of step {step:,}{weights_note}.")
    origin = origin_of(metadata) | {"steps": step, "final_weights": {"kind": "ema" if ema else "last", "step": step}}
    return LoadedModel(model, *tokenizers, path=folder, origin=origin, checkpoint=step)


def read_metadata(name: str | Path) -> dict[str, Any]:
    """The contents of a folder's run.json or, of a run that has not finished, what its newest checkpoint says."""
    folder, step = find_checkpoint(name, verify=False)
    if step is None:
        return _read_run_json(folder)
    reader = CheckpointReader(folder / "checkpoints")
    return checkpoint_metadata(reader.read_state(step), reader.path(step))


def read_origin(name: str | Path) -> dict[str, Any]:
    """The `origin` entry of run.json: how the model was made. Empty if the file has none."""
    return origin_of(read_metadata(name))


def origin_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The `origin` entry of a run's metadata; empty if it has none."""
    origin = metadata.get("origin")
    return dict(origin) if isinstance(origin, dict) else {}


def _read_run_json(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    if not folder.exists():
        names = pretrained_models()
        hint = f" Models that ship with regard: {', '.join(names)}." if names else ""
        raise UserError(f"{folder}: there is no such folder.{hint}")
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder: it has no run.json. Import Hugging Face models first.")
    try:
        metadata = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy.") from None
    version = metadata.get("format") if isinstance(metadata, dict) else None
    if type(version) is not int or version < 1:
        raise UserError(f"{path} does not give its format version; restore it from a copy.")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{folder} was written by a newer regard (format {version}; this version reads up to {FORMAT_VERSION}); "
            f"{how_to_upgrade()}."
        )
    return dict(metadata)


def checkpoint_metadata(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What a checkpoint's state.json says about its model."""
    if not isinstance(state.get("run"), dict):
        raise UserError(
            f"{path} does not say which model its weights belong to, as those of earlier versions do not; resume the "
            "run with `regard train --resume`, which writes new checkpoints."
        )
    return dict(state["run"])


def check_digests(folder: Path, metadata: Mapping[str, Any], record: Path) -> None:
    """Compare files with the SHA-256 that `record` says they have; older folders have none."""
    digests = metadata.get("sha256", {})
    if not isinstance(digests, dict) or not all(Path(name).name == name for name in digests):
        raise UserError(f"{record}: sha256: expected names of files and their SHA-256; restore it from a copy.")
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file() or file_sha256(path) != digest:
            advice = ', or remove its entry under "sha256" there if you changed it' if record.name == "run.json" else ""
            raise UserError(
                f"{path} is missing or damaged: its SHA-256 is not the one in {record}. Restore it from a copy{advice}."
            )


def _json(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"


def load_weights(model: AnyModel, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load weights, read from `path`, into a model, whose tensors must match exactly."""
    _check_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()}, model, path)
    expected = model.state_dict()
    for name, tensor in weights.items():
        if tensor.dtype == expected[name].dtype == torch.int64:  # the keys of a table, which are no weights
            continue
        if (reason := unusable_reason(tensor)) is not None:
            raise UserError(f"{path}: {name} {reason}; restore it from a copy, or train the model again.")
    model.load_state_dict(weights, assign=True)


def _check_shapes(found: Mapping[str, tuple[int, ...]], model: AnyModel, path: Path) -> None:
    """Refuse tensors that do not match those of a model exactly."""
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in found:
            raise UserError(f"{path} lacks the tensor {name}, which the config in run.json requires.")
        if found[name] != tuple(tensor.shape):
            raise UserError(
                f"{path}: {name} has the shape {found[name]}, but the config in run.json requires "
                f"{tuple(tensor.shape)}."
            )
    unknown = sorted(set(found) - set(expected))
    if unknown:
        raise UserError(f"{path} holds the tensor {unknown[0]}, which the config in run.json does not have.")


def _read_tokenizer(path: Path) -> Tokenizer | None:
    return read_tokenizer(path) if path.is_file() else None
