"""What the tasks of text encoders share: special tokens around a text, pretrained weights, batches for inference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.config import ConfigError
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES, TextTokenizer
from regard.errors import UserError
from regard.model import CausalLM, Encoder, EncoderConfig, EncoderSpecialTokensConfig, Seq2SeqLM
from regard.model.autoregressive import check_length
from regard.model.embedding import check_ids
from regard.run import LoadedModel, load_model
from regard.train.task import LogFn

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
"""Tokens per batch at inference, padding included."""
MAX_TOKENS = 1 << 15
"""The longest text at inference, even if a model has no limit of its own: time grows with the square of the length."""
EXPECTED_SPECIAL_IDS = {"pad": 0, "mask": 3, "sep": 4, "cls": 5}
"""The ids that regard's tokenizers for encoders give to special tokens."""
KEYS_FROM_DATA = ("vocab_size", "special_tokens")
"""Keys of an encoder's config that follow from the data; giving one in [model] is an error."""
NEW_KEYS = ("head", "pooler")
"""Keys of an encoder's config that are not taken from the model in `init_from`."""

_BERT_NAMES = {"pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]", "sep": "[SEP]", "cls": "[CLS]"}


def encoder_tokenizer(tokenizer: Tokenizer, tokens: EncoderSpecialTokensConfig | None = None) -> TextTokenizer:
    """A tokenizer with the ids of its special tokens: those in the model's config, regard's own, or BERT's."""
    ids: dict[str, int | None] = {} if tokens is None else tokens.plain()
    for role, name in _BERT_NAMES.items():
        if ids.get(role) is None and tokenizer.token_to_id(SPECIAL_NAMES[role]) is None:
            ids[role] = tokenizer.token_to_id(name)
    return TextTokenizer(tokenizer, **ids)


def read_encoder_tokenizer(path: Path) -> TextTokenizer:
    """Read the tokenizer of an encoder."""
    return encoder_tokenizer(TextTokenizer.load(path).tokenizer)


def surrounding_tokens(tokens: EncoderSpecialTokensConfig) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text: CLS or start, SEP or end, as far as the model has them."""
    first = tokens.bos if tokens.cls is None else tokens.cls
    last = tokens.eos if tokens.sep is None else tokens.sep
    return [] if first is None else [first], [] if last is None else [last]


def read_encoder_config(values: Mapping[str, Any]) -> EncoderConfig:
    """An encoder's config from plain data. Errors name the key in the recipe."""
    try:
        return EncoderConfig(**values)
    except ConfigError as error:
        raise ConfigError(f"model.{error.key}", error.problem) from None


def load_encoder(name: str | Path) -> tuple[Encoder, TextTokenizer]:
    """Load the encoder of a run in float32, with its tokenizer."""
    loaded = load_model(name)
    if (reason := not_a_text_encoder(loaded)) is not None:
        raise UserError(f"{name}: {reason}")
    model, tokenizer = encoder_and_tokenizer(loaded)
    return model.float(), tokenizer


def not_a_text_encoder(loaded: LoadedModel) -> str | None:
    """Why a loaded model cannot be used as a text encoder; None if it can."""
    if not isinstance(loaded.model, Encoder):
        return f"This is not a text encoder: its model is of the kind {loaded.config.kind!r}."
    return None if loaded.tokenizer is not None else "This model has no tokenizer: it takes ids, but no text."


def encoder_and_tokenizer(loaded: LoadedModel) -> tuple[Encoder, TextTokenizer]:
    """The model and the tokenizer of a loaded text encoder."""
    assert isinstance(loaded.model, Encoder)
    assert loaded.tokenizer is not None
    return loaded.model, encoder_tokenizer(loaded.tokenizer, loaded.model.config.special_tokens)


def init_from_encoder(pretrained: Encoder, config: EncoderConfig, name: str, log: LogFn) -> Encoder:
    """A model initialized with pretrained weights, and with a new head unless both have the same.

    This is the start of fine-tuning (Devlin et al. 2019, §3.2).
    """
    model = config.build()
    expected = model.state_dict()
    same = pretrained.config.head == config.head
    given = {
        key: value
        for key, value in pretrained.state_dict().items()
        if (same or not key.startswith("head.")) and (key in expected or not key.startswith("pooler."))
    }
    given |= {
        key: value for key, value in expected.items() if key.startswith(("head.", "pooler.")) and key not in given
    }
    for key in sorted({*given, *expected}):
        shapes = [tuple(tensors[key].shape) if key in tensors else "nothing" for tensors in (expected, given)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{name} does not fit the recipe's model: for {key} that has {shapes[0]}, the weights have "
                f"{shapes[1]}. Leave [model] out to take its settings."
            )
    model.load_state_dict(given)
    log(f"Starting from the weights and the tokenizer of {name}{'' if same else ', with a new head'}.")
    return model


def max_text_tokens(model: Encoder | CausalLM | Seq2SeqLM) -> int:
    """The most tokens that a text may have, special tokens included; of a model with a source, that is the text."""
    limit = model.max_source_positions if isinstance(model, Seq2SeqLM) else model.max_positions
    return MAX_TOKENS if limit is None else limit


def length_batches(
    rows: Sequence[Sequence[int]], model: Encoder | CausalLM | Seq2SeqLM, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Batches of rows of similar length for a model: the indices of the rows, the padded rows, and their lengths.

    `progress` is called with the number of finished rows when the next batch is requested.
    """
    device = model.device
    vocab_size = getattr(model.config, "source_vocab_size", None) or model.config.vocab_size
    max_positions = model.max_source_positions if isinstance(model, Seq2SeqLM) else model.max_positions
    budget = BATCH_TOKENS.get(device.type, 2048)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    if order and (count := len(rows[order[-1]])) > MAX_TOKENS:
        raise UserError(
            f"A text has {count:,} tokens, and at most {MAX_TOKENS:,} are read at once; split it into several lines."
        )
    first = 0
    while first < len(order):
        last = first + 1
        while last < len(order) and (last + 1 - first) * len(rows[order[last]]) <= budget:
            last += 1
        numbers = order[first:last]
        longest = max(1, len(rows[numbers[-1]]))
        check_length(longest, max_positions)
        padded = torch.tensor([[*rows[number], *[0] * (longest - len(rows[number]))] for number in numbers])
        lengths = torch.tensor([len(rows[number]) for number in numbers])
        yield numbers, check_ids(padded, vocab_size).to(device), lengths.to(device)
        first = last
        if progress is not None:
            progress(first)
