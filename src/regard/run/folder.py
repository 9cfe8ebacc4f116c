"""Save a model as a folder and open it again.

    run.json            the format's version, what wrote it, the model's config, where it came from
    model.safetensors   the weights, under the names the model gives them
    tokenizer.json      the tokenizer, where there is one (target_tokenizer.json too, where the two sides differ)

Nothing in a folder is ever executed: JSON and safetensors only. The whole folder is written beside its place and then
renamed, so that a run is either there or not. The format's version grows when an older regard could no longer read
what is written; every version reads all the formats before it.
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

from regard.errors import UserError
from regard.files import new_file, new_folder, write_text
from regard.model import AnyModel, Encoder, LanguageModel, VisionTransformer, build_empty, read_any_config
from regard.model.embedding import out_of_vocabulary
from regard.run.tensors import read_tensors, write_tensors

FORMAT = 1

Ids = Tensor | Sequence[Sequence[int]]


class Loaded:
    """A model from a run folder, ready to use.

    `model` is the PyTorch module in evaluation mode, of any kind, `config` what it was built from, `tokenizer` what
    turns text into ids (None if the folder has none; `target_tokenizer` is the same one unless the two sides differ).
    `place` is the folder it came from, if it did.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer | None = None,
        target_tokenizer: Tokenizer | None = None,
        *,
        place: Path | None = None,
    ) -> None:
        self.model = model.eval()
        self.place = place
        self.config = model.config
        self.tokenizer = tokenizer
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer

    @torch.no_grad()
    def logits(self, *ids: Ids, lengths: Sequence[int] | Tensor | None = None) -> Tensor:
        """Scores for the word after each token, in float32.  # (batch, tokens, vocabulary)

        A language model takes `logits(ids)`, an encoder–decoder `logits(source_ids, target_ids)`; ids are rows of
        equal length. Rows padded on the right (the source's, in an encoder–decoder) end where `lengths` says. An
        encoder takes `logits(ids)` and gives what its head does, a vision transformer `logits(pixels)`.
        """
        device = self.model.device
        real = None if lengths is None else torch.as_tensor(lengths, device=device)
        if isinstance(self.model, VisionTransformer):
            if len(ids) != 1 or not isinstance(ids[0], Tensor) or real is not None:
                raise UserError("A vision transformer takes logits(pixels), one tensor and nothing else.")
            scores: Tensor = self.model(ids[0].to(device))
            return scores.float()
        if isinstance(self.model, LanguageModel | Encoder):
            name = "a language model" if isinstance(self.model, LanguageModel) else "an encoder"
            (tokens,) = self._sides(ids, f"{name} takes logits(ids)", [self.config.vocabulary])
            scores = self.model(tokens, lengths=real)
            return scores.float()
        source_size = getattr(self.config, "source_vocabulary", None) or self.config.vocabulary
        takes = "an encoder–decoder takes logits(source_ids, target_ids)"
        source, target = self._sides(ids, takes, [source_size, self.config.vocabulary])
        scores = self.model(source, target, source_lengths=real)
        return scores.float()

    def translate(self, text: str, *, beams: int | None = None) -> str:
        """A text in the other language; only translators can do this."""
        raise UserError("This model does not translate: that takes an encoder–decoder with its tokenizer.")

    def trace(self, text: Any, **settings: Any) -> Any:
        """What the model does with a text (a picture, if it takes those), to be looked into: see `regard.trace`."""
        import regard  # looking stands above: the package's own door leads there

        return regard.trace(self, text, **settings)

    def _sides(self, ids: tuple[Ids, ...], takes: str, sizes: list[int]) -> list[Tensor]:
        """The ids as tensors on the model's device, checked against each side's vocabulary."""
        if len(ids) != len(sizes):
            raise UserError(f"{len(ids)} groups of ids were given, but {takes}.")
        device = self.model.device
        tensors = []
        for given, size in zip(ids, sizes, strict=True):
            try:
                tensor = torch.as_tensor(given, device=device)
            except (ValueError, TypeError, RuntimeError):
                raise UserError(
                    "Token ids must be rows of whole numbers, all equally long; pad shorter ones."
                ) from None
            if tensor.dim() != 2 or tensor.dtype.is_floating_point or tensor.dtype in (torch.bool, torch.complex64):
                raise UserError(
                    f"Token ids must be whole numbers of the shape (rows, tokens); found {tuple(tensor.shape)} "
                    f"of {tensor.dtype}. For one sentence, give [ids]."
                )
            if ((tensor < 0) | (tensor >= size)).any():
                raise UserError(out_of_vocabulary(tensor, size))
            tensors.append(tensor.long())
        return tensors


def save(
    model: AnyModel,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    origin: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Path:
    """Write a model as a run folder. `origin` is noted in run.json as it is given (plain data).

    A folder that exists is left alone unless `replace` is given.
    """
    place = Path(folder)
    with new_folder(place, replace=replace) as beside:
        (beside / "run.json").write_text(_facts(model, origin), encoding="utf-8")
        write_tensors(beside / "model.safetensors", model.state_dict())
        for name, given in (("tokenizer.json", tokenizer), ("target_tokenizer.json", target_tokenizer)):
            if given is not None:
                given.save(str(beside / name))
    return place


def finish(model: AnyModel, folder: Path, *, origin: Mapping[str, Any], half: bool = False) -> None:
    """Put a trained model into the folder of the run that made it, whose tokenizers are there already.

    run.json comes last: with it the folder is a model that can be opened.
    """
    weights = {name: tensor.half() if half else tensor for name, tensor in model.state_dict().items()}
    with new_file(folder / "model.safetensors") as beside:
        write_tensors(beside, weights)
    write_text(folder / "run.json", _facts(model, origin))


def load(folder: str | Path) -> Loaded:
    """Open a run folder written by this version of regard or an earlier one, or a model that ships, by its name."""
    place = find(folder)
    facts = read_facts(place)
    config = read_any_config(facts.get("model"), f"{place / 'run.json'}: model")
    model = build_empty(config)
    _fill(model, place / "model.safetensors")
    tokenizers = [_read_tokenizer(place / name) for name in ("tokenizer.json", "target_tokenizer.json")]
    return Loaded(model, *tokenizers, place=place)


def find(name: str | Path) -> Path:
    """The folder that is meant: the path of one, or else the name of a model that ships with the package."""
    place = Path(name)
    if place.exists() or place.name != str(name):
        return place
    shipped = Path(str(resources.files("regard") / "models" / place.name))
    return shipped if shipped.is_dir() else place


def shipped_models() -> list[str]:
    """The names of the models that come with the package."""
    folder = Path(str(resources.files("regard") / "models"))
    return sorted(path.name for path in folder.glob("*") if (path / "run.json").is_file())


def _facts(model: AnyModel, origin: Mapping[str, Any] | None) -> str:
    """What run.json says."""
    import regard

    facts = {
        "format": FORMAT,
        "regard": regard.__version__,
        "model": model.config.plain(),
        "origin": dict(origin or {}),
    }
    return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


def read_facts(place: Path) -> dict[str, Any]:
    """What the run.json of a folder says."""
    path = place / "run.json"
    if not place.exists():
        ships = shipped_models()
        hint = f" Models that ship with regard: {', '.join(ships)}." if ships else ""
        raise UserError(f"{place}: there is no such folder.{hint}")
    if not path.is_file() and (place / "recipe.toml").is_file():
        raise UserError(
            f"{place}: this run has not finished; go on with it by `regard train {shlex.quote(str(place))} --resume`."
        )
    if not path.is_file():
        raise UserError(
            f"{place} is not a run folder: it has no run.json. To use a Hugging Face model, import it first."
        )
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy.") from None
    number = facts.get("format") if isinstance(facts, dict) else None
    if type(number) is not int or number < 1:
        raise UserError(f"{path} does not say which format it has; restore it from a copy.")
    if number > FORMAT:
        raise UserError(
            f"{place} was written by a newer regard (format {number}; this version reads up to {FORMAT}): "
            "upgrade with pip install --upgrade regard."
        )
    return dict(facts)


def _fill(model: AnyModel, path: Path) -> None:
    """Put the weights of a file into a model that must want exactly these."""
    weights = read_tensors(path)
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in weights:
            raise UserError(f"{path} lacks the tensor {name}, which run.json's config calls for.")
        if weights[name].shape != tensor.shape:
            raise UserError(
                f"{path}: {name} has the shape {tuple(weights[name].shape)}, but run.json's config calls for "
                f"{tuple(tensor.shape)}."
            )
    unknown = sorted(set(weights) - set(wanted))
    if unknown:
        raise UserError(f"{path} holds the tensor {unknown[0]}, which run.json's config does not know.")
    model.load_state_dict(weights, assign=True)


def _read_tokenizer(path: Path) -> Tokenizer | None:
    if not path.is_file():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} is not a tokenizer that can be read ({error}); restore it from a copy.") from None
