"""The numbers of an explanation equal what changed copies of the model compute, and the parts add up to the margin."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.look.analysis.attention_maps import find_attention
from regard.look.analysis.attribution.contrast import explain_choice, find_choice
from regard.look.analysis.attribution.logit_lens import logit_lens
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.schema import AblatedHead, Contrast, ContrastRequest, RunRequest
from regard.look.trace import Trace
from tests.look.support import TEXT, autoregressive_model, parser
from tests.model.before.samples import SAMPLES
from tests.model.small_models import encoder_decoder, language_model, stack

MODELS: dict[str, Any] = {
    "pre-norm": lambda: encoder_decoder(),
    "post-norm": lambda: encoder_decoder(encoder=stack(norm_position="post"), decoder=stack(norm_position="post")),
    "RMSNorm, with an output bias": lambda: encoder_decoder(decoder=stack(norm="rms"), output_bias=True),
    "language model": lambda: language_model(),
}


def explained(traced: TracedAutoregressiveModel, **request: Any) -> tuple[Trace, Contrast]:
    """A trace, and the whole explanation of its third generated token; the contrast is the token with id 40."""
    trace = traced.trace(RunRequest(text=TEXT))
    position = traced.prefix_length(trace.header.request) + 2
    *_, (total, found) = explain_choice(
        traced, trace, ContrastRequest(**{"position": position, "contrast": 40} | request)
    )
    assert total == len(found.heads) + len(found.feed_forwards) + len(found.words)
    return trace, found


def margin(traced: TracedAutoregressiveModel, trace: Trace, found: Contrast) -> float:
    """log p(token) − log p(contrast), from the model as it is now."""
    read = [token.id for token in trace.header.target[: found.position + 1]]
    logprobs = traced.logits(trace.header.request, read)[-1].log_softmax(dim=-1)
    return float(logprobs[found.token.id] - logprobs[found.contrast.id])


@pytest.mark.parametrize("name", MODELS)
def test_direct_parts_add_up_to_the_margin(name: str) -> None:
    trace, found = explained(traced := autoregressive_model(MODELS[name]()))
    assert found.margin == pytest.approx(margin(traced, trace, found), abs=1e-10)
    assert sum(part.value for part in found.parts) == pytest.approx(found.margin, abs=1e-9)
    assert len({(part.kind, part.layer, part.head) for part in found.parts}) == len(found.parts)


@pytest.mark.parametrize("name", MODELS)
def test_heads_and_feed_forwards_are_switched_off_one_by_one(name: str) -> None:
    """As if the weights that lead out of them were zero."""
    trace, found = explained(traced := autoregressive_model(MODELS[name]()))
    heads = {(effect.attention_type, effect.layer, effect.head): effect.change for effect in found.heads}
    assert len(heads) == sum(spec.layers * spec.heads for spec in trace.header.model.attention)
    for (attention_type, layer, head), change in heads.items():

        def silence(attention: Attention, head: int = head) -> None:
            assert isinstance(attention.o_proj, nn.Linear)
            width = attention.sizes.value_head_dim
            attention.o_proj.weight[:, head * width : (head + 1) * width] = 0

        changed = edited(traced, lambda model: silence(find_attention(model, attention_type, layer)))  # noqa: B023
        assert margin(changed, trace, found) - found.margin == pytest.approx(change, abs=1e-9)
    for effect in found.feed_forwards:
        path = f"{effect.stack}.layers.{effect.layer}.feed_forward.down_proj"

        def empty(model: nn.Module, path: str = path) -> None:
            for parameter in model.get_submodule(path).parameters():
                parameter.zero_()

        assert margin(edited(traced, empty), trace, found) - found.margin == pytest.approx(effect.change, abs=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_occluded_words_have_no_embedding(name: str) -> None:
    """As if the rows of their tokens were zero, where a token occurs on one side and in one word only."""
    trace, found = explained(traced := autoregressive_model(MODELS[name]()))
    sides = {"source": trace.header.source, "target": trace.header.target[: found.position + 1]}
    if name == "language model":
        sides["source"] = []
    ids = [token.id for tokens in sides.values() for token in tokens]
    compared = 0
    for effect in found.words:
        occluded = [sides[effect.side][position].id for position in effect.positions]
        if any(ids.count(token) > 1 for token in occluded) or {found.token.id, found.contrast.id} & set(occluded):
            continue  # the output projection may be the same table

        def forget(model: Any, occluded: list[int] = occluded) -> None:
            embedding = model.embed_tokens
            if model.lm_head is None:
                model.lm_head = copy.deepcopy(embedding)
            embedding.weight[occluded] = 0

        assert margin(edited(traced, forget), trace, found) - found.margin == pytest.approx(effect.change, abs=1e-9)
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("name", MODELS)
def test_the_logit_lens_ends_in_the_logits_of_the_model(name: str) -> None:
    traced = autoregressive_model(MODELS[name]())
    trace = traced.trace(RunRequest(text=TEXT))
    target = [token.id for token in trace.header.target]
    views = list(logit_lens(traced.model, lambda: traced.logits(trace.header.request, target)))
    assert len(views) == len(traced.model.decoder.layers) + 1  # type: ignore[union-attr,arg-type]
    torch.testing.assert_close(views[-1].logits, traced.logits(trace.header.request, target), rtol=0, atol=1e-12)
    norm: Any = traced.model.decoder.final_norm  # type: ignore[union-attr]
    head: Any = traced.model.lm_head or traced.model.embed_tokens
    first: Tensor = head.logits(norm(views[0].states.clone()), traced.model.lm_head_bias)  # type: ignore[arg-type]
    torch.testing.assert_close(views[0].logits, first, rtol=0, atol=1e-12)


def test_a_word_is_compared_where_it_differs_first() -> None:
    traced = autoregressive_model()
    trace = traced.trace(RunRequest(text=TEXT))
    target = [token.id for token in trace.header.target]
    *_, (_, found) = explain_choice(traced, trace, ContrastRequest(position=1, contrast="a mouse"))
    assert found.token.id == target[found.position + 1] != found.contrast.id
    for wrong, message in (
        ({"position": 0, "contrast": 40}, "1 to"),
        ({"position": 1, "contrast": target[1]}, "choose another"),
        ({"position": 1, "contrast": " "}, "give a word"),
        ({"position": 1, "contrast": 10**6}, "no token"),
    ):
        with pytest.raises(UserError, match=message):
            next(explain_choice(traced, trace, ContrastRequest.model_validate(wrong)))


def edited(traced: TracedAutoregressiveModel, edit: Any) -> TracedAutoregressiveModel:
    """The traced model with an edited copy of its weights."""
    changed = copy.copy(traced)
    changed.model = copy.deepcopy(traced.model)
    with torch.no_grad():
        edit(changed.model)
    return changed


@pytest.mark.parametrize("kind", ["recurrent-attention", "convolutional", "recurrent-lm", "ngram"])
def test_a_model_before_the_transformer_has_a_margin_only(kind: str) -> None:
    """It has no heads to switch off, and its hidden state is no sum."""
    trace, found = explained(traced := autoregressive_model(next(iter(SAMPLES[kind].values()))))
    assert found.margin == pytest.approx(margin(traced, trace, found), abs=1e-9)
    assert (found.parts, found.heads, found.feed_forwards, found.words) == ([], [], [], [])


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_heads_that_were_ablated_in_the_trace_stay_ablated(ablation: Any) -> None:
    traced = autoregressive_model()
    heads = [AblatedHead(attention_type="cross", layer=0, head=1, ablation=ablation)]
    trace = traced.trace(RunRequest(text=TEXT, ablated_heads=heads))
    *_, (_, found) = explain_choice(traced, trace, ContrastRequest(position=3, contrast=40))
    assert found.probability == pytest.approx(trace.header.generated[2].probability, abs=1e-9)
    assert sum(part.value for part in found.parts) == pytest.approx(found.margin, abs=1e-9)
    if ablation == "zero":
        (already,) = [each for each in found.heads if (each.attention_type, each.layer, each.head) == ("cross", 0, 1)]
        assert already.change == pytest.approx(0, abs=1e-12)


def test_symbols_of_a_tree_are_compared() -> None:
    traced: Any = parser()
    trace = traced.trace(RunRequest(text="the cat slept"))
    symbols = traced.target_detokenizer.symbols
    (other,) = {"(NP", "(S"} - {trace.header.target[1].text, "(VP", "(S"}
    found = find_choice(traced, trace, ContrastRequest(position=1, contrast=other))
    assert found.contrast == tuple(symbols.encode([other]))
    with pytest.raises(UserError, match="'cat' is no symbol"):
        find_choice(traced, trace, ContrastRequest(position=1, contrast="cat"))
