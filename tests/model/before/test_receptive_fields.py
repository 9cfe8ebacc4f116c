"""What a token sees of the text: the non-zeros of the Jacobian of its logits.

A stack of L convolutions of k tokens sees 1 + L(k − 1) tokens, dilated ones more, a window model its window and an
n-gram n − 1 tokens; a recurrent network sees all tokens before, and attention does in a single layer. The numbers here
are written out, and not taken from the models' own properties.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.model import AUTOREGRESSIVE_MODELS, TRANSFORMERS, LanguageModelConfig
from regard.model.before.ngram.model import NgramLM
from tests.model.before.samples import build, sample
from tests.model.small_models import VOCAB_SIZE, encoder_decoder, ids, stack
from tests.model.small_models import build as build_transformer

TOKENS, SOURCE_TOKENS = 24, 20
ALL = None
"""All tokens so far, or all tokens of the source."""
CAUSAL: list[tuple[str, dict[str, Any], int | None]] = [
    ("convolutional-lm", {"width": 8, "layers": 1, "kernel": 3}, 1 + 1 * 2),
    ("convolutional-lm", {"width": 8, "layers": 4, "kernel": 3}, 1 + 4 * 2),
    ("convolutional-lm", {"width": 8, "layers": 3, "kernel": 2}, 1 + 3 * 1),
    ("convolutional-lm", {"width": 8, "layers": 3, "kernel": 3, "dilations": (1, 2, 4)}, 1 + 2 * (1 + 2 + 4)),
    ("ngram", {"order": 1}, 0),
    ("ngram", {"order": 2}, 1),
    ("ngram", {"order": 4}, 3),
    ("bidirectional-lm", {"width": 8, "layers": 2}, ALL),
    ("recurrent-lm", {"width": 8, "layers": 1}, ALL),
    ("recurrent-lm", {"width": 8, "layers": 2, "cell": "gru"}, ALL),
    ("window-lm", {"window": 1, "width": 8, "hidden": 12}, 1),
    ("window-lm", {"window": 5, "width": 8, "hidden": 12, "direct": True}, 5),
]
FIXED: dict[str, Any] = {"hidden": 12, "max_length": TOKENS}
SEQ2SEQ: list[tuple[str, dict[str, Any], int | None]] = [
    (
        "bytenet",
        {"width": 8, "dilations": (1, 2), "encoder_sets": 1, "decoder_sets": 1, "length_ratio": 1.0},
        1 + 2 * 3,
    ),
    (
        "bytenet",
        {"width": 8, "dilations": (1, 3), "encoder_sets": 1, "decoder_sets": 2, "length_ratio": 1.0},
        1 + 4 * 4,
    ),
    *[("context", FIXED | {"width": 8, "mixing": each}, ALL) for each in ("mean", "learned", "cosine", "query_key")],
    ("convolutional", {"width": 8, "max_length": TOKENS, "decoder_layers": 3, "kernel": 3}, 1 + 3 * 2),
    ("deep-att", {"width": 8, "hidden": 6}, ALL),
    ("dnn1", FIXED, ALL),
    ("dnn2", FIXED | {"width": 8}, ALL),
    ("gnmt", {"width": 8, "layers": 2}, ALL),
    ("recurrent", {"width": 8, "hidden": 12}, ALL),
    ("recurrent-attention", {"width": 8, "hidden": 12}, ALL),
]


def test_every_kind_is_there():
    assert {kind for kind, *_ in CAUSAL + SEQ2SEQ} == set(AUTOREGRESSIVE_MODELS) - set(TRANSFORMERS)


def influences(model: Any, source: list[Tensor], tokens: Tensor, position: int) -> tuple[list[int], list[int]]:
    """The positions of the source and of the text that change the logits at a position, by replacing single tokens.

    This is the Jacobian with respect to one-hot tokens, in differences, so that it can be asked of a table of n-grams
    and of a network alike. Several replacements are tried, since two rare tokens may have the same continuations.
    """

    def changing(texts: list[Tensor], number: int) -> list[int]:
        before = model(*texts)[0, position]
        found = []
        for place in range(texts[number].shape[1]):
            for shift in (1, 2, 3, 5):
                other = [each.clone() for each in texts]
                other[number][0, place] = 3 + (other[number][0, place] - 3 + shift) % (VOCAB_SIZE - 3)
                if not torch.equal(model(*other)[0, position], before):
                    found.append(place)
                    break
        return found

    with torch.no_grad():
        texts = [*source, tokens]
        return changing(texts, 0) if source else [], changing(texts, len(texts) - 1)


def words(tokens: int, seed: int) -> Tensor:
    return 3 + ids(1, tokens, VOCAB_SIZE - 3, seed=seed)


def expected(field: int | None, position: int) -> list[int]:
    return list(range(0 if field is ALL else position + 1 - field, position + 1))


def identifiers(some: list[tuple[str, dict[str, Any], int | None]]) -> list[str]:
    return [f"{kind} {'all' if field is ALL else field}" for kind, _, field in some]


@pytest.mark.parametrize(("kind", "settings", "field"), CAUSAL, ids=identifiers(CAUSAL))
def test_language_models(kind, settings, field):
    config = sample(kind, **settings)
    if kind == "ngram":
        model: Any = config.build()
        assert isinstance(model, NgramLM)
        model.fit(torch.randint(3, VOCAB_SIZE, (3000,), generator=torch.Generator().manual_seed(0)).numpy())
    else:
        model = build(config)
    position = TOKENS - 3
    _, seen = influences(model, [], words(TOKENS, seed=1), position)
    assert seen == expected(field, position)


@pytest.mark.parametrize(("kind", "settings", "field"), SEQ2SEQ, ids=identifiers(SEQ2SEQ))
def test_models_with_a_source(kind, settings, field):
    """All of the source is seen from the second target token on; of ByteNet's, what its columns and its field allow."""
    model, position = build(sample(kind, **settings)), 17
    source, target = words(SOURCE_TOKENS, seed=1), words(TOKENS - 3, seed=2)
    of_source, seen = influences(model, [source], target, position)
    assert seen == expected(field, position)
    if kind == "bytenet":  # column c is computed from the source around c; the decoder adds column c at position c
        around = sum(settings["dilations"])  # to either side, with kernels of 3 and one set in the encoder
        field = 1 + 2 * settings["decoder_sets"] * around
        columns = range(position + 1 - field, position + 1)
        near = {place for column in columns for place in range(column - around, column + around + 1)}
        assert of_source == sorted(near & set(range(SOURCE_TOKENS)))
    else:
        assert of_source == list(range(SOURCE_TOKENS))


def test_attention_sees_all_tokens_in_one_layer():
    """What the Transformer has in common with no other model of one layer: nothing is too far, and nothing is passed
    on from step to step."""
    special = {"pad": 0, "bos": 1, "eos": 2}
    one = stack(layers=1)
    language_model = LanguageModelConfig(vocab_size=VOCAB_SIZE, width=16, decoder=one, special_tokens=special)
    position = TOKENS - 3
    _, seen = influences(build_transformer(language_model), [], words(TOKENS, seed=1), position)
    assert seen == expected(ALL, position)
    model = build_transformer(encoder_decoder(encoder=one, decoder=one, special_tokens=special))
    of_source, seen = influences(model, [words(SOURCE_TOKENS, seed=1)], words(9, seed=2), 0)
    assert (of_source, seen) == (list(range(SOURCE_TOKENS)), [0])
