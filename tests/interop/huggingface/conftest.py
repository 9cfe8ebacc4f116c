"""Fixtures that import transformers models with random weights and compare them with the originals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

import regard
from regard.interop import import_huggingface
from regard.task.pipeline import Pipeline
from tests.interop.huggingface.support import edit_json, ids, randomize

logging.disable_progress_bar()
logging.set_verbosity_error()

BOUND = 1e-4
"""The largest allowed difference between logits in float32."""


@pytest.fixture
def save_hf(tmp_path: Path) -> Callable[..., Path]:
    """Save a transformers model with random weights, with `changes` to its config.json."""

    def save(model: Any, *, seed: int = 0, **changes: Any) -> Path:
        directory = tmp_path / "theirs"
        randomize(model, seed).save_pretrained(directory)
        if changes:
            edit_json(directory / "config.json", **changes)
        return directory

    return save


@pytest.fixture
def from_hf(save_hf: Callable[..., Path], tmp_path: Path) -> Callable[..., Pipeline]:
    """Save a transformers model with random weights, import it and load it."""

    def run(model: Any, **changes: Any) -> Pipeline:
        import_huggingface(save_hf(model, **changes), tmp_path / "ours")
        return regard.load(tmp_path / "ours")

    return run


@pytest.fixture
def equal_tensors() -> Callable[..., None]:
    """Assert that two tensors of logits are equal within a bound."""

    def check(ours: torch.Tensor, theirs: torch.Tensor, bound: float = BOUND) -> None:
        assert ours.shape == theirs.shape
        assert theirs.std() > 0.1, "nearly constant logits would prove nothing"
        assert (ours - theirs).abs().max().item() < bound

    return check


CHUNKS = {"step by step": [1] * 9, "uneven chunks": [4, 1, 3, 1], "one chunk": [9]}


@pytest.fixture(params=CHUNKS.values(), ids=CHUNKS.keys())
def chunks(request: pytest.FixtureRequest) -> list[int]:
    """Sizes of the chunks in which nine tokens are decoded."""
    return list(request.param)


@pytest.fixture
def check_cached_language_model(equal_tensors: Callable[..., None]) -> Callable[..., None]:
    """Compare the cached decoding of a language model in these chunks with transformers."""

    @torch.no_grad()
    def check(theirs: Any, ours: Pipeline, sizes: list[int]) -> None:
        tokens = ids(2, sum(sizes), ours.config.vocab_size)
        cache, past = ours.model.start(2, sum(sizes)), None
        for chunk in tokens.split(sizes, dim=1):
            actual, cache = ours.model.step(chunk, cache)
            expected = theirs(chunk, past_key_values=past, use_cache=True)
            past = expected.past_key_values
            equal_tensors(actual, expected.logits)

    return check


@pytest.fixture
def check_cached_translator(equal_tensors: Callable[..., None]) -> Callable[..., None]:
    """Compare the cached decoding of an encoder–decoder with padded sources in these chunks with transformers."""

    @torch.no_grad()
    def check(theirs: Any, ours: Pipeline, sizes: list[int]) -> None:
        source, lengths = ids(2, 6, theirs.config.vocab_size), torch.tensor([6, 4])
        mask = (torch.arange(6) < lengths[:, None]).long()
        tokens = ids(2, sum(sizes), ours.config.vocab_size, seed=2)
        cache, past = ours.model.start(source, sum(sizes), lengths), None
        for chunk in tokens.split(sizes, dim=1):
            actual, cache = ours.model.step(chunk, cache)
            expected = theirs(
                source, attention_mask=mask, decoder_input_ids=chunk, past_key_values=past, use_cache=True
            )
            past = expected.past_key_values
            equal_tensors(actual, expected.logits)

    return check


@pytest.fixture
def check_padded_translator(equal_tensors: Callable[..., None]) -> Callable[..., None]:
    """Compare an encoder–decoder with transformers, with and without source padding."""

    @torch.no_grad()
    def check(theirs: Any, ours: Pipeline) -> None:
        source, target = ids(3, 7, theirs.config.vocab_size), ids(3, 8, ours.config.vocab_size, seed=2)
        equal_tensors(ours.logits(source, target), theirs(source, decoder_input_ids=target).logits)
        lengths = torch.tensor([7, 1, 5])
        mask = (torch.arange(7) < lengths[:, None]).long()
        expected = theirs(source, attention_mask=mask, decoder_input_ids=target).logits
        equal_tensors(ours.logits(source, target, lengths=lengths), expected)

    return check


@pytest.fixture
def check_padded_language_model(equal_tensors: Callable[..., None]) -> Callable[..., None]:
    """Compare a language model with transformers, with and without padding; logits of padding are ignored."""

    @torch.no_grad()
    def check(theirs: Any, ours: Pipeline) -> None:
        tokens, lengths = ids(3, 11, ours.config.vocab_size), torch.tensor([11, 2, 7])
        equal_tensors(ours.logits(tokens), theirs(tokens).logits)
        mask = torch.arange(11) < lengths[:, None]
        expected = theirs(tokens, attention_mask=mask.long()).logits
        equal_tensors(ours.logits(tokens, lengths=lengths)[mask], expected[mask])

    return check
