"""DNN2 against its definition: embeddings, concatenated, times one matrix."""

import torch
from torch.nn import functional

from regard.model.before.fixed_window.dnn2 import DNN2Config


def test_equals_a_network_over_concatenated_embeddings():
    torch.manual_seed(0)
    m, width = 5, 4
    config = DNN2Config(vocab_size=9, source_vocab_size=7, max_length=m, hidden=6, width=width, layers=1)
    model = config.build().double().eval()
    torch.nn.init.normal_(model.bias)
    source, target = torch.randint(7, (3, 4)), torch.randint(9, (3, 5))
    lengths = torch.tensor([4, 2, 3])
    logits = model(source, target, source_lengths=lengths)
    matrix = torch.cat((model.source.weight.flatten(0, 1), model.target.weight.flatten(0, 1)))
    for row in range(3):
        for last in range(5):
            x = torch.zeros(2 * m, width, dtype=torch.float64)
            length = int(lengths[row])
            x[:length] = model.source_embed_tokens(source[row, :length]) * width**0.5
            x[m : m + last + 1] = model.embed_tokens(target[row, : last + 1]) * width**0.5
            hidden = (x.flatten() @ matrix + model.bias).relu()
            output = functional.linear(hidden, model.output.weight, model.output.bias)
            expected = model.embed_tokens.weight @ output + model.lm_head_bias
            torch.testing.assert_close(logits[row, last], expected, rtol=1e-10, atol=1e-10)
