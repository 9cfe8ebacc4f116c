"""Kernels for a GPU compute what plain PyTorch computes; they run here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from regard.fast import triton_kernels

HEADS = 2


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All positions at once, or 16 at a time."""
    if request.param == "many blocks":
        monkeypatch.setattr(triton_kernels, "_SHAPES", ((2**31, 1, 1),))
        monkeypatch.setattr(triton_kernels, "_TOGETHER", 16)


def attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """query: # (rows, width); keys, values: # (rows, positions, key width); seen: # (rows, positions)"""
    share = query.shape[1] // keys.shape[2]
    query = query.float().unflatten(1, (HEADS, -1))
    keys, values = (
        each.float().unflatten(2, (HEADS // share, -1)).repeat_interleave(share, dim=2) for each in (keys, values)
    )
    scores = torch.einsum("rhd,rjhd->rhj", query, keys) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(dim=-1)
    return torch.einsum("rhj,rjhd->rhd", weights, values).flatten(1)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("group", [1, 4, 5])
@pytest.mark.parametrize("share", [1, 2])
def test_rows_of_one_source_look_at_it_together(dtype: torch.dtype, group: int, share: int) -> None:
    torch.manual_seed(group)
    sources, positions, size = 2, 48, 6
    width, narrow = HEADS * size, HEADS * size // share
    query = torch.randn(sources * group, width, dtype=dtype)
    keys, values = (torch.randn(sources, positions, narrow, dtype=dtype) for _ in range(2))
    keys[1, 33:], values[1, 33:] = float("nan"), float("nan")  # what lies behind the end has no say
    lengths = torch.tensor([48, 33])
    found = triton_kernels.attend_memory(query, keys, values, lengths, HEADS)
    seen = torch.arange(positions) < lengths[:, None]
    every = [each.repeat_interleave(group, dim=0) for each in (keys.nan_to_num(0.0), values.nan_to_num(0.0), seen)]
    wanted = attention(query, *every)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), wanted, atol=1e-5 if dtype == torch.float32 else 2e-3)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("share", [1, 2])
def test_rows_look_at_what_others_wrote_for_them(dtype: torch.dtype, share: int) -> None:
    torch.manual_seed(share)
    rows, capacity, size = 3, 64, 6
    width, narrow = HEADS * size, HEADS * size // share
    made = torch.randn(rows, width + 2 * narrow, dtype=dtype)
    keys, values = (torch.randn(capacity, rows, narrow, dtype=dtype) for _ in range(2))
    origin = torch.randint(rows, (capacity, rows), dtype=torch.int32)
    lengths = torch.tensor([0, 40, 63])
    written = [each.clone() for each in (keys, values, origin)]
    found = triton_kernels.attend_past(made, keys, values, origin, lengths, HEADS, None)
    query, key, value = made.split((width, narrow, narrow), dim=1)
    every = torch.arange(rows)
    for old, new in zip(written, (key, value, every.int()), strict=True):
        old[lengths, every] = new
    assert all(torch.equal(mine, old) for mine, old in zip((keys, values, origin), written, strict=True))
    places = torch.arange(capacity)[:, None]
    texts = [each[places, origin.long()].transpose(0, 1) for each in (keys, values)]
    wanted = attention(query, *texts, torch.arange(capacity) <= lengths[:, None])
    assert torch.allclose(found.float(), wanted, atol=1e-5 if dtype == torch.float32 else 2e-3)


def test_rows_of_a_cache_move_in_place() -> None:
    torch.manual_seed(0)
    origin, lengths = torch.randint(5, (7, 5), dtype=torch.int32), torch.tensor([3, 1, 4, 1, 5])
    rows = torch.tensor([1, 0, 0, 4, 2])
    wanted = origin[:, rows], lengths[rows]
    triton_kernels.move_rows(origin, lengths, rows)
    assert torch.equal(origin, wanted[0])
    assert torch.equal(lengths, wanted[1])


@pytest.mark.parametrize("programs", [1, 500, 3000, 10**6])
@pytest.mark.parametrize("positions", [1, 16, 64, 1000])
@pytest.mark.parametrize("features", [8, 64, 128])
def test_positions_are_cut_up_into_powers_of_two(programs: int, positions: int, features: int) -> None:
    block, warps = triton_kernels._cut_up(programs, positions, features)
    assert block.bit_count() == warps.bit_count() == 1
    assert 16 <= block <= max(16, 2 * positions)
    assert block * features <= 256 * 64 or block == 16
