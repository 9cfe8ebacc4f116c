"""Every kind learns: small models overfit 100 pairs, or 100 lines, in well under a second each.

A source is three different words in any order, and its target has one word for each of them, in the same order. All
models can learn this by heart, even an equal-weights context, which only knows which words there are, because no two
sources have the same words. Without the source, only half of the tokens can be predicted.

In a line, each word from the third on follows from the two before it by a random table, so that a window of two words
suffices, and one does not.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.model import AUTOREGRESSIVE_MODELS, TRANSFORMERS, CausalLM
from regard.model.before.ngram.model import NgramLM
from regard.train.loss import add_aux_loss, cross_entropy
from tests.model.before.samples import sample

BOS, EOS, FIRST = 1, 2, 3
WORDS, ROWS = 10, 100
STEPS = 150
NARROW: dict[str, Any] = {"width": 32, "dropout": 0.0}
RECURRENT = NARROW | {"hidden": 32}
LUONG = {"kind": "luong"}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "bidirectional-lm": [NARROW | {"layers": 1}],
    "bytenet": [NARROW | {"dilations": (1, 2), "encoder_sets": 1, "decoder_sets": 1}],
    "context": [
        NARROW | {"hidden": 64, "max_length": 8, "mixing": mixing}
        for mixing in ("mean", "learned", "cosine", "query_key")
    ],
    "convolutional": [NARROW | {"max_length": 8, "encoder_layers": 2, "decoder_layers": 2}],
    "convolutional-lm": [NARROW | {"layers": 2, "kernel": 2}],
    "deep-att": [RECURRENT | {"encoder_layers": 2, "decoder_layers": 1}, RECURRENT],
    "dnn1": [{"hidden": 64, "max_length": 8, "dropout": 0.0}],
    "dnn2": [NARROW | {"hidden": 64, "max_length": 8}],
    "gnmt": [NARROW | {"layers": 2}, NARROW | {"cell": "gru", "layers": 2, "tie_weights": False}],
    "ngram": [{"order": 3}],
    "recurrent": [
        RECURRENT,
        RECURRENT | {"cell": "lstm", "summary_input": "first_state", "reverse_source": True},
        RECURRENT | {"cell": "lstm", "layers": 2, "bidirectional": True},
    ],
    "recurrent-attention": [
        RECURRENT,
        RECURRENT | {"decoder": {"kind": "bahdanau", "readout": "maxout"}, "cell": "lstm", "tie_weights": False},
        RECURRENT | {"decoder": LUONG, "attention": {"kind": "dot"}, "cell": "lstm", "layers": 2},
        RECURRENT | {"decoder": LUONG | {"input_feeding": False}, "attention": {"kind": "concat"}},
        RECURRENT | {"layers": 2, "experts": {"experts": 4, "top_k": 2, "hidden": 32}},
    ],
    "recurrent-lm": [NARROW | {"layers": 1}, NARROW | {"layers": 1, "cell": "gru"}],
    "window-lm": [{"width": 16, "hidden": 64, "window": 2, "dropout": 0.0}],
}
EVERY = [
    pytest.param(kind, settings, id=f"{kind} {number}")
    for kind, some in SETTINGS.items()
    for number, settings in enumerate(some)
]


def test_every_kind_is_there():
    assert set(SETTINGS) == set(AUTOREGRESSIVE_MODELS) - set(TRANSFORMERS)


def pairs() -> tuple[Tensor, Tensor]:
    """Sources with EOS, and targets between BOS and EOS."""
    generator = torch.Generator().manual_seed(0)
    words = torch.combinations(torch.arange(WORDS), 3)
    words = words[torch.randperm(len(words), generator=generator)[:ROWS]]
    words = torch.stack([each[torch.randperm(3, generator=generator)] for each in words])
    translations = torch.randperm(WORDS, generator=generator)
    bos, eos = (torch.full((ROWS, 1), token) for token in (BOS, EOS))
    return torch.cat((FIRST + words, eos), dim=1), torch.cat((bos, FIRST + translations[words], eos), dim=1)


def lines() -> Tensor:
    """Six words each; all pairs of first words occur."""
    following = torch.randint(WORDS, (WORDS, WORDS), generator=torch.Generator().manual_seed(0))
    words = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))
    for _ in range(4):
        words = torch.cat((words, following[words[:, -2], words[:, -1]][:, None]), dim=1)
    return FIRST + words


def fit(model: Any, source: list[Tensor], inputs: Tensor, targets: Tensor, skipped: int) -> float:
    """Train, and give the share of targets that are predicted; the first ones of each row may be skipped."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    share = 0.0
    for _ in range(STEPS):
        found: list[Tensor] = []

        def compute(found: list[Tensor] = found):
            found.append(model(*source, inputs)[:, skipped:])
            return cross_entropy(found[0], targets[:, skipped:])

        loss = add_aux_loss(model, compute)
        share = float((found[0].argmax(dim=-1) == targets[:, skipped:]).float().mean())
        if share > 0.97:
            break
        optimizer.zero_grad()
        loss.mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return share


@pytest.mark.parametrize(("kind", "settings"), EVERY)
def test_overfits_one_hundred_rows(kind, settings):
    torch.manual_seed(0)
    model = sample(kind, **settings).build().train()
    if isinstance(model, NgramLM):
        rows = lines()
        model.fit(rows.flatten().numpy(), torch.arange(0, rows.numel(), rows.shape[1]).numpy())
        share = float((model(rows[:, :-1])[:, 1:].argmax(dim=-1) == rows[:, 2:]).float().mean())
    elif isinstance(model, CausalLM):
        rows = lines()
        share = fit(model, [], rows[:, :-1], rows[:, 1:], skipped=1)
    else:
        source, target = pairs()
        share = fit(model, [source], target[:, :-1], target[:, 1:], skipped=0)
    assert share > 0.95


def test_one_word_is_too_little_context():
    """That these lines cannot be learned without two words, as the test above would not show."""
    torch.manual_seed(0)
    rows = lines()
    model = sample("window-lm", width=16, hidden=64, window=1, dropout=0.0).build().train()
    assert fit(model, [], rows[:, :-1], rows[:, 1:], skipped=1) < 0.5


def test_targets_cannot_be_learned_without_their_sources():
    torch.manual_seed(0)
    source, target = pairs()
    model = sample("recurrent", **RECURRENT).build().train()
    assert fit(model, [torch.full_like(source, EOS)], target[:, :-1], target[:, 1:], skipped=0) < 0.6
