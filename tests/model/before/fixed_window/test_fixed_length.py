"""DNN1, DNN2 and the context models: causality, padding, cached decoding, beams, the end of the input."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard import UserError
from regard.config import Config
from regard.model.before import SEQ2SEQ_MODELS
from regard.model.before.fixed_window.fixed_length import FixedLengthModel

EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
VOCAB_SIZE, SOURCE_VOCAB_SIZE, LIMIT, EOS = 11, 7, 6, 2
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_length": LIMIT,
    "hidden": 10,
    "special_tokens": {"pad": 0, "bos": 1, "eos": EOS},
}
CONFIGS: dict[str, Config] = {
    "dnn1": SEQ2SEQ_MODELS["dnn1"](**SMALL, source_vocab_size=SOURCE_VOCAB_SIZE),
    "dnn1, one vocabulary, one layer": SEQ2SEQ_MODELS["dnn1"](**SMALL, layers=1),
    "dnn2": SEQ2SEQ_MODELS["dnn2"](**SMALL, width=8),
    "dnn2, two vocabularies, not tied": SEQ2SEQ_MODELS["dnn2"](
        **SMALL, width=8, layers=3, source_vocab_size=SOURCE_VOCAB_SIZE, tie_weights=False
    ),
    **{
        f"context, {mixing}": SEQ2SEQ_MODELS["context"](**SMALL, width=8, mixing=mixing)
        for mixing in ("mean", "learned", "cosine", "query_key")
    },
    "context, two vocabularies, not tied": SEQ2SEQ_MODELS["context"](
        **SMALL, width=8, source_vocab_size=SOURCE_VOCAB_SIZE, tie_weights=False
    ),
}
every_config = pytest.mark.parametrize("config", [pytest.param(each, id=name) for name, each in CONFIGS.items()])


def build(config: Any) -> FixedLengthModel:
    torch.manual_seed(0)
    model = config.build().double().eval()
    for parameter in model.parameters():  # no bias is zero
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def ids(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, SOURCE_VOCAB_SIZE, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@every_config
def test_logits_depend_on_all_source_words_and_on_the_target_so_far(config):
    model, source, target = build(config), ids(1, 4), ids(1, 5, seed=1)
    logits = model(source, target)[0]
    for position in range(4):
        other = source.clone()
        other[0, position] = (source[0, position] + 1) % SOURCE_VOCAB_SIZE
        assert (model(other, target)[0] != logits).any(-1).all()
    for position in range(5):
        other = target.clone()
        other[0, position] = (target[0, position] + 1) % SOURCE_VOCAB_SIZE
        changed = (model(source, other)[0] != logits).any(-1)
        assert changed.tolist() == [number >= position for number in range(5)]


@every_config
def test_gradients_flow_to_the_words_so_far_only(config):
    """The Jacobian with respect to what each target position adds is lower triangular."""
    model = build(config)
    if config.kind == "dnn1":
        weight = model.target.weight
        loss = model(ids(1, 4), ids(1, 5, seed=1))[0, 2].sum()
        gradient = torch.autograd.grad(loss, weight)[0]  # (positions, vocabulary, hidden)
    else:
        embedded: list[Tensor] = []

        def keep(module, inputs, output):
            if inputs[0].shape[1] == 5:
                embedded.append(output)

        model.embed_tokens.register_forward_hook(keep)
        loss = model(ids(1, 4), ids(1, 5, seed=1))[0, 2].square().sum()
        gradient = torch.autograd.grad(loss, embedded[0])[0][0]  # (tokens, width)
    assert gradient.flatten(1).abs().sum(1).gt(0)[:5].tolist() == [True, True, True, False, False]


@every_config
@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1, 1), (3, 1, 2), (2, 4)])
def test_cached_decoding_equals_uncached(config, chunks):
    model, source, target = build(config), ids(3, 4), ids(3, LIMIT, seed=1)
    lengths = torch.tensor([4, 2, 1])
    expected = model(source, target, source_lengths=lengths)
    state = model.start(source, LIMIT, lengths)
    logits = torch.cat([model.step(chunk, state)[0] for chunk in target.split(chunks, dim=1)], dim=1)
    torch.testing.assert_close(logits, expected, **EXACT)


@every_config
def test_rows_at_different_positions_decode_as_alone(config):
    model, source, target = build(config), ids(3, 4), ids(3, LIMIT, seed=1)
    counts = torch.tensor([1, 4, 2])
    state = model.start(source, LIMIT)
    model.step(target[:, :4], state, counts)
    following = target.gather(1, counts[:, None])
    logits, _ = model.step(following, state)
    for row, count in enumerate(counts.tolist()):
        alone = model(source[row : row + 1], target[row : row + 1, : count + 1])
        torch.testing.assert_close(logits[row, 0], alone[0, -1], **EXACT)


@every_config
def test_a_row_alone_equals_the_row_in_company(config):
    model, source, target = build(config), ids(3, 5), ids(3, 5, seed=1)
    source_lengths, target_lengths = torch.tensor([5, 3, 1]), torch.tensor([2, 5, 4])
    together = model(source, target, source_lengths=source_lengths, target_lengths=target_lengths)
    for row, (read, written) in enumerate(zip(source_lengths.tolist(), target_lengths.tolist(), strict=True)):
        alone = model(source[row : row + 1, :read], target[row : row + 1, :written])
        torch.testing.assert_close(together[row, :written], alone[0], **EXACT)


@every_config
def test_padding_never_matters(config):
    model, source, target = build(config), ids(2, 3), ids(2, 3, seed=1)
    expected = model(source, target, source_lengths=torch.tensor([3, 2]))
    for filler in (0, 5):
        longer = [functional.pad(each, (0, 2), value=filler) for each in (source, target)]
        longer[0][1, 2] = filler
        logits = model(*longer, source_lengths=torch.tensor([3, 2]))
        torch.testing.assert_close(logits[:, :3], expected, **EXACT)
    state = model.start(functional.pad(source, (0, 9)), 3, torch.tensor([3, 2]))  # padded past the last position
    torch.testing.assert_close(model.step(target, state)[0], expected, **EXACT)


@every_config
def test_beams_share_a_source_and_can_be_reordered(config):
    model, source, target = build(config), ids(2, 4), ids(6, 4, seed=1)
    lengths = torch.tensor([2, 4])
    state = model.start(source, LIMIT, lengths)
    state.reorder_beams(torch.tensor([0, 0, 0, 1, 1, 1]))
    model.step(target[:, :2], state)
    origin = torch.tensor([2, 0, 0, 3, 5, 4])
    state.reorder_beams(origin)
    logits, _ = model.step(target[:, 2:], state)
    history = torch.cat((target[origin, :2], target[:, 2:]), dim=1)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    expected = model(source[groups], history, source_lengths=lengths[groups])
    torch.testing.assert_close(logits, expected[:, 2:], **EXACT)


@every_config
def test_new_sources_can_replace_finished_ones(config):
    model, source, target = build(config), ids(2, 4), ids(2, 4, seed=1)
    state = model.start(source, LIMIT, torch.tensor([4, 4]))
    model.step(target, state)
    new = model.start(source[:1, :3], LIMIT, torch.tensor([3]))
    state.scatter_rows(torch.tensor([1]), new)
    logits, _ = model.step(target[:, :1], state)
    torch.testing.assert_close(logits[1], model(source[:1, :3], target[1:, :1])[0], **EXACT)


@every_config
def test_a_target_ends_where_the_input_is_full(config):
    model, source = build(config), ids(2, 4)
    state = model.start(source, 100)
    tokens = ids(2, LIMIT + 4, seed=1)
    expected = model(source, tokens[:, :LIMIT])
    logits = torch.cat([model.step(chunk, state)[0] for chunk in tokens.split(4, dim=1)], dim=1)
    torch.testing.assert_close(logits[:, :LIMIT], expected, **EXACT)
    assert logits.isfinite().all()
    assert (logits[:, LIMIT:].argmax(-1) == EOS).all()


@every_config
def test_sentences_without_a_place_are_refused(config):
    model = build(config)
    with pytest.raises(UserError, match="positions for 6 tokens, but 7"):
        model(ids(1, 7), ids(1, 2))
    with pytest.raises(UserError, match="positions for 6 tokens, but 7"):
        model(ids(1, 2), ids(1, 7))
    with pytest.raises(UserError, match="positions for 6 tokens, but 7"):
        model.start(ids(1, 7), 2)
    with pytest.raises(UserError, match="vocabulary"):
        model(ids(1, 2), ids(1, 2) + VOCAB_SIZE)


@every_config
def test_works_without_data_on_the_meta_device(config):
    with torch.device("meta"):
        model = config.build()
        state = model.encode(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long))
        assert model.decode(torch.zeros(2, 4, dtype=torch.long), state).shape == (2, 4, VOCAB_SIZE)
    assert model.kv_bytes_per_token() > 0


@every_config
def test_every_parameter_has_a_gradient_and_can_be_swapped(config):
    model = build(config)
    source, target = ids(8, LIMIT), ids(8, LIMIT, seed=1)
    doubled = {name: 2 * parameter.detach() for name, parameter in model.named_parameters()}
    expected = torch.func.functional_call(model, doubled, (source, target))
    model(source, target).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    model.load_state_dict(doubled)
    torch.testing.assert_close(model(source, target), expected, **EXACT)


@every_config
def test_works_in_bfloat16(config):
    model = build(config).bfloat16()
    logits = model(ids(2, 4), ids(2, 4, seed=1))
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
