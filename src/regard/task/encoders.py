"""What the tasks of a text encoder share: the tokens around a text, weights to start from, rows through the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.config import ConfigError
from regard.data.tokenizer import SPECIAL_NAMES, TextTokenizer
from regard.errors import UserError
from regard.model import Encoder, EncoderConfig, EncoderTokensConfig
from regard.run import Loaded, find, load, read_facts
from regard.task.recipe import Say

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
"""How many tokens are taken at once, padding included."""
LIKELY_TOKENS = {"padding": 0, "mask": 3, "separator": 4, "classify": 5}
"""The ids that our tokenizers for encoders give."""
FROM_DATA = ("vocabulary", "tokens")
"""Settings of an encoder that follow from the data, and are not a recipe's to give."""

_BERT = {"padding": "[PAD]", "unknown": "[UNK]", "mask": "[MASK]", "separator": "[SEP]", "classify": "[CLS]"}


def encoder_tokenizer(tokenizer: Tokenizer, tokens: EncoderTokensConfig | None = None) -> TextTokenizer:
    """A tokenizer with the ids of its special tokens: those that its model says, our own, or those that BERT has."""
    ids: dict[str, int | None] = {} if tokens is None else tokens.plain()
    for role, name in _BERT.items():
        if ids.get(role) is None and tokenizer.token_to_id(SPECIAL_NAMES[role]) is None:
            ids[role] = tokenizer.token_to_id(name)
    return TextTokenizer(tokenizer, **ids)


def load_encoder_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer of an encoder from its file."""
    return encoder_tokenizer(TextTokenizer.load(path).tokenizer)


def frame(tokens: EncoderTokensConfig) -> tuple[list[int], list[int]]:
    """The ids that stand before and behind a text, where the model has such."""
    first = tokens.start if tokens.classify is None else tokens.classify
    last = tokens.end if tokens.separator is None else tokens.separator
    return [] if first is None else [first], [] if last is None else [last]


def encoder_settings(given: Mapping[str, Any], init_from: str | None) -> dict[str, Any]:
    """The settings of an encoder as a recipe gives them; what it leaves out is as in the one to start from, if any.

    The head is the recipe's own.
    """
    for key in FROM_DATA:
        if key in given:
            raise ConfigError(f"model.{key}", "this follows from the tokenizer; leave this key out.")
    if init_from is None:
        return dict(given)
    first = read_facts(find(init_from)).get("model")
    if not isinstance(first, dict) or first.get("kind") != "encoder":
        raise ConfigError("init_from", f"{init_from} holds no encoder, so none can start from it.")
    return _merged({key: value for key, value in first.items() if key not in (*FROM_DATA, "head", "pooler")}, given)


def read_settings(values: Mapping[str, Any]) -> EncoderConfig:
    """An encoder's config from plain data. Errors name their key in the recipe."""
    try:
        return EncoderConfig(**values)
    except ConfigError as error:
        raise ConfigError(f"model.{error.key}", error.problem) from None


def _merged(first: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the first with those given in their place, table by table."""
    return {
        key: _merged(first[key], value) if isinstance(value, Mapping) and isinstance(first.get(key), Mapping) else value
        for key, value in {**first, **given}.items()
    }


def load_encoder(name: str | Path) -> tuple[Encoder, TextTokenizer]:
    """The encoder of a run, in float32, and its tokenizer."""
    loaded = load(name)
    model, tokenizer = reader(loaded, str(name))
    return model.float(), tokenizer


def reader(loaded: Loaded, name: str) -> tuple[Encoder, TextTokenizer]:
    """What a text encoder needs of a model that was loaded; refused where it is none."""
    if not isinstance(loaded.model, Encoder):
        raise UserError(f"{name} is no encoder of texts: its model is of the kind {loaded.config.kind!r}.")
    if loaded.tokenizer is None:
        raise UserError(f"{name} has no tokenizer, so it can take ids but no text.")
    return loaded.model, encoder_tokenizer(loaded.tokenizer, loaded.model.config.tokens)


def started_from(first: Encoder, settings: EncoderConfig, name: str, say: Say) -> Encoder:
    """A model of these settings with the weights of another: a new head, unless the two have the same.

    That is what fine-tuning starts from (Devlin et al. 2019, §3.2).
    """
    model = settings.build()
    wanted = model.state_dict()
    same = first.config.head == settings.head
    given = {
        key: value
        for key, value in first.state_dict().items()
        if (same or not key.startswith("head.")) and (key in wanted or not key.startswith("pooler."))
    }
    given |= {key: value for key, value in wanted.items() if key.startswith(("head.", "pooler.")) and key not in given}
    for key in sorted({*given, *wanted}):
        shapes = [tuple(tensors[key].shape) if key in tensors else "nothing" for tensors in (wanted, given)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{name} does not fit the recipe's model: for {key} that has {shapes[0]}, the weights have "
                f"{shapes[1]}. Leave [model] out to take its settings."
            )
    model.load_state_dict(given)
    say(f"Starting from the weights and the tokenizer of {name}{'' if same else ', with a new head'}.")
    return model


def in_batches(
    rows: Sequence[Sequence[int]], device: torch.device, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows of ids in batches of about equally long ones: their numbers, the padded rows and their lengths.

    `progress` hears how many rows are done when the next batch is asked for.
    """
    budget = BATCH_TOKENS.get(device.type, 2048)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    first = 0
    while first < len(order):
        last = first + 1
        while last < len(order) and (last + 1 - first) * len(rows[order[last]]) <= budget:
            last += 1
        numbers = order[first:last]
        longest = max(1, len(rows[numbers[-1]]))
        padded = torch.tensor([[*rows[number], *[0] * (longest - len(rows[number]))] for number in numbers])
        lengths = torch.tensor([len(rows[number]) for number in numbers])
        yield numbers, padded.to(device), lengths.to(device)
        first = last
        if progress is not None:
            progress(first)
