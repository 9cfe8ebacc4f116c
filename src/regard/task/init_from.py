"""Starting from another model's weights (`init_from`), by one rule for all tasks.

The tokenizer is that model's. Settings of [model] that are left out are that model's; those that are given are used,
and must fit its weights. Settings of [tokenizer] that are given must be those that its tokenizer was trained with,
except `new_tokens`, by which its vocabulary is extended. What does not fit is refused, and nothing is ignored.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.config import ConfigError
from regard.data.tokenizers.training import TokenizerConfig
from regard.errors import UserError
from regard.model import (
    AnyModel,
    AnyModelConfig,
    CausalLM,
    Seq2SeqLM,
    build_empty,
    read_any_config,
    read_config,
)
from regard.model.embedding import TokenEmbedding
from regard.run import find_model, read_metadata
from regard.train.task import LogFn

_KINDS = {
    "encoder-decoder": "an encoder–decoder",
    "language-model": "a language model",
    "encoder": "an encoder",
    "vision": "a vision transformer",
}

Model = TypeVar("Model", bound=AnyModel)


def initial_settings(name: str, kinds: Sequence[str]) -> dict[str, Any]:
    """The config of the model to start from, as plain data; an error if it is of none of these kinds."""
    first = read_metadata(name).get("model")
    if not isinstance(first, dict) or first.get("kind") not in kinds:
        expected = " or ".join(_KINDS.get(kind, f"a model of kind {kind!r}") for kind in kinds)
        raise ConfigError("init_from", f"{name} is not {expected}, so its weights cannot initialize one.")
    return first


def has_model(name: str) -> bool:
    """Whether there is a model of this name, finished or a checkpoint."""
    folder = find_model(name)
    return (folder / "run.json").is_file() or (folder / "checkpoints").is_dir()


def merge_settings(first: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, with those of `given` taking precedence. A table of another kind replaces the whole table."""
    return {
        key: merge_settings(first[key], value)
        if isinstance(value, Mapping)
        and isinstance(first.get(key), Mapping)
        and value.get("kind", first[key].get("kind")) == first[key].get("kind")
        else value
        for key, value in {**first, **given}.items()
    }


def tokenizer_settings(name: str) -> dict[str, Any] | None:
    """What the tokenizer of the model to start from was trained with; None if that is unknown, as after an import."""
    try:
        recipe = tomllib.loads((find_model(name) / "recipe.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    settings = recipe.get("tokenizer")
    if not isinstance(settings, dict):
        return None
    new = settings.pop("new_tokens", 0)
    return (
        settings | {"vocab_size": settings.get("vocab_size", TokenizerConfig.default_vocab_size) + new}
        if new
        else settings
    )


def check_fits(
    name: str, first: Mapping[str, Any], given: Mapping[str, Any], given_tokenizer: Mapping[str, Any]
) -> AnyModelConfig:
    """The config that a model gets from `given` settings and those of the model `name`; an error if it does not fit
    that model's weights, or other settings for the tokenizer are given.

    `first` is the config of that model, `given` what the recipe says about the parts that are initialized.
    """
    theirs = read_any_config(first, f"{find_model(name) / 'run.json'}: model")
    problems: dict[str, str] = {}
    try:
        ours = read_any_config(merge_settings(first, given))
        fits = _shapes(ours) == _shapes(theirs)
    except UserError as error:
        ours, fits = theirs, False
        problems["model"] = f"with the rest of its settings, {error}"
    if not fits:
        differing = next(_differences(ours.plain(), theirs.plain(), "model"), None)
        if differing is not None:
            key, our, their = differing
            problems["model"] = f"for {key} that has {our!r}, and the weights have {their!r}"
    problems |= _tokenizer_problem(name, given_tokenizer)
    if problems:
        tables = " and ".join(f"[{table}]" for table in problems)
        options = " ".join(f"--set {table}={{}}" for table in problems)
        raise UserError(
            f"{name} does not fit the recipe's {' and '.join(problems)}: {'; '.join(problems.values()).rstrip('.')}. "
            f"Leave {tables} out to take its settings ({options})."
        )
    return ours


def start_from(pretrained: Model, config: AnyModelConfig, name: str, log: LogFn) -> Model:
    """The pretrained model with the settings of `config`, which fits its weights; what differs is logged."""
    changed = list(_differences(config.plain(), pretrained.config.plain(), "model"))
    if not changed:
        return pretrained
    log(f"Settings that {name} did not have: {', '.join(f'{key} = {ours!r}' for key, ours, _ in changed)}.")
    model = build_empty(config)
    model.load_state_dict(pretrained.state_dict(), assign=True)
    assert isinstance(model, type(pretrained))
    return model


def extend_vocabulary(
    model: Seq2SeqLM | CausalLM,
    replaced: Sequence[Sequence[int]],
    replaced_source: Sequence[Sequence[int]] | None = None,
) -> Seq2SeqLM | CausalLM:
    """The model with more tokens, each of which starts from the mean of the old tokens that it replaces.

    That holds for its embedding, for its row of an output projection of its own, and for its bias; all other weights
    stay the same. `replaced_source` has the new tokens of a separate source vocabulary.
    """
    config, state = model.config.plain(), model.state_dict()
    config["vocab_size"] += len(replaced)
    if replaced_source is not None:
        config["source_vocab_size"] += len(replaced_source)
    for name, module in model.named_modules():
        if isinstance(module, TokenEmbedding):
            is_source = module is getattr(model, "source_embed_tokens", None)
            rows = replaced_source if is_source and replaced_source is not None else replaced
            state[f"{name}.weight"] = _with_means(module.weight.detach(), rows)
    if "lm_head_bias" in state:
        state["lm_head_bias"] = _with_means(state["lm_head_bias"], replaced)
    extended = build_empty(read_config(config))
    extended.load_state_dict(state, assign=True)
    return extended


def _with_means(rows: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """The rows, and the mean of each group of them."""
    return torch.cat([rows, *(rows[list(group)].mean(dim=0, keepdim=True) for group in groups)])


def _tokenizer_problem(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with the given settings of the tokenizer, if anything is."""
    theirs = tokenizer_settings(name)
    for key, value in given.items():
        if key == "new_tokens":  # they are learned in addition
            kind = (theirs or {}).get("kind", "bpe")
            if value and kind != "bpe":
                return {
                    "tokenizer": f"tokenizer.new_tokens extends tokenizers of kind bpe, and its tokenizer is {kind!r}"
                }
        elif theirs is None:
            return {"tokenizer": f"tokenizer.{key} is given, but the tokenizer of {Path(name).name} is already trained"}
        elif theirs.get(key) != value:
            return {"tokenizer": f"for tokenizer.{key} that has {value!r}, and its tokenizer {theirs.get(key)!r}"}
    return {}


def _shapes(config: AnyModelConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {key: tensor.shape for key, tensor in config.build().state_dict().items()}


def _differences(ours: Any, theirs: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """The settings that differ, as (key, ours, theirs)."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.get("kind") == theirs.get("kind"):
        for name in {**ours, **theirs}:
            yield from _differences(ours.get(name), theirs.get(name), f"{key}.{name}")
    elif ours != theirs:
        yield key, ours, theirs
