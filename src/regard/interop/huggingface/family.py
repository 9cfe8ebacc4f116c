"""What a family of models must say about itself to be imported, and what the families have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.interop.huggingface.mapping import Rule
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, LanguageModelConfig, TokensConfig
from regard.model.feed_forward import Activation


@dataclass(frozen=True)
class Family:
    """One architecture of theirs.

    `read` turns their settings into our config. It may look at the weights (whether words are tied shows only there)
    and settle in them what their settings mean, so that afterwards `rules` can tell where every tensor goes.
    """

    name: str
    kind: str
    """Their `model_type`."""
    architecture: str
    bare: str | None
    """Their name for the model without its head, where a file of that kind can be this one: it lacks nothing if words
    are tied, or there is no head here either.
    """
    prefix: str
    """What most files put before the names of the model without its head, and some leave out."""
    read: Callable[[Settings, Weights], AnyModelConfig]
    rules: Callable[[AnyModelConfig], list[Rule]]
    harmless: tuple[str, ...] = ()
    """Patterns of names that old versions stored and nobody reads."""
    renames: tuple[tuple[str, str], ...] = ()
    """Patterns of names as other versions spell them, each with the spelling that the rules have."""


TOKENS = tuple(f"{role}_token_id" for role in ("bos", "eos", "pad", "decoder_start", "mask", "sep", "cls"))
"""Keys of ids with a meaning of their own."""

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
"""Their names for the bend of a feed-forward, and ours; the first of several spellings is the one to write."""

GATED_ACTIVATIONS: dict[str, Activation] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_new": "geglu-tanh",
    "gelu_pytorch_tanh": "geglu-tanh",
    "gelu_fast": "geglu-tanh",
}
"""The same where one of two widened copies is bent and gates the other."""


def tokens(settings: Settings, vocabulary: int, start: str, usual: Mapping[str, int]) -> TokensConfig:
    """Ids with a meaning of their own; `start` is the key of the first token to write, `usual` what holds for a key
    that is left out (not for one that is null: such a model has no such token).

    Of several ends the first is taken. An id that the vocabulary does not reach (-1, or a token that was only ever
    given to a tokenizer) names no word of the model, so it is left out.
    """

    def first(*keys: str) -> int | None:
        return token_id(settings, vocabulary, usual, *keys)

    return TokensConfig(padding=first("pad_token_id"), start=first(start, "bos_token_id"), end=first("eos_token_id"))


def begun_as_there(config: AnyModelConfig, tokenizer: Tokenizer | None) -> AnyModelConfig:
    """A language model whose tokenizer puts no start before a text, as GPT-2's does not, has none to put there.

    Its bos_token_id says what a text may begin with, not that each does. Theirs leave that to the tokenizer.
    """
    if tokenizer is None or not isinstance(config, LanguageModelConfig) or config.tokens.start is None:
        return config
    if tokenizer.encode("a").ids[:1] == [config.tokens.start]:
        return config
    return config.model_copy(update={"tokens": config.tokens.model_copy(update={"start": None})})


def token_id(settings: Settings, vocabulary: int, usual: Mapping[str, int], *keys: str) -> int | None:
    """The id that the first of these keys with anything to say gives, if the vocabulary reaches it."""
    for key in keys:
        given = settings.ids(key) if key in settings.values else [usual[key]] if key in usual else []
        if given:
            return given[0] if 0 <= given[0] < vocabulary else None
    return None


def labels(settings: Settings) -> tuple[str, ...]:
    """The names of what a model tells apart. Where the settings name none, there are `num_labels` (usually two), and
    they are called as transformers calls them.
    """
    table = settings.table("id2label")
    if table is None:
        return tuple(f"LABEL_{number}" for number in range(settings.whole("num_labels", 2)))
    names = [table.values.get(str(number)) for number in range(len(table.values))]
    if not all(isinstance(name, str) for name in names):
        raise settings.wrong("id2label", f"a table with a name for each number from 0 to {len(names) - 1}")
    return tuple(str(name) for name in names)


def complete(given: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a family reads them, with what else a folder says of its model (`origin`, as an import notes it).

    Special ids may stand in generation_config.json alone, or be known to the tokenizer only (`special`); how pictures
    are prepared has a file of its own (`preprocessor`).
    """
    known = {**(origin.get("special") or {}), **(origin.get("generation") or {})}
    ids = {key: number for key, number in known.items() if key in TOKENS and number is not None}
    whole = {**ids, **{key: value for key, value in given.items() if key not in ids or value is not None}}
    return {**whole, "preprocessor": origin.get("preprocessor")}


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers."""
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))


def settle_output(weights: Weights, words: str, output: str, tied: bool) -> bool:
    """Whether the words are scored by the vectors they are looked up in, by what the file holds.

    A tied pair may be stored once, under either name, or twice. Stored twice with unlike numbers it is not tied,
    whatever the settings say; that is how their own library reads it.
    """
    looked_up, scored = weights.get(words), weights.get(output)
    if not tied:
        return False
    if looked_up is not None and scored is not None and not same(looked_up, scored):
        return False
    weights.put(words, scored if looked_up is None else looked_up)
    weights.put(output, None)
    return True
