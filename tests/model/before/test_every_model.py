"""Properties of every model before the Transformer: what tasks, search and the trainer rely on.

A new model is added to the samples and has all of these tests.
"""

import copy
import json

import pytest
import torch

import regard
from regard.decode import DecodeConfig, Request
from regard.decode.batch import score_all, search_batch
from regard.model import AUTOREGRESSIVE_MODELS, TRANSFORMERS, CausalLM, count_parameters, read_any_config
from regard.run import save_model
from tests.model.before.samples import SAMPLES, build, inputs
from tests.model.small_models import EXACT, ids

EVERY = [pytest.param(config, id=f"{kind}: {name}") for kind, some in SAMPLES.items() for name, config in some.items()]
every_model = pytest.mark.parametrize("config", EVERY)
EOS = 2


def test_every_registered_kind_has_samples():
    assert set(SAMPLES) == set(AUTOREGRESSIVE_MODELS) - set(TRANSFORMERS)
    assert all(config.kind == kind for kind, some in SAMPLES.items() for config in some.values())


@every_model
def test_logits_are_finite_and_have_the_expected_shape(config):
    args = inputs(config)
    logits = build(config, torch.float32)(*args)
    assert logits.shape == (*args[-1].shape, config.vocab_size)
    assert logits.isfinite().all()


@every_model
def test_every_parameter_receives_a_gradient(config):
    model = build(config)
    if not list(model.parameters()):
        pytest.skip("it is estimated by counting")
    *source, target = inputs(config)
    following = {"following": target} if getattr(model, "is_bidirectional", False) else {}
    logits = model(*source, target, **following)
    (logits * torch.randn_like(logits)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-9, name


@every_model
def test_rows_of_padding_only_have_finite_gradients(config):
    """The trainer fills batches up with such rows."""
    model = build(config)
    *source, target = inputs(config)
    if not source:
        pytest.skip("it has no source")
    logits = model(*source, target, source_lengths=torch.tensor([source[0].shape[1], 0]))
    logits[0].square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@every_model
def test_saved_and_loaded_model_has_the_same_logits(config, tmp_path):
    model = build(config, torch.float32)
    args = inputs(config)
    save_model(model, tmp_path / "run")
    loaded = regard.load(tmp_path / "run")
    assert loaded.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
    with torch.no_grad():
        torch.testing.assert_close(loaded.logits(*args), model(*args), rtol=0, atol=1e-5)


@every_model
def test_evaluation_is_deterministic_and_training_has_dropout(config):
    model = build(config)
    args = inputs(config)
    assert torch.equal(model(*args), model(*args))
    if list(model.parameters()):
        model.train()
        assert not torch.equal(model(*args), model(*args))


@every_model
def test_steps_with_a_state_equal_the_forward_pass(config):
    """Cached equals uncached, whatever the size of the steps."""
    model = build(config)
    *source, target = inputs(config)
    expected = model(*source, target)
    for sizes in ([1] * target.shape[1], [3, 1, target.shape[1] - 4]):
        state = start(model, source, len(target))
        found = [model.step(part, state)[0] for part in target.split(sizes, dim=1)]
        torch.testing.assert_close(torch.cat(found, dim=1), expected, **EXACT)


@every_model
def test_row_alone_equals_row_in_company(config):
    """Padding of a batch changes nothing."""
    model = build(config)
    *source, target = inputs(config, rows=3)
    lengths = torch.tensor([source[0].shape[1], 2, 3]) if source else None
    together = model(*source, target, **({} if lengths is None else {"source_lengths": lengths}))
    for row in range(3):
        own = [each[row : row + 1, : int(lengths[row])] for each in source]
        torch.testing.assert_close(model(*own, target[row : row + 1])[0], together[row], **EXACT)


@every_model
def test_rows_with_fewer_new_tokens_stop_there(config):
    model = build(config)
    *source, target = inputs(config, rows=2, tokens=4)
    state = start(model, source, 2)
    model.step(target, state, torch.tensor([4, 2]))
    after = model.step(torch.tensor([[3], [3]]), state)[0]
    for row, count in enumerate((4, 2)):
        tokens = torch.cat((target[row : row + 1, :count], torch.tensor([[3]])), dim=1)
        expected = model(*[each[row : row + 1] for each in source], tokens)[:, -1]
        torch.testing.assert_close(after[row], expected, **EXACT)


@every_model
def test_logits_do_not_depend_on_later_tokens(config):
    model = build(config)
    *source, target = inputs(config)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % config.vocab_size
    before, after = model(*source, target), model(*source, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], **EXACT)


@every_model
def test_reordered_rows_continue_their_own_beginnings(config):
    """A beam search moves hypotheses: each has the state of the one it continues, and the source of its group."""
    model = build(config)
    *source, target = inputs(config, rows=2, tokens=3)
    state = start(model, source, 2)
    model.step(target[:, :1], state)
    state.reorder_beams(torch.tensor([0, 0, 0, 1, 1, 1]))
    second, third = ids(6, 1, seed=3), ids(6, 1, seed=4)
    model.step(second, state)
    origins = [2, 2, 0, 4, 3, 3]
    state.reorder_beams(torch.tensor(origins))
    logits, _ = model.step(third, state)
    for row, origin in enumerate(origins):
        group = slice(origin // 3, origin // 3 + 1)
        hypothesis = torch.cat((target[group, :1], second[origin : origin + 1], third[row : row + 1]), dim=1)
        expected = model(*[each[group] for each in source], hypothesis)[0, -1]
        torch.testing.assert_close(logits[row, 0], expected, **EXACT)


@every_model
def test_groups_of_rows_move_with_their_sources(config):
    """A search drops finished sources: the groups that remain keep their own source, and its length."""
    model = build(config)
    *source, target = inputs(config, rows=3, tokens=3)
    lengths = torch.tensor([source[0].shape[1], 2, 3]) if source else None
    state = model.start(*source, 10, lengths) if source else start(model, source, 3)
    model.step(target[:, :1], state)
    state.reorder_beams(torch.tensor([0, 0, 1, 1, 2, 2]))  # two hypotheses each
    second, third = ids(6, 1, seed=3), ids(4, 1, seed=4)
    model.step(second, state)
    origins, groups = [5, 4, 2, 2], torch.tensor([2, 1])
    state.reorder_beams(torch.tensor(origins), groups)
    logits, _ = model.step(third, state)
    for row, origin in enumerate(origins):
        group = origin // 2
        own = [each[group : group + 1, : int(lengths[group])] for each in source]
        hypothesis = torch.cat(
            (target[group : group + 1, :1], second[origin : origin + 1], third[row : row + 1]), dim=1
        )
        torch.testing.assert_close(logits[row, 0], model(*own, hypothesis)[0, -1], **EXACT)


@every_model
def test_beam_search_scores_equal_forced_scores(config):
    """Every hypothesis has the log-probability that the model gives to its tokens: beams are reordered correctly."""
    model = build(config)
    sources = [(3, 4, 5), (6,), (7, 8)]
    requests = [Request(source, 6, DecodeConfig(beam_size=3, nbest=3)) for source in sources]
    found = search_batch(model, requests, EOS)
    for source, hypotheses in zip(sources, found, strict=True):
        for each in hypotheses:
            (forced,) = score_all(model, [source], [each.tokens], EOS if each.ended else None, batch_tokens=100)
            torch.testing.assert_close(sum(forced), each.logprob, **EXACT)


@every_model
def test_building_on_the_meta_device_allocates_nothing(config):
    with torch.device("meta"):
        model = config.build()
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert count_parameters(model) == count_parameters(config.build())


@every_model
def test_deepcopy_computes_the_same(config):
    model = build(config)
    args = inputs(config)
    assert torch.equal(copy.deepcopy(model)(*args), model(*args))


@every_model
def test_config_round_trips_through_json(config):
    assert read_any_config(json.loads(json.dumps(config.plain()))) == config


def start(model, source, rows):
    """The state before the first target token."""
    return model.start(rows, 10) if isinstance(model, CausalLM) else model.start(*source, 10)
