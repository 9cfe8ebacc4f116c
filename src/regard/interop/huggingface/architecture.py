"""What an architecture must define to be imported and exported, and what architectures have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, LanguageModelConfig, SpecialTokensConfig
from regard.model.feed_forward import Activation


@dataclass(frozen=True)
class Architecture:
    """One Hugging Face architecture.

    `read` turns its config.json into our config. It may look at the weights (only they show whether embeddings are
    tied) and normalize them, so that afterwards `rules` says where every tensor goes.
    """

    name: str
    model_type: str
    """The `model_type` of config.json."""
    class_name: str
    base_class: str | None
    """The class without the head, if its files can be imported as this one: they lack nothing if embeddings are
    tied, or if this one has no head either.
    """
    prefix: str
    """The prefix of most files before the names of the model without its head; some files lack it."""
    read: Callable[[HFConfig, Weights], AnyModelConfig]
    rules: Callable[[AnyModelConfig], list[Rule]]
    ignored_tensors: tuple[str, ...] = ()
    """Patterns of tensors that old versions stored and nothing reads."""
    renames: tuple[tuple[str, str], ...] = ()
    """Patterns of names in other versions, each with the name that the rules use."""


TOKENS = tuple(f"{role}_token_id" for role in ("bos", "eos", "pad", "decoder_start", "mask", "sep", "cls"))
"""Keys of special token ids."""

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}
"""Hugging Face's names of activations, and ours; of several names the first is written on export."""

GATED_ACTIVATIONS: dict[str, Activation] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_new": "geglu-tanh",
    "gelu_pytorch_tanh": "geglu-tanh",
    "gelu_fast": "geglu-tanh",
}
"""The same for gated feed-forwards."""


def special_tokens(
    hf_config: HFConfig, vocab_size: int, start: str, defaults: Mapping[str, int]
) -> SpecialTokensConfig:
    """The special token ids; `start` is the key of the first token of an output, `defaults` holds for keys that are
    missing (not for null: such a model has no such token).

    Of several ends the first is taken. An id outside the vocab_size (-1, or a token that only a tokenizer ever had) is
    left out.
    """

    def first(*keys: str) -> int | None:
        return token_id(hf_config, vocab_size, defaults, *keys)

    return SpecialTokensConfig(pad=first("pad_token_id"), bos=first(start, "bos_token_id"), eos=first("eos_token_id"))


def drop_unused_bos(config: AnyModelConfig, tokenizer: Tokenizer | None) -> AnyModelConfig:
    """The config without `start`, for a language model whose tokenizer puts no such token before a text, as GPT-2's.

    Its bos_token_id says what a text may begin with, not that each does; transformers leaves that to the tokenizer.
    """
    if tokenizer is None or not isinstance(config, LanguageModelConfig) or config.special_tokens.bos is None:
        return config
    if tokenizer.encode("a").ids[:1] == [config.special_tokens.bos]:
        return config
    return config.model_copy(update={"special_tokens": config.special_tokens.model_copy(update={"bos": None})})


def token_id(hf_config: HFConfig, vocab_size: int, defaults: Mapping[str, int], *keys: str) -> int | None:
    """The id given by the first of these keys that has one, if it is within the vocab_size."""
    for key in keys:
        given = hf_config.ids(key) if key in hf_config.values else [defaults[key]] if key in defaults else []
        if given:
            return given[0] if 0 <= given[0] < vocab_size else None
    return None


def labels(hf_config: HFConfig) -> tuple[str, ...]:
    """The class labels. If config.json names none, there are `num_labels` (by default two) with transformers' names."""
    table = hf_config.table("id2label")
    if table is None:
        return tuple(f"LABEL_{number}" for number in range(hf_config.integer("num_labels", 2)))
    names = [table.values.get(str(number)) for number in range(len(table.values))]
    if not all(isinstance(name, str) for name in names):
        raise hf_config.invalid("id2label", f"an object with a name for each number from 0 to {len(names) - 1}")
    return tuple(str(name) for name in names)


def complete_config(given: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json as `Architecture.read` expects it, merged with the folder's other files (`origin`, as an import
    records them).

    Special token ids may be in generation_config.json alone, or known only to the tokenizer (`special`); an image
    processor has its own file (`preprocessor`).
    """
    known = {**(origin.get("special") or {}), **(origin.get("generation") or {})}
    ids = {key: number for key, number in known.items() if key in TOKENS and number is not None}
    merged = {**ids, **{key: value for key, value in given.items() if key not in ids or value is not None}}
    return {**merged, "preprocessor": origin.get("preprocessor")}


def equal_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and values."""
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))


def resolve_tied_embeddings(weights: Weights, embedding_name: str, output_name: str, tied: bool) -> bool:
    """Whether the output matrix is the embedding (tied), judged by what the file holds.

    A tied pair may be stored once, under either name, or twice. Stored twice with different values it is not tied,
    whatever config.json says; transformers reads it the same way.
    """
    embedding, output = weights.get(embedding_name), weights.get(output_name)
    if not tied:
        return False
    if embedding is not None and output is not None and not equal_tensors(embedding, output):
        return False
    weights.put(embedding_name, output if embedding is None else embedding)
    weights.put(output_name, None)
    return True
