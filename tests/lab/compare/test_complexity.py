"""Table 1's columns, against the models themselves."""

import math
from typing import Any

import pytest
import torch

from regard.lab.compare.complexity import complexity_of, operations_per_layer
from regard.model import MODELS, STATIC_VECTORS
from tests.model.before.samples import build, sample
from tests.model.small_models import VOCAB_SIZE, ids, language_model, stack

SMALL: dict[str, Any] = {
    "window-lm": sample("window-lm", window=5, width=8, hidden=12),
    "convolutional-lm": sample("convolutional-lm", width=8, layers=3, kernel=3, dilations=(1, 2)),
    "bytenet": sample("bytenet", width=8, dilations=(1, 2), encoder_sets=1, decoder_sets=2),
    "recurrent-lm": sample("recurrent-lm", width=8, layers=1),
    "bidirectional-lm": sample("bidirectional-lm", width=8, layers=1),
    "language-model": language_model(),
}


@pytest.mark.parametrize("kind", SMALL)
def test_receptive_field_is_what_the_last_output_depends_on(kind: str) -> None:
    config, length = SMALL[kind], 24
    model, tokens, source = build(config), ids(1, length, seed=1), ids(1, 6, seed=2)
    inputs = () if not hasattr(config, "source_vocab_size") else (source,)

    def last(changed: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(*inputs, changed)[0, -1]
        return logits

    seen = 0
    for position in range(length):
        changed = tokens.clone()
        changed[0, position] = (changed[0, position] + 1) % VOCAB_SIZE
        seen += not torch.equal(last(changed), last(tokens))
    row = complexity_of(config)
    assert row is not None
    assert row.at(length, config)["receptive_field"] == seen


def test_path_through_convolutions_takes_no_more_of_them_than_it_needs() -> None:
    """Spans of 3, 6, 12 and 3: the widest convolutions come first, and tokens farther apart meet in no output."""
    config = sample("convolutional-lm", width=8, layers=4, kernel=4, dilations=(1, 2, 4))
    row = complexity_of(config)
    assert row is not None
    paths = {length: row.at(length, config)["path_length"] for length in (2, 13, 14, 20, 25, 1000)}
    assert paths == {2: 1, 13: 1, 14: 2, 20: 3, 25: 4, 1000: 4}


def test_paths_and_steps_of_table_1() -> None:
    """Vaswani et al. 2017: one step and one path for attention, n of each for recurrence."""
    counts = {kind: complexity_of(SMALL[kind]) for kind in ("language-model", "recurrent-lm")}
    found = {kind: row.at(100, SMALL[kind]) for kind, row in counts.items() if row is not None}
    assert found == {
        "language-model": {"sequential_steps": 1, "path_length": 1, "receptive_field": 100},
        "recurrent-lm": {"sequential_steps": 100, "path_length": 100, "receptive_field": 100},
    }


def test_every_kind_of_model_has_a_row() -> None:
    for kind in MODELS.keys() - STATIC_VECTORS.keys():  # which are no networks
        config = MODELS[kind]
        settings = {} if kind == "vision" else {"vocab_size": 100}
        model: Any = config(**settings)  # type: ignore[arg-type]
        row = complexity_of(model)
        assert row is not None
        assert 1 <= row.at(50, model)["path_length"] <= 50
        assert operations_per_layer(model).startswith("none" if kind == "ngram" else "O(")
        assert math.isfinite(row.at(50, model)["receptive_field"])


def test_attention_to_part_of_the_keys_has_a_bound() -> None:
    assert operations_per_layer(language_model(decoder=stack(pattern="sliding(3)"))) == "at most O(n²·d + n·d²)"
