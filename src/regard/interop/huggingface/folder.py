"""A Hugging Face folder becomes a run folder.

`config.json` says which family it is and how large; the family says what that means in our parts and where each tensor
goes; the tokenizer is turned into one `tokenizer.json`. What other files say (how to generate, how to prepare pictures,
how to make vectors of sentences) is noted in run.json's `origin`, so that it can go out again.

Nothing is guessed and nothing is left over: an option without a part here, a tensor without a place or a place without
a tensor ends the import with one sentence and nothing written. Their library is not needed.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from regard.config import ConfigError
from regard.errors import UserError
from regard.interop.huggingface.bart import BART
from regard.interop.huggingface.bert import BERT, BERT_CLASSIFY, BERT_FILL, BERT_TAG
from regard.interop.huggingface.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from regard.interop.huggingface.family import Family, begun_as_there, complete
from regard.interop.huggingface.gpt2 import GPT2
from regard.interop.huggingface.llama import LLAMA
from regard.interop.huggingface.mapping import bring_over
from regard.interop.huggingface.marian import MARIAN
from regard.interop.huggingface.mistral import MISTRAL
from regard.interop.huggingface.sentence import fit_tokenizer, read_sentence
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.tokenizer import Pair, read_tokenizers, special_ids
from regard.interop.huggingface.vit import VIT, VIT_CLASSIFY
from regard.interop.huggingface.weights import Weights, find_files, read_if_there, read_json
from regard.model import AnyModel, VisionTransformer, build_empty, count_parameters
from regard.run import save

FAMILIES = (
    MARIAN,
    BART,
    GPT2,
    LLAMA,
    MISTRAL,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    BERT,
    BERT_FILL,
    BERT_CLASSIFY,
    BERT_TAG,
    VIT,
    VIT_CLASSIFY,
)
"""Of families of one kind the first is meant where no architecture is named."""


def import_huggingface(directory: Path | str, out: Path | str) -> str:
    """Read a Hugging Face model and write it as a run folder; gives a sentence that says what was imported."""
    given_folder, out = Path(directory), Path(out)
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; choose another folder, or remove it first.")
    sentence = read_sentence(given_folder)
    place = given_folder / sentence.get("encoder", "")
    given = _read_config(place)
    family = _family(given, place)
    origin: dict[str, Any] = {
        "library": "huggingface",
        "folder": given_folder.resolve().name,
        "architecture": family.architecture,
        "config": given,
        "generation": read_if_there(place / "generation_config.json"),
    }
    weights = Weights(find_files(place, family.architecture), family.prefix, family.renames)
    weights.skip(family.harmless)
    tokenizer, target_tokenizer = _tokenizers(place, family, sentence, origin)
    if family.kind == "vit":
        origin["preprocessor"] = read_if_there(place / "preprocessor_config.json")
    model = _build(family, _settings(given, origin, place), weights, tokenizer)
    save(model, out, tokenizer=tokenizer, target_tokenizer=target_tokenizer, origin=origin)
    return f"imported {family.name} {describe(model, tokenizer is not None)}."


def describe(model: AnyModel, has_tokenizer: bool) -> str:
    """How large a model is, and what comes with it."""
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    company = "with its tokenizer" if has_tokenizer else "without a tokenizer, as the folder has none"
    if isinstance(model, VisionTransformer):
        height, width = model.config.size
        company = f"for pictures of {height} × {width} pixels"
    return f"with {count_parameters(model):,} parameters in {kind}, {company}"


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
        meant = given.get("model_type") == family.kind if named is None else named in (family.architecture, family.bare)
        if meant:
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    raise UserError(
        f"{directory / 'config.json'} is of the architecture {named or given.get('model_type')!r}, which regard cannot "
        f"import; it can import {known}."
    )


def _tokenizers(directory: Path, family: Family, sentence: dict[str, Any], origin: dict[str, Any]) -> Pair:
    """The folder's tokenizers; what they and a folder of sentence-transformers add to a model's settings is noted."""
    tokenizer, target_tokenizer = read_tokenizers(directory, family.kind)
    if tokenizer is not None and family.kind == "bert":
        origin["special"] = special_ids(directory, tokenizer)
    if sentence:
        origin["sentence"] = sentence
        if tokenizer is not None:
            fit_tokenizer(tokenizer, sentence, directory)
    return tokenizer, target_tokenizer


def _settings(given: dict[str, Any], origin: dict[str, Any], directory: Path) -> Settings:
    """The settings as a family reads them."""
    settings = Settings(complete(given, origin), str(directory / "config.json"))
    if settings.has("quantization_config"):
        raise UserError(
            f"{settings.where}: quantization_config says that the weights are quantised, which regard cannot import; "
            "fetch the model in float32, float16 or bfloat16."
        )
    return settings


def _build(family: Family, settings: Settings, weights: Weights, tokenizer: Tokenizer | None) -> AnyModel:
    """Our model with their weights."""
    try:
        config = begun_as_there(family.read(settings, weights), tokenizer)
        model = build_empty(config)
    except ConfigError as error:
        raise UserError(f"{settings.where} describes a model that cannot be built: {error}") from None
    except (ArithmeticError, RuntimeError, TypeError) as error:  # numbers far beyond any machine
        raise UserError(f"{settings.where} describes a model that cannot be built ({_first_line(error)}).") from None
    model.load_state_dict(bring_over(family.rules(config), weights, model.state_dict()), assign=True)
    return model


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
