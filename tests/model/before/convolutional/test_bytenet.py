"""ByteNet: blocks, columns, and receptive fields."""

import math

import pytest
import torch
from torch import nn

from regard.config import ConfigError
from regard.model.before.convolutional.bytenet import ByteNetConfig
from tests.model.before.convolutional.test_convolutional import fit, seen
from tests.model.before.samples import build, sample
from tests.model.small_models import EXACT, ids


def bytenet(**settings) -> ByteNetConfig:
    return sample("bytenet", **{"width": 8, "dilations": (1, 2), "encoder_sets": 1, "decoder_sets": 1, **settings})


def test_block_equals_the_modules_of_the_paper():
    """Kalchbrenner et al. 2016, figure 3, left; the convolution is masked by padding on the left only."""
    model = build(bytenet(dilations=(4,)))
    block = model.decoder[0]
    convolution = nn.Conv1d(4, 4, 3, dilation=4).double()
    convolution.load_state_dict(block.convolution.state_dict())
    parts = (block.norm, nn.ReLU(), block.down_proj, block.convolution_norm, nn.ReLU())
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    inner = nn.Sequential(*parts)(x)
    inner = convolution(nn.functional.pad(inner.mT, (8, 0))).mT
    expected = x + block.up_proj(block.up_norm(inner).relu())
    found, _ = block.causal(x, block.convolution.empty_cache(2))
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize(("dilations", "sets", "kernel"), [((1, 2, 4), 1, 3), ((1, 2), 2, 3), ((1,), 3, 2)])
def test_receptive_fields(dilations, sets, kernel):
    config = bytenet(dilations=dilations, encoder_sets=sets, decoder_sets=sets, kernel=kernel, length_ratio=1.0)
    model = build(config)
    embedded = []
    model.embed_tokens.register_forward_hook(lambda module, args, output: embedded.append(output))
    state = model.encode(ids(1, 40))
    logits = model.decode(ids(1, 40, seed=1), state)
    field = 1 + sets * (kernel - 1) * sum(dilations)
    assert config.decoder_receptive_field == config.encoder_receptive_field == field
    assert seen(logits[0, 30], embedded[1]) == list(range(31 - field, 31))
    left = sets * sum((kernel - 1) * dilation // 2 for dilation in dilations)
    assert seen(state.memory["columns"][0, 20], embedded[0]) == list(range(20 - left, 20 - left + field))


def test_the_paper_s_decoder_sees_far():
    assert bytenet(dilations=(1, 2, 4, 8, 16), decoder_sets=6).decoder_receptive_field == 373


@pytest.mark.parametrize("ratio", [1.0, 1.1, 1.2, 1.5])
def test_columns_are_a_length_times_a_plus_b(ratio):
    model = build(bytenet(length_ratio=ratio, length_offset=2))
    lengths = torch.arange(1, 31)
    columns = model.encode(ids(30, 30), lengths).memory["columns"]
    assert columns.shape[1] == math.ceil(ratio * 30) + 2
    for row, length in enumerate(lengths.tolist()):
        used = columns[row].abs().sum(-1) > 0
        assert used.tolist() == [column < math.ceil(ratio * length) + 2 for column in range(len(used))]


def test_each_target_token_takes_one_column():
    """With kernels of one token, the token at a position depends on the source token at the same one."""
    model = build(bytenet(kernel=1, length_ratio=1.0))
    embedded = []
    model.embed_tokens.register_forward_hook(lambda module, args, output: embedded.append(output))
    logits = model(ids(1, 6), ids(1, 6, seed=1))
    for position in range(6):
        (gradient,) = torch.autograd.grad(logits[0, position].sum(), embedded[0], retain_graph=True)
        assert gradient[0].abs().sum(-1).nonzero().flatten().tolist() == [position]


def test_targets_may_be_longer_than_the_columns():
    """What follows is computed from the target alone."""
    model = build(bytenet(length_ratio=1.0))
    source, target = ids(2, 3), ids(2, 9, seed=1)
    logits = model(source, target)
    assert logits.isfinite().all()
    state = model.start(source, 10)
    found = torch.cat([model.step(token, state)[0] for token in target.split(1, dim=1)], dim=1)
    torch.testing.assert_close(found, logits, **EXACT)


def test_values_of_padding_do_not_matter():
    model = build(bytenet())
    source, target, lengths = ids(3, 9), ids(3, 6, seed=1), torch.tensor([9, 4, 1])
    other = torch.where(torch.arange(9) < lengths[:, None], source, (source + 5) % 13)
    first, second = (model(each, target, source_lengths=lengths) for each in (source, other))
    assert torch.equal(first, second)


def test_beams_continue_after_their_own_prefixes():
    model = build(bytenet())
    source, lengths, target = ids(2, 5), torch.tensor([5, 3]), ids(4, 6, seed=1)
    state = model.start(source, 10, lengths)
    state.reorder_beams(torch.tensor([0, 0, 1, 1]))
    model.step(target[:, :3], state)
    origin = torch.tensor([1, 1, 3, 2])
    state.reorder_beams(origin)
    found = model.step(target[:, 3:], state)[0]
    each = torch.tensor([0, 0, 1, 1])
    whole = torch.cat((target[origin, :3], target[:, 3:]), dim=1)
    torch.testing.assert_close(found, model(source[each], whole, source_lengths=lengths[each])[:, 3:], **EXACT)


def test_sizes_that_cannot_be_built_are_refused():
    with pytest.raises(ConfigError, match="width: 7 is odd"):
        bytenet(width=7)
    with pytest.raises(ConfigError, match=r"dilations\.1: found 0"):
        bytenet(dilations=(1, 0))


def test_overfits_twenty_pairs():
    """The target is the source in reverse: within the receptive field, tokens may move."""
    torch.manual_seed(0)
    source = torch.randint(3, 13, (20, 8))
    target = torch.cat((torch.ones(20, 1, dtype=torch.long), source.flip(1)), dim=1)
    model = bytenet(width=48, dilations=(1, 2, 4), dropout=0.0).build()
    loss, accuracy = fit(model, source, target, 120)
    assert loss < 0.05
    assert accuracy == 1
