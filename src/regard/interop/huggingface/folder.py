"""A Hugging Face folder becomes a run folder.

`config.json` says which family it is and how large; the family says what that means in our parts and where each tensor
goes; the tokenizer is turned into one `tokenizer.json`. Nothing is guessed and nothing is left over: an option without
a part here, a tensor without a place or a place without a tensor ends the import with one sentence and nothing written.
Their library is not needed.
"""

from pathlib import Path
from typing import Any

from regard.config import ConfigError
from regard.errors import UserError
from regard.interop.huggingface.bart import BART
from regard.interop.huggingface.family import Family
from regard.interop.huggingface.gpt2 import GPT2
from regard.interop.huggingface.llama import LLAMA
from regard.interop.huggingface.mapping import bring_over
from regard.interop.huggingface.marian import MARIAN
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.tokenizer import read_tokenizers
from regard.interop.huggingface.weights import Weights, find_files, read_json
from regard.model import Model, ModelConfig, build_empty, count_parameters
from regard.run import save

FAMILIES = (MARIAN, BART, GPT2, LLAMA)

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def import_huggingface(directory: Path | str, out: Path | str) -> str:
    """Read a Hugging Face model and write it as a run folder; gives a sentence that says what was imported."""
    directory, out = Path(directory), Path(out)
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; choose another folder, or remove it first.")
    given = _read_config(directory)
    family = _family(given, directory)
    generation = _read_if_there(directory / "generation_config.json")
    weights = Weights(find_files(directory, family.architecture), family.prefix)
    weights.skip(family.harmless)
    model = _build(family, _settings(given, generation, directory), weights)
    tokenizer, target_tokenizer = read_tokenizers(directory, family.kind)
    origin = {
        "library": "huggingface",
        "folder": directory.resolve().name,
        "architecture": family.architecture,
        "config": given,
        "generation": generation,
    }
    save(model, out, tokenizer=tokenizer, target_tokenizer=target_tokenizer, origin=origin)
    kind = str(model.vocabulary.weight.dtype).removeprefix("torch.")
    company = "without a tokenizer, as the folder has none" if tokenizer is None else "with its tokenizer"
    return f"imported {family.name} with {count_parameters(model):,} parameters in {kind}, {company}."


def _read_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such folder.")
    path = directory / "config.json"
    if not path.is_file():
        raise UserError(
            f"{directory} has no config.json, so it is not a Hugging Face model; give the folder that holds it."
        )
    return read_json(path)


def _family(given: dict[str, Any], directory: Path) -> Family:
    """Which family a config.json belongs to, by the architecture it names or, if it names none, its model_type."""
    names = given.get("architectures")
    named = names[0] if isinstance(names, list) and names else None
    for family in FAMILIES:
        if named in (family.architecture, family.bare) or (named is None and given.get("model_type") == family.kind):
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    raise UserError(
        f"{directory / 'config.json'} is of the architecture {named or given.get('model_type')!r}, which regard cannot "
        f"import; it can import {known}."
    )


def _settings(given: dict[str, Any], generation: dict[str, Any], directory: Path) -> Settings:
    """The settings as a family reads them: special ids may stand in generation_config.json alone."""
    ids = {key: generation[key] for key in _TOKENS if given.get(key) is None and generation.get(key) is not None}
    settings = Settings({**given, **ids}, str(directory / "config.json"))
    if settings.has("quantization_config"):
        raise UserError(
            f"{settings.where}: quantization_config says that the weights are quantised, which regard cannot import; "
            "fetch the model in float32, float16 or bfloat16."
        )
    return settings


def _build(family: Family, settings: Settings, weights: Weights) -> Model:
    """Our model with their weights."""
    try:
        config: ModelConfig = family.read(settings, weights)
        model = build_empty(config)
    except ConfigError as error:
        raise UserError(f"{settings.where} describes a model that cannot be built: {error}") from None
    except (ArithmeticError, RuntimeError, TypeError) as error:  # numbers far beyond any machine
        raise UserError(f"{settings.where} describes a model that cannot be built ({_first_line(error)}).") from None
    model.load_state_dict(bring_over(family.rules(config), weights, model.state_dict()), assign=True)
    return model


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
