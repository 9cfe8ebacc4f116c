"""The neural language model of Bengio et al. (2003): its formula, its window, cached decoding."""

import pytest
import torch
from torch import Tensor

from regard.config import ConfigError
from regard.model.before.fixed_window.window import WindowLM, WindowLMConfig

EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
CONFIGS = {
    "plain": WindowLMConfig(vocab_size=9, window=3, width=4, hidden=5),
    "direct": WindowLMConfig(vocab_size=9, window=3, width=4, hidden=5, direct=True),
    "tied": WindowLMConfig(vocab_size=9, window=2, width=4, hidden=4, tie_weights=True),
    "one word": WindowLMConfig(vocab_size=9, window=1, width=4, hidden=5),
}
every_config = pytest.mark.parametrize("config", [pytest.param(each, id=name) for name, each in CONFIGS.items()])


def build(config: WindowLMConfig) -> WindowLM:
    torch.manual_seed(0)
    model = config.build().double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def ids(rows: int, tokens: int) -> Tensor:
    return torch.randint(0, 9, (rows, tokens), generator=torch.Generator().manual_seed(1))


def test_equals_the_formula_of_the_paper():
    model, tokens = build(CONFIGS["direct"]), ids(1, 5)
    logits = model(tokens)[0]
    embedded = torch.cat((torch.zeros(2, 4, dtype=torch.float64), model.embed_tokens.weight[tokens[0]] * 4**0.5))
    for last in range(5):
        x = embedded[last : last + 3].flatten()  # the last three words; zeros before the text
        hidden = (model.hidden.bias + model.hidden.weight @ x).tanh()
        expected = model.lm_head_bias + model.direct.weight @ x + model.lm_head.weight @ hidden
        torch.testing.assert_close(logits[last], expected, **EXACT)


@every_config
def test_jacobian_is_nonzero_in_the_window_only(config):
    model, tokens = build(config), ids(1, 7)
    embedded: list[Tensor] = []
    model.embed_tokens.register_forward_hook(lambda module, inputs, output: embedded.append(output))
    logits = model(tokens)[0]
    for last in range(7):
        gradient = torch.autograd.grad(logits[last].square().sum(), embedded[0], retain_graph=True)[0][0]
        expected = [last - config.window < position <= last for position in range(7)]
        assert gradient.abs().sum(-1).gt(0).tolist() == expected


@every_config
@pytest.mark.parametrize("chunks", [(1,) * 7, (2, 5), (4, 1, 2)])
def test_cached_decoding_equals_uncached(config, chunks):
    model, tokens = build(config), ids(3, 7)
    state = model.start(3, 7)
    logits = torch.cat([model.step(chunk, state)[0] for chunk in tokens.split(chunks, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(tokens), **EXACT)
    assert state.rows["window"].shape == (3, config.window - 1, 4)


@every_config
def test_a_row_alone_equals_the_row_in_company(config):
    model, tokens = build(config), ids(3, 6)
    together = model(tokens, lengths=torch.tensor([6, 2, 4]))
    for row, length in enumerate([6, 2, 4]):
        torch.testing.assert_close(together[row, :length], model(tokens[row : row + 1, :length])[0], **EXACT)


@every_config
def test_prompts_of_several_lengths_are_prefilled(config):
    model, tokens = build(config), ids(3, 6)
    prompts = [tokens[row, :length].tolist() for row, length in enumerate([6, 1, 3])]
    state, last = model.prefill(prompts, capacity=3)
    logits, _ = model.step(last[:, None], state)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(logits[row, 0], model(torch.tensor([prompt]))[0, -1], **EXACT)


@every_config
def test_every_parameter_has_a_gradient_and_works_on_the_meta_device(config):
    model = build(config)
    model(ids(2, 6)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert model.kv_bytes_per_token() >= (config.window - 1) * 4 * 4
    with torch.device("meta"):
        assert config.build()(torch.zeros(2, 6, dtype=torch.long)).shape == (2, 6, 9)


def test_tied_weights_need_a_hidden_layer_of_the_embeddings_width():
    with pytest.raises(ConfigError, match=r"tie_weights: embeddings of width 4 .* set hidden to 4"):
        WindowLMConfig(vocab_size=9, width=4, hidden=5, tie_weights=True)
