"""What every recurrent encoder–decoder must do: step by step as at once, in beams as alone, padded as not."""

import pytest
import torch
from torch.func import functional_call

from regard.model import read_config
from tests.model.small_models import EXACT, VOCAB_SIZE, build, ids

BASE = {
    "vocab_size": VOCAB_SIZE,
    "width": 6,
    "hidden": 8,
    "special_tokens": {"pad": 0, "bos": 1, "eos": 2},
}
ATTENTION = BASE | {"kind": "recurrent-attention"}
LUONG = {"kind": "luong"}
SAMPLES = {
    "summary": BASE | {"kind": "recurrent"},
    "summary, deep lstm in both directions": BASE
    | {"kind": "recurrent", "cell": "lstm", "layers": 2, "bidirectional": True, "source_vocab_size": 9},
    "first state, lstm, reversed": BASE
    | {"kind": "recurrent", "cell": "lstm", "layers": 2, "summary_input": "first_state", "reverse_source": True},
    "first state, untied": BASE
    | {"kind": "recurrent", "width": 8, "summary_input": "first_state", "tie_weights": False, "bidirectional": True},
    "additive": ATTENTION,
    "additive, deep lstm": ATTENTION | {"cell": "lstm", "layers": 2, "encoder_hidden": 12, "source_vocab_size": 9},
    "additive, maxout, untied": ATTENTION
    | {"decoder": {"readout": "maxout", "kind": "bahdanau"}, "tie_weights": False},
    "luong, dot, lstm": ATTENTION | {"decoder": LUONG, "attention": {"kind": "dot"}, "cell": "lstm", "layers": 2},
    "luong, general": ATTENTION | {"decoder": LUONG, "attention": {"kind": "general"}, "width": 8},
    "luong without feeding": ATTENTION
    | {"decoder": LUONG | {"input_feeding": False}, "attention": {"kind": "concat", "hidden": 5}, "layers": 3},
}
EXPERTS = {"layers": 2, "experts": {"experts": 4, "top_k": 2, "hidden": 12}}
SAMPLES |= {
    "additive with experts": ATTENTION | EXPERTS,
    "luong with experts": ATTENTION | EXPERTS | {"decoder": LUONG | {"input_feeding": False}, "cell": "lstm"},
}
GNMT = {name: value for name, value in BASE.items() if name != "hidden"} | {"kind": "gnmt"}
SAMPLES |= {
    "gnmt": GNMT | {"source_vocab_size": 9},
    "gnmt of two gru layers": GNMT | {"cell": "gru", "layers": 2, "attention": {"kind": "dot"}, "tie_weights": False},
    "deep-att": BASE | {"kind": "deep-att"},
    "deep-att, shallow": BASE | {"kind": "deep-att", "encoder_layers": 1, "decoder_layers": 1, "tie_weights": False},
}
every_sample = pytest.mark.parametrize("config", [read_config(each) for each in SAMPLES.values()], ids=list(SAMPLES))
LENGTHS = torch.tensor([5, 2, 4])


def pairs(config, rows=3, source=5, target=6):
    return ids(rows, source, config.source_vocab_size or config.vocab_size, seed=1), ids(rows, target, seed=2)


@every_sample
def test_every_parameter_receives_a_gradient(config):
    model = build(config).train()  # the noise of experts has a gradient in training only
    logits = model(*pairs(config))
    assert logits.shape == (3, 6, VOCAB_SIZE)
    (logits * torch.randn_like(logits)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9, name


@every_sample
def test_steps_equal_the_whole_target(config):
    model = build(config)
    source, target = pairs(config)
    whole = model(source, target, source_lengths=LENGTHS)
    state = model.start(source, 6, LENGTHS)
    first, state = model.step(target[:, :2], state)
    rest = [model.step(target[:, number : number + 1], state)[0] for number in range(2, 6)]
    torch.testing.assert_close(torch.cat((first, *rest), dim=1), whole, **EXACT)


@every_sample
def test_a_row_alone_equals_the_row_in_company(config):
    model = build(config)
    source, target = pairs(config)
    together = model(source, target, source_lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, **EXACT)


@every_sample
def test_the_future_of_the_target_changes_nothing(config):
    model = build(config)
    source, target = pairs(config)
    changed = torch.cat((target[:, :3], (target[:, 3:] + 1) % VOCAB_SIZE), dim=1)
    torch.testing.assert_close(model(source, changed)[:, :3], model(source, target)[:, :3], **EXACT)


@every_sample
def test_hypotheses_of_a_beam_equal_separate_rows(config):
    model = build(config)
    source, target = pairs(config, rows=2)
    lengths = torch.tensor([5, 3])
    state = model.start(source, 8, lengths)
    model.step(target[:, :1], state)
    state.reorder_beams(torch.tensor([0, 0, 0, 1, 1, 1]))  # three hypotheses for each source
    next_tokens = ids(6, 1, seed=3)
    model.step(next_tokens, state)
    state.reorder_beams(torch.tensor([2, 2, 0, 4, 3, 3]))
    last_tokens = ids(6, 1, seed=4)
    logits, _ = model.step(last_tokens, state)
    for row, origin in enumerate([2, 2, 0, 4, 3, 3]):
        of = origin // 3
        hypothesis = torch.cat(
            (target[of : of + 1, :1], next_tokens[origin : origin + 1], last_tokens[row : row + 1]), 1
        )
        alone = model(source[of : of + 1, : lengths[of]], hypothesis)
        torch.testing.assert_close(logits[row, 0], alone[0, -1], **EXACT)


@every_sample
def test_rows_may_add_different_numbers_of_tokens(config):
    model = build(config)
    source, target = pairs(config)
    state = model.start(source, 8, LENGTHS)
    model.step(target, state, torch.tensor([3, 6, 1]))
    logits, _ = model.step(ids(3, 1, seed=5), state)
    for row, count in enumerate([3, 6, 1]):
        text = torch.cat((target[row : row + 1, :count], ids(3, 1, seed=5)[row : row + 1]), dim=1)
        alone = model(source[row : row + 1, : LENGTHS[row]], text)
        torch.testing.assert_close(logits[row, 0], alone[0, -1], **EXACT)


@every_sample
def test_models_work_on_the_meta_device_and_with_other_parameters(config):
    with torch.device("meta"):
        model = config.build()
        source, target = (torch.zeros(2, 4, dtype=torch.long) for _ in range(2))
        state = model.encode(source, torch.full((2,), 3))
        assert model.decode(target, state).shape == (2, 4, VOCAB_SIZE)
    assert model.kv_bytes_per_token() > 0
    model, other = build(config), build(config, seed=1)
    found = functional_call(model, dict(other.named_parameters()), pairs(config))
    torch.testing.assert_close(found, other(*pairs(config)), **EXACT)


@every_sample
def test_models_run_in_bfloat16(config):
    model = build(config, torch.bfloat16).train()
    source, target = pairs(config)
    logits = model(source, target, source_lengths=LENGTHS)
    assert logits.dtype == torch.bfloat16
    logits.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
