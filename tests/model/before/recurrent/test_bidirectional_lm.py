"""The bidirectional language model: two plain ones that share embeddings, and neither sees what it predicts."""

import pytest
import torch
from torch import Tensor

from regard.config import ConfigError
from regard.data.batching.row_batch import RowBatch
from regard.errors import UserError
from regard.model.before.recurrent.layers import reverse_rows
from regard.task.language_modeling.task import in_both_directions, logits_of_both_directions
from regard.train.loss import LossConfig, cross_entropy, training_loss
from tests.model.before.samples import build, sample
from tests.model.small_models import EXACT, VOCAB_SIZE, ids

SETTINGS = {"width": 8, "layers": 2}


@pytest.fixture
def model():
    return build(sample("bidirectional-lm", **SETTINGS))


def plain(model, layers):
    """The plain language model with the weights of one direction."""
    one = build(sample("recurrent-lm", **SETTINGS))
    given = {key: value for key, value in model.state_dict().items() if not key.startswith("backward_layers")}
    one.load_state_dict(given)
    one.layers.load_state_dict(layers.state_dict())
    return one


def both(model, tokens, following, lengths=None):
    ahead, back = model(tokens, following=following, lengths=lengths).chunk(2)
    return ahead, back


def test_forward_direction_is_the_plain_language_model(model):
    text = ids(3, 8, seed=1)
    expected = plain(model, model.layers)(text[:, :-1])
    torch.testing.assert_close(model(text[:, :-1]), expected, **EXACT)
    torch.testing.assert_close(both(model, text[:, :-1], text[:, 1:])[0], expected, **EXACT)


def test_backward_direction_is_the_plain_language_model_on_the_reversed_text(model):
    text = ids(3, 8, seed=1)
    one = plain(model, model.backward_layers)
    _, back = both(model, text[:, :-1], text[:, 1:])
    torch.testing.assert_close(back.flip(1), one(text.flip(1)[:, :-1]), **EXACT)
    torch.testing.assert_close(back, model.backward_logits(text[:, 1:]), **EXACT)


def test_padded_rows_are_read_from_their_own_ends(model):
    text, lengths = ids(3, 8, seed=1), torch.tensor([7, 2, 4])
    ahead, back = both(model, text[:, :-1], text[:, 1:], lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = text[row : row + 1, : length + 1]
        for found, expected in zip((ahead, back), both(model, alone[:, :-1], alone[:, 1:]), strict=True):
            torch.testing.assert_close(found[row, :length], expected[0], **EXACT)


def jacobian(model, tokens: Tensor, direction: int) -> Tensor:
    """Whether the logits in column i depend on token j of the whole text.  # (columns, tokens)"""
    table = model.embed_tokens.weight
    embedded = table[tokens[0]].detach().clone().requires_grad_()  # (tokens, width)
    seen = torch.zeros(tokens.shape[1] - 1, tokens.shape[1], dtype=torch.bool)
    # As if every token had an embedding of its own, so that the softmax, which has them too, does not count.
    number = torch.arange(tokens.shape[1])[None]
    model._embed = lambda chosen: embedded[chosen]
    logits = both(model, number[:, :-1], number[:, 1:])[direction][0]
    for column in range(len(logits)):
        (grad,) = torch.autograd.grad(logits[column].square().sum(), embedded, retain_graph=True)
        seen[column] = grad.abs().sum(dim=-1) > 0
    return seen


def test_no_direction_sees_the_token_that_it_predicts(model):
    """Column i of the forward direction predicts token i + 1, that of the backward direction token i."""
    tokens = ids(1, 6, seed=2)
    column, token = torch.arange(5)[:, None], torch.arange(6)
    assert torch.equal(jacobian(model, tokens, 0), token <= column)
    assert torch.equal(jacobian(model, tokens, 1), token > column)


def test_hidden_states_are_those_of_both_directions(model):
    text = ids(2, 6, seed=3)
    ahead, back = plain(model, model.layers), plain(model, model.backward_layers)
    pairs = zip(ahead.hidden_states(text), back.hidden_states(text.flip(1)), strict=True)
    for found, (one, other) in zip(model.hidden_states(text), pairs, strict=True):
        torch.testing.assert_close(found, torch.cat((one, other.flip(1)), dim=-1), **EXACT)
    embedded = model.hidden_states(text)[0]
    assert torch.equal(*embedded.chunk(2, dim=-1))


def batch(lengths=(6, 4)):
    text = ids(2, 7, seed=4)
    lengths = torch.tensor(lengths)
    targets = text[:, 1:].masked_fill(torch.arange(6) >= lengths[:, None], -1)
    return RowBatch(text[:, :-1], targets, lengths, None, int(lengths.sum()))


def test_loss_is_the_sum_of_both_directions(model):
    """Counted as twice as many targets: the mean is that of all predictions."""
    rows = batch()
    exchanged = in_both_directions(rows)
    loss = cross_entropy(logits_of_both_directions(model, rows), exchanged.targets, exchanged.lengths)
    ahead = cross_entropy(plain(model, model.layers)(rows.tokens), rows.targets, rows.lengths)
    following = reverse_rows(rows.targets.clamp(min=0), rows.lengths)
    back = plain(model, model.backward_layers)(following)
    back = cross_entropy(back, reverse_rows(rows.tokens, rows.lengths), rows.lengths)
    torch.testing.assert_close(loss.total, ahead.total + back.total)
    assert int(loss.count) == 2 * rows.count == exchanged.count


def test_passes_of_r_drop_agree_without_dropout(model):
    rows, exchanged = batch(), in_both_directions(batch())
    once = training_loss(
        logits_of_both_directions(model, rows), exchanged.targets, exchanged.lengths, LossConfig(label_smoothing=0.0)
    )
    twice = training_loss(
        logits_of_both_directions(model, rows, 2),
        exchanged.targets,
        exchanged.lengths,
        LossConfig(label_smoothing=0.0, r_drop=5.0),
    )
    torch.testing.assert_close(once.total, twice.total)


def test_packed_documents_are_refused(model):
    text = ids(1, 5)
    with pytest.raises(UserError, match="packed documents apart"):
        model(text, following=text, documents=torch.zeros_like(text))


def test_overfits_in_both_directions():
    torch.manual_seed(0)
    model = sample("bidirectional-lm", width=32, layers=1, dropout=0.0).build().train()
    text = torch.randperm(VOCAB_SIZE * 3)[:24].view(2, 12) % VOCAB_SIZE
    rows = RowBatch(text[:, :-1], text[:, 1:], torch.tensor([11, 11]), None, 22)
    exchanged = in_both_directions(rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(200):
        loss = cross_entropy(logits_of_both_directions(model, rows), exchanged.targets)
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    assert float(loss.mean.detach()) < 0.1


def test_settings_are_read_strictly():
    with pytest.raises(ConfigError, match="layers"):
        sample("bidirectional-lm", layers=0)
