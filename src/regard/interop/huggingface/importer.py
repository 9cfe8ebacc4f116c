"""Import a Hugging Face folder as a run folder.

`config.json` names the architecture and its sizes; the `Architecture` translates it into our config and maps every
tensor; the tokenizer becomes one `tokenizer.json`. What other files say (how to generate, how to preprocess images, how
to make sentence embeddings) is recorded in run.json's `origin`, so that an export can write it again.

Nothing is guessed and nothing is left over: an unsupported option, or a tensor without a counterpart on either side,
ends the import with one sentence and nothing written. transformers is not needed.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from regard.config import ConfigError
from regard.errors import UserError
from regard.files import check_new_folder
from regard.interop.huggingface.architecture import Architecture, complete_config, drop_unused_bos
from regard.interop.huggingface.architectures.bart import BART
from regard.interop.huggingface.architectures.bert import (
    BERT,
    BERT_MASKED_LM,
    BERT_SEQUENCE_CLASSIFICATION,
    BERT_TOKEN_CLASSIFICATION,
)
from regard.interop.huggingface.architectures.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from regard.interop.huggingface.architectures.gpt2 import GPT2
from regard.interop.huggingface.architectures.llama import LLAMA
from regard.interop.huggingface.architectures.marian import MARIAN
from regard.interop.huggingface.architectures.mistral import MISTRAL
from regard.interop.huggingface.architectures.vit import VIT, VIT_CLASSIFICATION
from regard.interop.huggingface.chat_template import read_chat_template, read_token_names
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import convert_weights
from regard.interop.huggingface.sentence_transformers import fit_tokenizer, read_sentence
from regard.interop.huggingface.tokenizer import Pair, read_tokenizers, special_ids
from regard.interop.huggingface.weights import Weights, find_files, read_if_there, read_json
from regard.model import AnyModel, VisionTransformer, build_meta, count_parameters
from regard.run import save_model

ARCHITECTURES = (
    MARIAN,
    BART,
    GPT2,
    LLAMA,
    MISTRAL,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    BERT,
    BERT_MASKED_LM,
    BERT_SEQUENCE_CLASSIFICATION,
    BERT_TOKEN_CLASSIFICATION,
    VIT,
    VIT_CLASSIFICATION,
)
"""The first of one model_type is meant if config.json names no class."""


def import_huggingface(directory: Path | str, out: Path | str) -> str:
    """Import a Hugging Face model as a run folder; returns a sentence that says what was imported."""
    root, out = Path(directory), Path(out)
    check_new_folder(out)
    sentence = read_sentence(root)
    source = root / sentence.get("encoder", "")
    given = _read_config(source)
    architecture = _architecture(given, source)
    origin: dict[str, Any] = {
        "library": "huggingface",
        "folder": root.resolve().name,
        "architecture": architecture.class_name,
        "config": given,
        "generation": read_if_there(source / "generation_config.json"),
    }
    weights = Weights(find_files(source, architecture.class_name), architecture.prefix, architecture.renames)
    weights.drop(architecture.ignored_tensors)
    tokenizer, target_tokenizer = _tokenizers(source, architecture, sentence, origin)
    if architecture.model_type == "vit":
        origin["preprocessor"] = read_if_there(source / "preprocessor_config.json")
    template = None if tokenizer is None else read_chat_template(source)
    if template is not None:
        origin["chat_tokens"] = read_token_names(source)
    model = _build(architecture, _completed_config(given, origin, source), weights, tokenizer)
    save_model(
        model, out, tokenizer=tokenizer, target_tokenizer=target_tokenizer, chat_template=template, origin=origin
    )
    return f"imported {architecture.name} {describe(model, tokenizer is not None)}."


def describe(model: AnyModel, has_tokenizer: bool) -> str:
    """Parameters and dtype of a model, and what comes with it."""
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    extra = "with its tokenizer" if has_tokenizer else "without a tokenizer, which the folder lacks"
    if isinstance(model, VisionTransformer):
        height, width = model.config.size
        extra = f"for images of {height} × {width} pixels"
    return f"with {count_parameters(model):,} parameters in {kind}, {extra}"


def _read_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such folder.")
    path = directory / "config.json"
    if not path.is_file():
        raise UserError(
            f"{directory} has no config.json, so it is not a Hugging Face model; give the folder that holds it."
        )
    return read_json(path)


def _architecture(given: dict[str, Any], directory: Path) -> Architecture:
    """The architecture of a config.json, by the class it names or, if it names none, by its model_type."""
    names = given.get("architectures")
    named = names[0] if isinstance(names, list) and names else None
    for architecture in ARCHITECTURES:
        matches = (
            given.get("model_type") == architecture.model_type
            if named is None
            else named in (architecture.class_name, architecture.base_class)
        )
        if matches:
            return architecture
    known = ", ".join(architecture.class_name for architecture in ARCHITECTURES)
    raise UserError(
        f"{directory / 'config.json'} has the architecture {named or given.get('model_type')!r}, which regard cannot "
        f"import; it can import {known}."
    )


def _tokenizers(directory: Path, architecture: Architecture, sentence: dict[str, Any], origin: dict[str, Any]) -> Pair:
    """The folder's tokenizers; what they and sentence-transformers add to the config is recorded in `origin`."""
    tokenizer, target_tokenizer = read_tokenizers(directory, architecture.model_type)
    if tokenizer is not None and architecture.model_type == "bert":
        origin["special"] = special_ids(directory, tokenizer)
    if sentence:
        origin["sentence"] = sentence
        if tokenizer is not None:
            fit_tokenizer(tokenizer, sentence, directory)
    return tokenizer, target_tokenizer


def _completed_config(given: dict[str, Any], origin: dict[str, Any], directory: Path) -> HFConfig:
    """The complete config, as `Architecture.read` expects it."""
    hf_config = HFConfig(complete_config(given, origin), str(directory / "config.json"))
    if hf_config.has("quantization_config"):
        raise UserError(
            f"{hf_config.location}: quantization_config says that the weights are quantized, which cannot be imported; "
            "download the model in float32, float16 or bfloat16."
        )
    return hf_config


def _build(architecture: Architecture, hf_config: HFConfig, weights: Weights, tokenizer: Tokenizer | None) -> AnyModel:
    """Our model with the converted weights."""
    try:
        config = drop_unused_bos(architecture.read(hf_config, weights), tokenizer)
        model = build_meta(config)
    except ConfigError as error:
        raise UserError(f"{hf_config.location} describes a model that cannot be built: {error}") from None
    except (ArithmeticError, RuntimeError, TypeError) as error:  # sizes far beyond any machine
        raise UserError(
            f"{hf_config.location} describes a model that cannot be built ({_first_line(error)})."
        ) from None
    converted = convert_weights(architecture.rules(config), weights, model.state_dict())
    model = model.to_empty(device="cpu")  # only now, when the weights are known to fit
    model.load_state_dict(converted, assign=True)
    return model


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
