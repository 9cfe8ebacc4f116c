"""Attention of a decode step equals PyTorch's. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from regard.kernels.cuda import decode_attention as kernels

pytestmark = pytest.mark.start_early(13)

HEADS = 2


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All positions at once, or 16 at a time."""
    if request.param == "many blocks":
        monkeypatch.setattr(kernels, "_BLOCK_SIZES", ((2**31, 1, 1),))
        monkeypatch.setattr(kernels, "_GROUP_POSITIONS", 16)


def attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """query: # (rows, width); keys, values: # (rows, positions, kv width); mask: # (rows, positions)"""
    group = query.shape[1] // keys.shape[2]
    query = query.float().unflatten(1, (HEADS, -1))
    keys, values = (
        each.float().unflatten(2, (HEADS // group, -1)).repeat_interleave(group, dim=2) for each in (keys, values)
    )
    scores = torch.einsum("rhd,rjhd->rhj", query, keys) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(dim=-1)
    return torch.einsum("rhj,rjhd->rhd", weights, values).flatten(1)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("rows_per_source", [1, 4, 5])
@pytest.mark.parametrize("group", [1, 2])
def test_cross_attention_equals_pytorch(dtype: torch.dtype, rows_per_source: int, group: int) -> None:
    torch.manual_seed(rows_per_source)
    sources, positions, head_dim = 2, 48, 6
    width, kv_width = HEADS * head_dim, HEADS * head_dim // group
    query = torch.randn(sources * rows_per_source, width, dtype=dtype)
    keys, values = (torch.randn(sources, positions, kv_width, dtype=dtype) for _ in range(2))
    keys[1, 33:], values[1, 33:] = float("nan"), float("nan")  # padding must not be read
    lengths = torch.tensor([48, 33])
    actual = kernels.cross_attention_decode(query, keys, values, lengths, HEADS)
    mask = torch.arange(positions) < lengths[:, None]
    inputs = (keys.nan_to_num(0.0), values.nan_to_num(0.0), mask)
    expected = attention(query, *(each.repeat_interleave(rows_per_source, dim=0) for each in inputs))
    assert actual.dtype == dtype
    assert torch.allclose(actual.float(), expected, atol=1e-5 if dtype == torch.float32 else 2e-3)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("group", [1, 2])
def test_self_attention_follows_beam_indices(dtype: torch.dtype, group: int) -> None:
    torch.manual_seed(group)
    rows, capacity, head_dim = 3, 64, 6
    width, kv_width = HEADS * head_dim, HEADS * head_dim // group
    qkv = torch.randn(rows, width + 2 * kv_width, dtype=dtype)
    keys, values = (torch.randn(capacity, rows, kv_width, dtype=dtype) for _ in range(2))
    beam_indices = torch.randint(rows, (capacity, rows), dtype=torch.int32)
    lengths = torch.tensor([0, 40, 63])
    written = [each.clone() for each in (keys, values, beam_indices)]
    actual = kernels.self_attention_decode(qkv, keys, values, beam_indices, lengths, HEADS, None)
    query, key, value = qkv.split((width, kv_width, kv_width), dim=1)
    row = torch.arange(rows)
    for old, new in zip(written, (key, value, row.int()), strict=True):
        old[lengths, row] = new
    assert all(torch.equal(mine, old) for mine, old in zip((keys, values, beam_indices), written, strict=True))
    positions = torch.arange(capacity)[:, None]
    gathered = [each[positions, beam_indices.long()].transpose(0, 1) for each in (keys, values)]
    expected = attention(query, *gathered, torch.arange(capacity) <= lengths[:, None])
    assert torch.allclose(actual.float(), expected, atol=1e-5 if dtype == torch.float32 else 2e-3)


def test_beams_are_reordered_in_place() -> None:
    torch.manual_seed(0)
    beam_indices, lengths = torch.randint(5, (7, 5), dtype=torch.int32), torch.tensor([3, 1, 4, 1, 5])
    rows = torch.tensor([1, 0, 0, 4, 2])
    expected = beam_indices[:, rows], lengths[rows]
    kernels.reorder_beams(beam_indices, lengths, rows)
    assert torch.equal(beam_indices, expected[0])
    assert torch.equal(lengths, expected[1])


@pytest.mark.parametrize("programs", [1, 500, 3000, 10**6])
@pytest.mark.parametrize("positions", [1, 16, 64, 1000])
@pytest.mark.parametrize("block_dim", [8, 64, 128])
def test_block_sizes_are_powers_of_two(programs: int, positions: int, block_dim: int) -> None:
    block, warps = kernels._block_size(programs, positions, block_dim)
    assert block.bit_count() == warps.bit_count() == 1
    assert 16 <= block <= max(16, 2 * positions)
    assert block * block_dim <= 256 * 64 or block == 16
