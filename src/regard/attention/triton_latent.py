"""One token's look at many latents, written in Triton for a GPU: every latent is read once.

In the absorbed order of latent attention (`latent.py`) all heads compare themselves with the same latents and take
their sum of the same latents. As two products these would be read twice, and once more to lie beside the turned keys.
Here a program has all heads of a token (or some of them) and a stretch of the past: it reads a few latents, scores
them, and adds them up in proportion while they are at hand. The maximum so far is carried along, and what was added is
scaled when it grows (Milakov and Gimelshein 2018); stretches are put together at the end in the same way (Dao et al.
2023, "Flash-Decoding").
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS, _SHORTEST = 528, 256
"""Programs to be under way at once, about, and the shortest stretch that is worth one."""


@triton.jit(do_not_specialize=["keys", "stretch"])
def _look(
    query, latent, turned, mask, sums, tops, counts, scale, keys, stretch, heads, group,
    latent_row, latent_key, turned_row, turned_key, mask_row, size, turns,
    masked: tl.constexpr, turning: tl.constexpr, block_heads: tl.constexpr, block_size: tl.constexpr,
    block_turns: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    head = tl.program_id(2) * block_heads + tl.arange(0, block_heads)
    there = head < heads
    feature = tl.arange(0, block_size)
    turn = tl.arange(0, block_turns)
    start = query + (row * heads + head)[:, None] * (size + turns)
    asked = tl.load(start + feature[None, :], there[:, None] & (feature < size)[None, :], 0.0)
    asked_turned = tl.load(start + size + turn[None, :], there[:, None] & (turn < turns)[None, :], 0.0)
    memory = row // group
    total = tl.zeros([block_heads, block_size], tl.float32)
    top = tl.full([block_heads], float("-inf"), tl.float32)
    count = tl.zeros([block_heads], tl.float32)
    last = tl.minimum(keys, (part + 1) * stretch)
    for first in range(part * stretch, last, block):
        key = first + tl.arange(0, block)
        inside = key < last
        place = latent + memory * latent_row + key.to(tl.int64)[:, None] * latent_key + feature[None, :]
        found = tl.load(place, inside[:, None] & (feature < size)[None, :], 0.0)
        scores = tl.dot(asked, tl.trans(found), input_precision="ieee")
        if turning:
            place = turned + memory * turned_row + key.to(tl.int64)[:, None] * turned_key + turn[None, :]
            found_turned = tl.load(place, inside[:, None] & (turn < turns)[None, :], 0.0)
            scores += tl.dot(asked_turned, tl.trans(found_turned), input_precision="ieee")
        if masked:
            inside = inside & (tl.load(mask + memory * mask_row + key, inside, 0) != 0)
        scores = tl.where(inside[None, :], scores * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # nothing was seen yet
        shares = tl.exp(scores - level[:, None])
        fades = tl.exp(top - level)
        total = total * fades[:, None] + tl.dot(shares.to(found.dtype), found, input_precision="ieee")
        count = count * fades + tl.sum(shares, 1)
        top = higher
    out = (row * parts + part) * heads + head
    tl.store(sums + out[:, None] * size + feature[None, :], total, there[:, None] & (feature < size)[None, :])
    tl.store(tops + out, top, there)
    tl.store(counts + out, count, there)


def look(query: Tensor, turned: Tensor, latent: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """What the heads of one token a row find in latents; zeros where nothing may be seen.

    query:  # (rows, heads, latent + turned width)
    turned: # (memories, keys, turned width), whose width may be 0
    latent: # (memories, keys, latent)             each memory is looked at by rows / memories rows, side by side
    mask:   # (memories or 1, keys), true where a key may be seen; None if all may
    returns # (rows, heads, latent)
    """
    rows, heads, _ = query.shape
    memories, keys, size = latent.shape
    turns = turned.shape[2]
    block_heads = 16 if heads <= 16 else 32
    across = triton.cdiv(heads, block_heads)
    parts = max(1, min(triton.cdiv(keys, _SHORTEST), triton.cdiv(_PROGRAMS, rows * across)))
    stretch = triton.cdiv(triton.cdiv(keys, parts), 64) * 64
    parts = max(1, triton.cdiv(keys, stretch))
    sums = torch.empty(rows, parts, heads, size, device=query.device)
    tops, counts = torch.empty(2, rows, parts, heads, device=query.device)
    latent, turned = (each if each.stride(2) == 1 else each.contiguous() for each in (latent, turned))
    seen = latent if mask is None else mask.to(torch.uint8).contiguous()
    block_size = triton.next_power_of_2(max(16, size))
    _look[(rows, parts, across)](
        query.contiguous(), latent, turned, seen, sums, tops, counts, scale, keys, stretch, heads, rows // memories,
        latent.stride(0), latent.stride(1), turned.stride(0), turned.stride(1),
        0 if mask is None or len(mask) == 1 else keys, size, turns,
        masked=mask is not None, turning=turns > 0, block_heads=block_heads, block_size=block_size,
        block_turns=triton.next_power_of_2(max(16, turns)), block=64 if block_size <= 256 else 32,
        num_warps=4 if block_heads == 16 else 8,
    )  # fmt: skip
    level = tops.amax(dim=1, keepdim=True)
    shares = (tops - level.masked_fill(level == float("-inf"), 0.0)).exp()  # (rows, parts, heads)
    count = (counts * shares).sum(dim=1)
    mixed: Tensor = (sums * shares[..., None]).sum(dim=1) / count.clamp(min=torch.finfo(count.dtype).tiny)[..., None]
    return mixed.to(query.dtype)
