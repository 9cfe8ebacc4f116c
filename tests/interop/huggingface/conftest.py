"""Models built by transformers with random weights, brought over to regard, and compared with what they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

import regard
from regard.interop import import_huggingface
from regard.run import Loaded

from .support import edit_json, ids, shake

logging.disable_progress_bar()
logging.set_verbosity_error()

BOUND = 1e-4
"""How far logits may be apart in float32 (the project's promise)."""


@pytest.fixture
def save_theirs(tmp_path: Path) -> Callable[..., Path]:
    """Save a model of theirs with random weights; `changes` are then made to its config.json."""

    def save(model: Any, *, seed: int = 0, **changes: Any) -> Path:
        directory = tmp_path / "theirs"
        shake(model, seed).save_pretrained(directory)
        if changes:
            edit_json(directory / "config.json", **changes)
        return directory

    return save


@pytest.fixture
def bring(save_theirs: Callable[..., Path], tmp_path: Path) -> Callable[..., Loaded]:
    """Save a model of theirs with random weights, import it, load it."""

    def run(model: Any, **changes: Any) -> Loaded:
        import_huggingface(save_theirs(model, **changes), tmp_path / "ours")
        return regard.load(tmp_path / "ours")

    return run


@pytest.fixture
def same() -> Callable[..., None]:
    """Assert that two tensors of logits agree."""

    def check(ours: torch.Tensor, theirs: torch.Tensor, bound: float = BOUND) -> None:
        assert ours.shape == theirs.shape
        assert theirs.std() > 0.1, "logits without spread would agree with anything"
        assert (ours - theirs).abs().max().item() < bound

    return check


CHUNKS = {"one at a time": [1] * 9, "uneven chunks": [4, 1, 3, 1], "all at once": [9]}


@pytest.fixture(params=CHUNKS.values(), ids=CHUNKS.keys())
def chunks(request: pytest.FixtureRequest) -> list[int]:
    """How nine tokens are fed to a cache."""
    return list(request.param)


@pytest.fixture
def check_cached_writer(same: Callable[..., None]) -> Callable[..., None]:
    """A language model decoded behind its cache, ours and theirs, in the same chunks."""

    @torch.no_grad()
    def check(theirs: Any, ours: Loaded, sizes: list[int]) -> None:
        tokens = ids(2, sum(sizes), ours.config.vocabulary)
        cache, past = ours.model.start(2, sum(sizes)), None
        for chunk in tokens.split(sizes, dim=1):
            found, cache = ours.model.step(chunk, cache)
            expected = theirs(chunk, past_key_values=past, use_cache=True)
            past = expected.past_key_values
            same(found, expected.logits)

    return check


@pytest.fixture
def check_cached_translator(same: Callable[..., None]) -> Callable[..., None]:
    """An encoder–decoder decoded behind its cache over a padded source, ours and theirs, in the same chunks."""

    @torch.no_grad()
    def check(theirs: Any, ours: Loaded, sizes: list[int]) -> None:
        source, lengths = ids(2, 6, theirs.config.vocab_size), torch.tensor([6, 4])
        seen = (torch.arange(6) < lengths[:, None]).long()
        tokens = ids(2, sum(sizes), ours.config.vocabulary, seed=2)
        cache, past = ours.model.start(source, sum(sizes), lengths), None
        for chunk in tokens.split(sizes, dim=1):
            found, cache = ours.model.step(chunk, cache)
            expected = theirs(
                source, attention_mask=seen, decoder_input_ids=chunk, past_key_values=past, use_cache=True
            )
            past = expected.past_key_values
            same(found, expected.logits)

    return check


@pytest.fixture
def check_padded_translator(same: Callable[..., None]) -> Callable[..., None]:
    """An encoder–decoder over a padded source and the same source unpadded, ours and theirs."""

    @torch.no_grad()
    def check(theirs: Any, ours: Loaded) -> None:
        source, target = ids(3, 7, theirs.config.vocab_size), ids(3, 8, ours.config.vocabulary, seed=2)
        same(ours.logits(source, target), theirs(source, decoder_input_ids=target).logits)
        lengths = torch.tensor([7, 1, 5])
        seen = (torch.arange(7) < lengths[:, None]).long()
        expected = theirs(source, attention_mask=seen, decoder_input_ids=target).logits
        same(ours.logits(source, target, lengths=lengths), expected)

    return check


@pytest.fixture
def check_padded_writer(same: Callable[..., None]) -> Callable[..., None]:
    """A language model over full and padded rows, ours and theirs; what stands on padding is nobody's business."""

    @torch.no_grad()
    def check(theirs: Any, ours: Loaded) -> None:
        tokens, lengths = ids(3, 11, ours.config.vocabulary), torch.tensor([11, 2, 7])
        same(ours.logits(tokens), theirs(tokens).logits)
        seen = torch.arange(11) < lengths[:, None]
        expected = theirs(tokens, attention_mask=seen.long()).logits
        same(ours.logits(tokens, lengths=lengths)[seen], expected[seen])

    return check
