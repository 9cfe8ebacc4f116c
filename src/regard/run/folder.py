"""The run folder: save a model as a folder of plain files and load it again.

    run.json            metadata: format version, the regard version that wrote it, the model's config, its origin
    model.safetensors   the weights, under their state-dict names
    tokenizer.json      the tokenizer, if there is one (and target_tokenizer.json, if the target side has its own)

Nothing in a folder is ever executed: JSON and safetensors only. A new folder is written under a temporary name and then
renamed, so that a run is either complete or absent. The format version is raised when an older regard could no longer
read what is written; every version of regard reads all earlier formats.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.config import parse_json
from regard.data.tokenizers.tokenizer import read_tokenizer
from regard.errors import UserError
from regard.files import new_file, new_folder, write_text
from regard.model import (
    AnyModel,
    AnyModelConfig,
    Encoder,
    LanguageModel,
    VisionTransformer,
    build_empty,
    build_meta,
    read_any_config,
)
from regard.model.embedding import out_of_vocabulary
from regard.run.tensors import read_shapes, read_tensors, unusable_reason, write_tensors

FORMAT_VERSION = 1

Ids = Tensor | Sequence[Sequence[int]]


class LoadedModel:
    """A model from a run folder with its tokenizers.

    `model` is the PyTorch module in evaluation mode, of any kind, and `config` the config it was built from.
    `tokenizer` is None if the folder has none; `target_tokenizer` is the same object unless the two sides differ.
    `path` is the folder the model was loaded from, or None, and `origin` what its run.json says about how it was made.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer | None = None,
        target_tokenizer: Tokenizer | None = None,
        *,
        path: Path | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model.eval()
        self.path = path
        self.origin = dict(origin or {})
        self.config = model.config
        self.tokenizer = tokenizer
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer

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
        if isinstance(self.model, LanguageModel | Encoder):
            kind = "a language model" if isinstance(self.model, LanguageModel) else "an encoder"
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
    origin: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Path:
    """Write a model as a run folder. `origin` (plain data) is stored in run.json as given.

    An existing folder is an error unless `replace` is true.
    """
    path = Path(folder)
    with new_folder(path, replace=replace) as temporary:
        (temporary / "run.json").write_text(_metadata_json(model, origin), encoding="utf-8")
        write_tensors(temporary / "model.safetensors", model.state_dict())
        for name, given in (("tokenizer.json", tokenizer), ("target_tokenizer.json", target_tokenizer)):
            if given is not None:
                given.save(str(temporary / name))
    return path


def save_trained_model(model: AnyModel, folder: Path, *, origin: Mapping[str, Any], half: bool = False) -> None:
    """Write a trained model into the folder of its own run, which already holds the tokenizers.

    run.json is written last: its presence makes the folder a model that can be loaded.
    """
    weights = {name: tensor.half() if half else tensor for name, tensor in model.state_dict().items()}
    with new_file(folder / "model.safetensors") as temporary:
        write_tensors(temporary, weights)
    write_text(folder / "run.json", _metadata_json(model, origin))


def load_model(folder: str | Path) -> LoadedModel:
    """Load a run folder written by this version of regard or an earlier one, or a pretrained model by its name."""
    path = find_model(folder)
    config = read_any_config(read_metadata(path).get("model"), f"{path / 'run.json'}: model")
    _check_shapes(config, path / "model.safetensors")  # before memory is allocated for what run.json claims
    model = build_empty(config)
    _load_weights(model, path / "model.safetensors")
    tokenizers = [_read_tokenizer(path / name) for name in ("tokenizer.json", "target_tokenizer.json")]
    return LoadedModel(model, *tokenizers, path=path, origin=read_origin(path))


def find_model(name: str | Path) -> Path:
    """The folder of a model: `name` itself if it is a path, else that of the pretrained model of this name."""
    path = Path(name)
    if path.exists() or path.name != str(name):
        return path
    pretrained = _pretrained_folder() / path.name
    return pretrained if pretrained.is_dir() else path


def pretrained_models() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(path.name for path in _pretrained_folder().glob("*") if (path / "run.json").is_file())


def read_metadata(folder: Path) -> dict[str, Any]:
    """The contents of a folder's run.json."""
    path = folder / "run.json"
    if not folder.exists():
        names = pretrained_models()
        hint = f" Models that ship with regard: {', '.join(names)}." if names else ""
        raise UserError(f"{folder}: there is no such folder.{hint}")
    if not path.is_file() and (folder / "recipe.toml").is_file():
        raise UserError(
            f"{folder}: this run has not finished; resume it with `regard train {shlex.quote(str(folder))} --resume`."
        )
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
            f"{folder} was written by a newer regard (format {version}; this version reads up to {FORMAT_VERSION}): "
            "upgrade with pip install --upgrade regard."
        )
    return dict(metadata)


def read_origin(folder: Path) -> dict[str, Any]:
    """The `origin` entry of run.json: how the model was made. Empty if the file has none."""
    origin = read_metadata(folder).get("origin")
    return dict(origin) if isinstance(origin, dict) else {}


def _pretrained_folder() -> Path:
    return Path(str(resources.files("regard") / "pretrained"))


def _metadata_json(model: AnyModel, origin: Mapping[str, Any] | None) -> str:
    """The contents of run.json."""
    import regard

    metadata = {
        "format": FORMAT_VERSION,
        "regard": regard.__version__,
        "model": model.config.plain(),
        "origin": dict(origin or {}),
    }
    return json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"


def _check_shapes(config: AnyModelConfig, path: Path) -> None:
    """Refuse a file whose tensors do not match the config exactly. Only its header is read."""
    found, expected = read_shapes(path), build_meta(config).state_dict()
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


def _load_weights(model: AnyModel, path: Path) -> None:
    """Load the weights in a file into a model, whose tensors match."""
    weights = read_tensors(path)
    for name, tensor in weights.items():
        if (reason := unusable_reason(tensor)) is not None:
            raise UserError(f"{path}: {name} {reason}; restore it from a copy, or train the model again.")
    model.load_state_dict(weights, assign=True)


def _read_tokenizer(path: Path) -> Tokenizer | None:
    return read_tokenizer(path) if path.is_file() else None
