"""The logit lens names the tokens, ranks and norms that the residual stream has."""

from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.look.analysis.attribution import logit_lens
from regard.look.analysis.attribution.logit_lens import look_through_layers
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.schema import DecodingOverrides, LensRequest, RunRequest
from tests.look.support import TEXT, autoregressive_model
from tests.model.before.samples import SAMPLES
from tests.model.small_models import encoder_decoder, language_model, stack

MODELS: dict[str, Any] = {
    "pre-norm": lambda: encoder_decoder(),
    "post-norm": lambda: encoder_decoder(decoder=stack(norm_position="post")),
    "language model": lambda: language_model(),
}


def states_of(traced: TracedAutoregressiveModel, ids: list[int]) -> list[torch.Tensor]:
    """The residual stream before the first layer and after each, recorded by PyTorch's hooks.  # (tokens, width)"""
    found: list[torch.Tensor] = []
    layers: Any = traced.model.decoder.layers  # type: ignore[union-attr]
    hooks = [layers[0].register_forward_pre_hook(lambda _module, inputs: found.append(inputs[0][0]))]
    hooks += [layer.register_forward_hook(lambda _module, _inputs, output: found.append(output[0])) for layer in layers]
    traced.logits(RunRequest(text=TEXT), ids)
    for hook in hooks:
        hook.remove()
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_cells_are_what_the_states_say(name: str) -> None:
    traced: Any = autoregressive_model(MODELS[name]())
    trace = traced.trace(RunRequest(text=TEXT, decoding=DecodingOverrides(max_new_tokens=7)))
    lens = look_through_layers(traced, trace, LensRequest())
    target = trace.header.target
    assert lens.first == traced.prefix_length(trace.header.request)
    assert lens.written == target[lens.first :]
    assert lens.read == target[lens.first - 1 : -1]
    ids = [token.id for token in target[:-1]]
    head = traced.model.lm_head or traced.model.embed_tokens
    states = states_of(traced, ids)
    assert len(lens.layers) == len(states)
    for layer, state in enumerate(states):
        logits = head.logits(traced.model.decoder.final_norm(state[None]), traced.model.lm_head_bias)[0]
        for step, cell in enumerate(lens.layers[layer]):
            row, written = logits[lens.first - 1 + step], lens.written[step].id
            best = row.softmax(dim=-1).sort(descending=True)
            assert [each.token.id for each in cell.tokens] == best.indices[:5].tolist()
            assert [each.probability for each in cell.tokens] == pytest.approx(best.values[:5].tolist(), abs=1e-9)
            assert cell.probability == pytest.approx(float(row.softmax(dim=-1)[written]), abs=1e-9)
            assert cell.rank == 1 + best.indices.tolist().index(written)
            own = state[lens.first - 1 + step]
            assert cell.norm == pytest.approx(float(own.norm()))
            if layer:
                other = states[layer - 1][lens.first - 1 + step]
                assert cell.cosine == pytest.approx(float(own @ other / own.norm() / other.norm()))
            else:
                assert cell.cosine is None


def test_a_long_output_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = autoregressive_model()
    trace = traced.trace(RunRequest(text=TEXT))
    whole = look_through_layers(traced, trace, LensRequest())
    monkeypatch.setattr(logit_lens, "MAX_POSITIONS", 2)
    part = look_through_layers(traced, trace, LensRequest(first=3))
    assert (part.first, len(part.written), [len(layer) for layer in part.layers]) == (3, 2, [2] * len(whole.layers))
    for layer, cells in enumerate(part.layers):
        assert [cell.rank for cell in cells] == [cell.rank for cell in whole.layers[layer][2:4]]


def test_a_model_without_layers_is_refused() -> None:
    traced = autoregressive_model(SAMPLES["ngram"]["trigrams"])
    trace = traced.trace(RunRequest(text=TEXT))
    with pytest.raises(UserError, match="this model is none"):
        look_through_layers(traced, trace, LensRequest())
