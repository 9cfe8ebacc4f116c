"""Attention rollout: its rows and layers agree with each other, and only self-attention is rolled out."""

import pytest
import torch

from regard import UserError
from regard.look.analysis.attention_rollout import attention_rollout, rollout_of_each_layer
from tests.look.support import autoregressive_model, request
from tests.model.before.samples import SAMPLES


def test_rows_and_layers_agree() -> None:
    """Rows of zeros, of queries that may attend to nothing, leave the token as it is."""
    torch.manual_seed(0)
    weights = torch.rand(3, 2, 5, 5).softmax(dim=-1)
    weights[:, :, 4] = 0
    layers = list(rollout_of_each_layer(weights))
    for layer, expected in enumerate(layers):
        torch.testing.assert_close(attention_rollout(weights, layer), expected)
        start = torch.rand(2, 5)
        torch.testing.assert_close(attention_rollout(weights, layer, start), start @ expected)
    torch.testing.assert_close(layers[-1].sum(dim=-1), torch.ones(5))
    torch.testing.assert_close(layers[-1][4], torch.eye(5)[4])


def test_only_self_attention_of_a_transformer_is_rolled_out() -> None:
    model = autoregressive_model(dtype=torch.float32)
    trace = model.trace(request(model))
    with pytest.raises(UserError, match="'cross' attention of this model cannot be multiplied"):
        trace.rollout("cross", 0)
    with pytest.raises(UserError, match="'encoder' has no layer 2: its 2 layers"):
        trace.rollout("encoder", 2)
    before = autoregressive_model(SAMPLES["recurrent-attention"]["plain"], torch.float32)
    with pytest.raises(UserError, match="self-attention of a Transformer"):
        before.trace(request(before)).rollout("cross", 0)
