"""Hidden states of every layer: those of a plain forward pass, whatever the batch, for every model that has them."""

import pytest
import torch
from torch import nn

from regard.errors import UserError
from regard.model import Seq2SeqLM, read_any_config
from regard.model.before.recurrent.encoder_decoder import RecurrentEncoderDecoder
from tests.model.before.samples import SAMPLES as BEFORE
from tests.model.before.samples import build as build_before
from tests.model.before.samples import sample
from tests.model.small_models import ENCODER_SAMPLES, EXACT, SAMPLES, build, ids

WITHOUT = ("context", "dnn1", "dnn2", "ngram", "window-lm")
"""Kinds that have one vector for the whole text, or none."""
TRANSFORMERS = {
    f"{kind}: {name}": config
    for samples in (SAMPLES, {kind: ENCODER_SAMPLES[kind] for kind in ENCODER_SAMPLES if kind != "vision"})
    for kind, some in samples.items()
    for name, config in some.items()
}
EARLIER = {f"{kind}: {name}": config for kind, some in BEFORE.items() for name, config in some.items()}
HAVE = {name: config for name, config in (TRANSFORMERS | EARLIER).items() if config.kind not in WITHOUT}


def make(config):
    return (build_before if config in EARLIER.values() else build)(config)


def rows(config, count=3, tokens=6):
    size = getattr(config, "source_vocab_size", None) or config.vocab_size
    return ids(count, tokens, size, seed=5)


@pytest.mark.parametrize("config", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_layers_are_those_of_a_forward_pass_with_hooks(config):
    model = make(config)
    stack = model.decoder if config.kind == "language-model" else model.encoder
    captured = []
    stack.layers[0].register_forward_pre_hook(lambda module, args: captured.append(args[0]))
    for layer in [*stack.layers[:-1], stack.final_norm]:
        layer.register_forward_hook(lambda module, args, output: captured.append(output))
    tokens = rows(config)
    lengths = {"source_lengths" if isinstance(model, Seq2SeqLM) else "lengths": torch.tensor([6, 2, 3])}
    model(*([tokens, tokens[:, :2] % config.vocab_size] if isinstance(model, Seq2SeqLM) else [tokens]), **lengths)
    expected_states = list(captured)
    found = model.hidden_states(tokens, torch.tensor([6, 2, 3]))
    assert len(found) == len(expected_states) == len(stack.layers) + 1
    for state, expected in zip(found, expected_states, strict=True):
        torch.testing.assert_close(state, expected, **EXACT)


@pytest.mark.parametrize("config", HAVE.values(), ids=HAVE)
def test_row_alone_equals_row_in_company(config):
    """Padding changes nothing in any layer."""
    model, tokens = make(config), rows(config)
    lengths = torch.tensor([6, 2, 3])
    together = model.hidden_states(tokens, lengths)
    assert together[0].shape[:2] == (3, 6)
    for row, length in enumerate(lengths.tolist()):
        alone = model.hidden_states(tokens[row : row + 1, :length])
        assert len(alone) == len(together) > 1
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(other[row, :length], one[0], **EXACT)


@pytest.mark.parametrize("reverse", [False, True])
def test_layers_of_a_recurrent_encoder_are_in_the_order_of_the_source(reverse):
    model = build_before(sample("recurrent", width=8, hidden=12, layers=2, reverse_source=reverse))
    assert isinstance(model, RecurrentEncoderDecoder)
    captured = []
    for layer in model.encoder.layers:
        assert isinstance(layer, nn.Module)
        layer.register_forward_hook(lambda module, args, output: captured.append(output[0]))
    tokens = rows(model.config, count=1)
    model(tokens, tokens)
    expected_states = list(captured)
    found = model.hidden_states(tokens)
    torch.testing.assert_close(found[0], model.embed_tokens(tokens) * 8**0.5, **EXACT)
    for state, expected in zip(found[1:], expected_states, strict=True):
        torch.testing.assert_close(state, expected.flip(1) if reverse else expected, **EXACT)


def test_a_model_without_vectors_in_context_is_refused():
    for kind in WITHOUT:
        (config, *_) = BEFORE[kind].values()
        model = read_any_config(config.plain()).build()
        with pytest.raises(UserError, match=f"{kind}' has no vectors of tokens"):
            model.hidden_states(torch.tensor([[3, 4]]))
