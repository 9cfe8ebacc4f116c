"""The decode step of multi-head latent attention (MLA), written in Triton for a GPU: every latent is read once.

In the absorbed form (`attention/latent.py`) all heads attend to the same latents, which are keys and values at once. As
two matrix products these would be read twice, and once more to be concatenated with the rotary keys. Here a program has
all heads of a token (or some of them) and a part of the context: it reads a few latents, scores them, and adds them to
the weighted sum while they are at hand. The softmax is online (Milakov and Gimelshein 2018), and the parts of the
context are combined at the end in the same way (Dao et al. 2023, "Flash-Decoding").
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS, _MIN_KEYS = 528, 256
"""About how many programs run at once, and the fewest keys that are worth one."""


@triton.jit(do_not_specialize=["keys", "keys_per_part"])
def _mla_decode(
    query, latent, rotary_key, mask, sums, maxima, totals, scale, keys, keys_per_part, heads, group,
    stride_latent_row, stride_latent_key, stride_rotary_row, stride_rotary_key, stride_mask_row,
    latent_dim, rope_dim,
    has_mask: tl.constexpr, has_rotary: tl.constexpr, block_heads: tl.constexpr, block_latent: tl.constexpr,
    block_rope: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    head = tl.program_id(2) * block_heads + tl.arange(0, block_heads)
    head_mask = head < heads
    cols = tl.arange(0, block_latent)
    rope_cols = tl.arange(0, block_rope)
    start = query + (row * heads + head)[:, None] * (latent_dim + rope_dim)
    q = tl.load(start + cols[None, :], head_mask[:, None] & (cols < latent_dim)[None, :], 0.0)
    q_rope = tl.load(start + latent_dim + rope_cols[None, :], head_mask[:, None] & (rope_cols < rope_dim)[None, :], 0.0)
    source = row // group
    acc = tl.zeros([block_heads, block_latent], tl.float32)
    maximum = tl.full([block_heads], float("-inf"), tl.float32)
    total = tl.zeros([block_heads], tl.float32)
    last = tl.minimum(keys, (part + 1) * keys_per_part)
    for first in range(part * keys_per_part, last, block):
        key = first + tl.arange(0, block)
        valid = key < last
        pointers = latent + source * stride_latent_row + key.to(tl.int64)[:, None] * stride_latent_key + cols[None, :]
        c = tl.load(pointers, valid[:, None] & (cols < latent_dim)[None, :], 0.0)
        scores = tl.dot(q, tl.trans(c), input_precision="ieee")
        if has_rotary:
            pointers = (
                rotary_key + source * stride_rotary_row + key.to(tl.int64)[:, None] * stride_rotary_key
                + rope_cols[None, :]
            )  # fmt: skip
            k_rope = tl.load(pointers, valid[:, None] & (rope_cols < rope_dim)[None, :], 0.0)
            scores += tl.dot(q_rope, tl.trans(k_rope), input_precision="ieee")
        if has_mask:
            valid = valid & (tl.load(mask + source * stride_mask_row + key, valid, 0) != 0)
        scores = tl.where(valid[None, :], scores * scale, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)  # all keys so far are masked
        weights = tl.exp(scores - shift[:, None])
        rescale = tl.exp(maximum - shift)
        acc = acc * rescale[:, None] + tl.dot(weights.to(c.dtype), c, input_precision="ieee")
        total = total * rescale + tl.sum(weights, 1)
        maximum = new_maximum
    out = (row * parts + part) * heads + head
    tl.store(sums + out[:, None] * latent_dim + cols[None, :], acc, head_mask[:, None] & (cols < latent_dim)[None, :])
    tl.store(maxima + out, maximum, head_mask)
    tl.store(totals + out, total, head_mask)


def mla_decode(query: Tensor, rotary_key: Tensor, latent: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """What the heads of one token per row attend to; zeros where all keys are masked.

    query:      # (rows, heads, latent_dim + rope_dim)
    rotary_key: # (sources, keys, rope_dim), whose rope_dim may be 0
    latent:     # (sources, keys, latent_dim)      each source belongs to rows / sources adjacent rows
    mask:       # (sources or 1, keys), true where a key is visible; None if all are
    returns     # (rows, heads, latent_dim)
    """
    rows, heads, _ = query.shape
    sources, keys, latent_dim = latent.shape
    rope_dim = rotary_key.shape[2]
    block_heads = 16 if heads <= 16 else 32
    head_blocks = triton.cdiv(heads, block_heads)
    parts = max(1, min(triton.cdiv(keys, _MIN_KEYS), triton.cdiv(_PROGRAMS, rows * head_blocks)))
    keys_per_part = triton.cdiv(triton.cdiv(keys, parts), 64) * 64
    parts = max(1, triton.cdiv(keys, keys_per_part))
    sums = torch.empty(rows, parts, heads, latent_dim, device=query.device)
    maxima, totals = torch.empty(2, rows, parts, heads, device=query.device)
    latent, rotary_key = (each if each.stride(2) == 1 else each.contiguous() for each in (latent, rotary_key))
    mask_bytes = latent if mask is None else mask.to(torch.uint8).contiguous()
    block_latent = triton.next_power_of_2(max(16, latent_dim))
    _mla_decode[(rows, parts, head_blocks)](
        query.contiguous(), latent, rotary_key, mask_bytes, sums, maxima, totals, scale, keys, keys_per_part, heads,
        rows // sources, latent.stride(0), latent.stride(1), rotary_key.stride(0), rotary_key.stride(1),
        0 if mask is None or len(mask) == 1 else keys, latent_dim, rope_dim,
        has_mask=mask is not None, has_rotary=rope_dim > 0, block_heads=block_heads, block_latent=block_latent,
        block_rope=triton.next_power_of_2(max(16, rope_dim)), block=64 if block_latent <= 256 else 32,
        num_warps=4 if block_heads == 16 else 8,
    )  # fmt: skip
    shift = maxima.amax(dim=1, keepdim=True)
    rescale = (maxima - shift.masked_fill(shift == float("-inf"), 0.0)).exp()  # (rows, parts, heads)
    total = (totals * rescale).sum(dim=1)
    out: Tensor = (sums * rescale[..., None]).sum(dim=1) / total.clamp(min=torch.finfo(total.dtype).tiny)[..., None]
    return out.to(query.dtype)
