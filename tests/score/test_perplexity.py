"""Loss, perplexity and bits per byte equal their definitions."""

import math

import numpy as np
import pytest
import torch

from regard import UserError
from regard.data.batching.windows import TokenStream, sequential_windows
from regard.score import PerplexityScore, score_perplexity
from regard.train.loss import cross_entropy


def test_metrics_worked_by_hand() -> None:
    # "né" is two tokens with probabilities 1/2 and 1/8: 1/16 in all, which is 4 bits, over 3 bytes and 2 characters.
    score = score_perplexity(math.log(2) + math.log(8), 2, bytes=3, characters=2)
    assert score.nats == pytest.approx(math.log(16))
    assert score.loss == pytest.approx(2 * math.log(2))
    assert score.perplexity == pytest.approx(4)
    assert score.bits_per_byte == pytest.approx(4 / 3)
    assert score.bits_per_character == pytest.approx(2)
    assert (score.tokens, score.bytes, score.characters) == (2, 3, 2)


def test_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    stream = TokenStream(np.arange(1000) % 256)
    nats, count = 0.0, 0
    for batch in sequential_windows(stream, 32, 4):
        scores = torch.zeros(*batch.tokens.shape, 256, dtype=torch.float64)
        loss = cross_entropy(scores, batch.targets, batch.lengths)
        nats, count = nats + float(loss.nll), count + int(loss.count)
    score = score_perplexity(nats, count, bytes=999, characters=999)
    assert count == 999
    assert score.perplexity == pytest.approx(256)
    assert score.bits_per_byte == pytest.approx(8)


def test_certain_model_needs_no_bits() -> None:
    score = score_perplexity(0.0, 5, bytes=9, characters=7)
    assert (score.loss, score.perplexity, score.bits_per_byte, score.bits_per_character) == (0, 1, 0, 0)


def test_bits_per_byte_do_not_depend_on_the_tokenizer() -> None:
    small = score_perplexity(80.0, 40, bytes=40, characters=40)
    large = score_perplexity(80.0, 10, bytes=40, characters=40)
    assert large.loss == 4 * small.loss
    assert large.bits_per_byte == small.bits_per_byte


def test_perplexity_of_a_huge_loss_is_infinite() -> None:
    assert score_perplexity(1e6, 1, bytes=1, characters=1).perplexity == math.inf


def test_score_as_text_and_plain_data() -> None:
    score = score_perplexity(14675.0, 10_000, bytes=10_000, characters=10_000)
    assert str(score) == "loss 1.4675 nats per token, perplexity 4.34, 2.1172 bits per byte"
    assert score.rounded() == {
        "loss": 1.4675,
        "perplexity": 4.3384,
        "bits_per_byte": 2.1172,
        "bits_per_character": 2.1172,
        "nats": 14675.0,
        "tokens": 10_000,
        "bytes": 10_000,
        "characters": 10_000,
    }
    assert isinstance(score, PerplexityScore)


@pytest.mark.parametrize(
    ("tokens", "size", "characters", "message"),
    [
        (0, 1, 1, "at least one token is needed, found 0"),
        (1, 0, 1, "at least one byte is needed, found 0"),
        (1, 1, -1, "at least one character is needed, found -1"),
    ],
)
def test_nothing_to_score_is_refused(tokens: int, size: int, characters: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        score_perplexity(1.0, tokens, bytes=size, characters=characters)


@pytest.mark.parametrize("nats", [-1.0, math.nan])
def test_negative_sum_is_refused(nats: float) -> None:
    with pytest.raises(UserError, match="must be at least 0; found"):
        score_perplexity(nats, 1, bytes=1, characters=1)
