"""The coverage penalty against its formula written out."""

from math import log

import pytest
import torch

from regard import UserError
from regard.decode import DecodeConfig, Request
from regard.decode.batch import search_batch
from tests.model.before.samples import sample
from tests.model.small_models import build, encoder_decoder

SOURCE, EOS, BETA = (3, 4, 5, 6), 2, 0.7
SPECIAL = {"pad": 0, "bos": 1, "eos": EOS}
MODELS = {
    "Transformer": encoder_decoder(special_tokens=SPECIAL),
    "GRU with attention": sample("recurrent-attention", width=8, hidden=12),
}


def coverage_penalty(model, tokens):
    """β · Σ_i log min(Σ_j p_ij, 1), from a forward pass over one output."""
    reported = {}
    source, _ = model.pad_sources([SOURCE])

    def hook(module, weights):
        if weights.shape[-1] == source.shape[1] and weights.shape[-2] == len(tokens):
            reported[module] = weights[0].mean(dim=0)

    model(source, torch.tensor([tokens]), attention_hook=hook)
    cross = torch.stack([weights for module, weights in reported.items() if "Self" not in type(module).__name__])
    received = cross.mean(dim=0).sum(dim=0)
    return BETA * sum(log(min(each, 1.0)) for each in received.tolist())


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_scores_have_the_coverage_penalty(config):
    model = build(config)
    settings = DecodeConfig(beam_size=4, length_penalty={"kind": "none"})
    (plain,) = search_batch(model, [Request(SOURCE, 8, settings)], EOS)
    penalized = settings.updated({"coverage_penalty": BETA, "nbest": 3})
    (found,) = search_batch(model, [Request(SOURCE, 8, penalized)], EOS)
    expected = {}
    for each in plain:
        inputs = [1, *each.tokens] if each.ended else [1, *each.tokens[:-1]]
        expected[each.tokens] = each.score + coverage_penalty(model, inputs)
    assert [each.tokens for each in found] == sorted(expected, key=lambda tokens: -expected[tokens])[:3]
    for each in found:
        assert each.score == pytest.approx(expected[each.tokens], abs=1e-9)


def test_model_without_attention_to_a_source_is_refused():
    model = build(sample("recurrent-lm", width=8))
    request = Request(SOURCE, 5, DecodeConfig(beam_size=2, coverage_penalty=0.2))
    with pytest.raises(UserError, match=r"decode\.coverage_penalty needs a model whose decoder attends"):
        search_batch(model, [request], EOS)


def test_greedy_search_has_nothing_to_rank():
    with pytest.raises(UserError, match="coverage_penalty: it ranks the hypotheses of a beam"):
        DecodeConfig(beam_size=1, coverage_penalty=0.2)
