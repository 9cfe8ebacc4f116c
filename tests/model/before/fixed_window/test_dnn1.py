"""DNN1 against its definition: one-hot vectors, concatenated, times one matrix."""

import pytest
import torch
from torch.nn import functional

from regard.config import ConfigError
from regard.model.before.fixed_window.dnn1 import DNN1Config


def test_equals_a_network_over_explicit_one_hot_vectors():
    torch.manual_seed(0)
    m, hidden, words, source_words = 5, 6, 9, 7
    model = DNN1Config(vocab_size=words, source_vocab_size=source_words, max_length=m, hidden=hidden, layers=2).build()
    model = model.double().eval()
    torch.nn.init.normal_(model.bias)
    source, target = torch.randint(source_words, (3, 4)), torch.randint(words, (3, 5))
    lengths = torch.tensor([4, 2, 3])
    logits = model(source, target, source_lengths=lengths)
    # The first matrix has a row for each word of each place: those of the source, then those of the target.
    matrix = torch.cat((model.source.weight.flatten(0, 1), model.target.weight.flatten(0, 1)))
    for row in range(3):
        for last in range(5):
            source_input = torch.zeros(m, source_words, dtype=torch.float64)
            target_input = torch.zeros(m, words, dtype=torch.float64)
            length = int(lengths[row])
            source_input[:length] = functional.one_hot(source[row, :length], source_words)
            target_input[: last + 1] = functional.one_hot(target[row, : last + 1], words)
            one_hot = torch.cat((source_input.flatten(), target_input.flatten()))
            x = (one_hot @ matrix + model.bias).relu()
            x = functional.linear(x, model.network.layers[0].weight, model.network.layers[0].bias).relu()
            expected = model.lm_head.weight @ x + model.lm_head_bias
            torch.testing.assert_close(logits[row, last], expected, rtol=1e-10, atol=1e-10)


def test_refuses_a_first_matrix_that_is_too_large():
    DNN1Config(vocab_size=2000, max_length=20, hidden=512)
    with pytest.raises(ConfigError, match=r'vocab_size: .* 400,000 words .* 50 positions .* set kind to "dnn2"'):
        DNN1Config(vocab_size=200_000, max_length=50)
    with pytest.raises(ConfigError, match="vocab_size"):
        DNN1Config(vocab_size=10, source_vocab_size=1_000_000)
