"""Greedy search takes the most likely token at every step."""

import pytest
import torch

from regard.decode import greedy_search
from regard.model import LanguageModelConfig
from tests.decode.toy_models import EOS, TableModel, small_stack, start_tokens


def test_greedy_takes_the_most_likely_token() -> None:
    model = TableModel(1, 4, 3)
    (found,) = greedy_search(model, model.start(), start_tokens(1), eos=EOS, max_length=6)
    before, last, expected = 0, 1, []
    for _ in range(6):
        best = int(model.logits[0, before, last].argmax())
        if best == EOS:
            break
        expected.append(best)
        before, last = last, best
    assert found.tokens == tuple(expected)
    assert found.logprob == pytest.approx(model.logprob(0, found.tokens, found.ended))


def test_greedy_search_decodes_a_language_model() -> None:
    torch.manual_seed(0)
    model = LanguageModelConfig(vocab_size=9, width=8, decoder=small_stack()).build().double().eval()
    (greedy,) = greedy_search(model, model.start(1, 6), start_tokens(1), eos=EOS, max_length=6)
    tokens = [1]
    while len(tokens) <= 6:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        if tokens[-1] == EOS:
            break
    assert greedy.tokens == tuple(token for token in tokens[1:] if token != EOS)
