"""Multi-head latent attention: absorbed equals naive, the cache holds only latents, and it equals DeepSeek's.

Comparisons are in float64, where rounding errors of some dozens of sums remain; a wrong key, mask, rotation or scale
makes a difference of 1e-4 or more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.attention import (
    Causal,
    Context,
    Dilated,
    DynamicScaling,
    Full,
    Global,
    KVBuffer,
    KVCache,
    LatentAttentionConfig,
    LatentCrossAttention,
    LatentSelfAttention,
    LayerState,
    Lengths,
    LongRopeScaling,
    NoPositionConfig,
    Pattern,
    Rotary,
    RotaryConfig,
    Sliding,
    YarnScaling,
)
from regard.attention.latent import Form, HeadsAsQueries
from regard.config import ConfigError
from tests.attention.support import assert_close

ROUNDING = 1e-10
WIDTH, ROPE_DIM = 12, 4

PATTERNS = {
    "full": Full(),
    "causal": Causal(),
    "window": Causal() & Sliding(3),
    "dilated": Causal() & Dilated(2, 2),
    "global and window": Global(1) | Sliding(2),
}
ROTARIES = {
    "none": None,
    "rotary": Rotary(ROPE_DIM),
    "yarn": Rotary(ROPE_DIM, scaling=YarnScaling(factor=4.0, original_max_length=8)),
    "dynamic": Rotary(ROPE_DIM, scaling=DynamicScaling(factor=4.0, original_max_length=3)),
    "long": Rotary(
        ROPE_DIM, scaling=LongRopeScaling(short_factors=(1.0, 2.0), long_factors=(3.0, 5.0), original_max_length=3)
    ),
}
every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=list(PATTERNS))
every_rotary = pytest.mark.parametrize("rotary", ROTARIES.values(), ids=list(ROTARIES))


def config(rope_head_dim: int = ROPE_DIM, **settings: Any) -> LatentAttentionConfig:
    small = {"heads": 3, "kv_latent": 5, "query_latent": 7, "head_dim": 4, "value_head_dim": 6, "bias": True}
    return LatentAttentionConfig(**{**small, "rope_head_dim": rope_head_dim, **settings})


def randomized(layer: nn.Module) -> Any:
    """The layer in float64 and evaluation mode, with random parameters."""
    torch.manual_seed(0)
    layer = layer.double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5 + 0.1)
    return layer


def attention(pattern: Pattern = PATTERNS["causal"], rotary: Rotary | None = None, **more: Any) -> LatentSelfAttention:
    settings = config(0 if rotary is None else ROPE_DIM, **more)
    return randomized(LatentSelfAttention(settings, WIDTH, pattern, rotary))


def embeddings(rows: int, length: int, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, WIDTH, generator=random, dtype=torch.float64)


def ids(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[:2], dtype=torch.long)


def run(layer: LatentSelfAttention, x: Tensor, form: Form | None = None, **more: Any) -> Tensor:
    """One pass over all tokens, without a cache."""
    layer.form = form
    return layer(x, Context(ids(x), **more), LayerState())


@contextmanager
def recorded_forms(layer: Any) -> Iterator[list[str]]:
    """Records the order of each call: in the absorbed one all heads share a key."""
    taken: list[str] = []
    attend_heads = layer.attend_heads

    def recording(query: Tensor, key: Tensor, *others: Any) -> Tensor:
        taken.append("absorbed" if key.shape[1] == 1 else "naive")
        return attend_heads(query, key, *others)

    layer.attend_heads = recording
    yield taken
    del layer.attend_heads


# Correctness


def paper_attention(layer: LatentSelfAttention, x: Tensor) -> Tensor:
    """The formulas of DeepSeek-V2's §2.1 and appendix C, token by token and head by head."""
    heads, (plain, rotated) = layer.heads, layer.head_dims
    values, (cosine, sine) = layer.sizes.value_head_dim, layer.rotary.rotation(torch.arange(x.shape[1]), x.shape[1])

    def normed(x: Tensor, norm: nn.RMSNorm) -> Tensor:
        return x / (x.square().mean() + norm.eps).sqrt() * norm.weight

    def rotate(x: Tensor, position: int) -> Tensor:
        pairs = torch.complex(x[: rotated // 2], x[rotated // 2 :])
        around = pairs * torch.complex(cosine[position].double(), sine[position].double())
        return torch.cat((around.real, around.imag))

    rows = []
    for row in x:
        latents = [normed(layer.kv_down_proj(h), layer.kv_norm) for h in row]
        shared = [rotate(layer.k_rope_proj(h), position) for position, h in enumerate(row)]
        outputs = []
        for position, h in enumerate(row):
            queries = layer.q_proj.up_proj(normed(layer.q_proj.down_proj(h), layer.q_proj.norm)).view(
                heads, plain + rotated
            )
            mixed = []
            for head in range(heads):
                query = torch.cat((queries[head, :plain], rotate(queries[head, plain:], position)))
                scores, head_values = [], []
                for latent, part in zip(latents[: position + 1], shared[: position + 1], strict=True):
                    key = torch.cat((layer.k_up_proj(latent).view(heads, plain)[head], part))
                    scores.append(query @ key * (plain + rotated) ** -0.5)
                    head_values.append(layer.v_up_proj(latent).view(heads, values)[head])
                mixed.append(torch.stack(scores).softmax(dim=0) @ torch.stack(head_values))
            outputs.append(layer.o_proj(torch.cat(mixed)))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_equals_the_paper_s_formulas(form: Form) -> None:
    layer, x = attention(rotary=ROTARIES["rotary"]), embeddings(2, 5)
    assert_close(run(layer, x, form), paper_attention(layer, x), ROUNDING)


@pytest.mark.parametrize("query_latent", [None, 7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_equals_transformers_deepseek_v3(query_latent: int | None, bias: bool, form: Form) -> None:
    module = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    settings = module.DeepseekV3Config(
        hidden_size=WIDTH, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=query_latent, kv_lora_rank=5,
        qk_rope_head_dim=ROPE_DIM, qk_nope_head_dim=4, v_head_dim=6, attention_bias=bias, attn_implementation="eager",
    )  # fmt: skip
    theirs = randomized(module.DeepseekV3Attention(settings, 0))
    ours = attention(rotary=Rotary(ROPE_DIM), query_latent=query_latent, bias=bias)
    ours.load_state_dict(from_deepseek({name: each.detach() for name, each in theirs.named_parameters()}))
    x = embeddings(2, 6)
    cosine, sine = module.DeepseekV3RotaryEmbedding(settings)(x, torch.arange(6)[None])
    mask = torch.full((6, 6), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected, _ = theirs(x, (cosine, sine), mask)
    assert_close(run(ours, x, form), expected, 1e-6)  # their norm computes in float32


def from_deepseek(theirs: dict[str, Tensor], heads: int = 3, plain: int = 4, latent: int = 5) -> dict[str, Tensor]:
    """Our parameters from theirs: fused projections are split, and rotated pairs of neighbors become halves."""

    def halves(rows: Tensor) -> Tensor:
        return torch.cat((rows[..., 0::2, :], rows[..., 1::2, :]), dim=-2)

    last = "q_b_proj.weight" if "q_b_proj.weight" in theirs else "q_proj.weight"
    queries = theirs[last].unflatten(0, (heads, -1))  # (heads, plain + rotated, …)
    query = torch.cat((queries[:, :plain], halves(queries[:, plain:])), dim=1).flatten(0, 1)
    pairs = theirs["kv_b_proj.weight"].unflatten(0, (heads, -1))  # (heads, plain + values, latent)
    down = theirs["kv_a_proj_with_mqa.weight"]
    ours = {
        "q_proj.weight" if last == "q_proj.weight" else "q_proj.up_proj.weight": query,
        "k_up_proj.weight": pairs[:, :plain].flatten(0, 1),
        "v_up_proj.weight": pairs[:, plain:].flatten(0, 1),
        "o_proj.weight": theirs["o_proj.weight"],
        "kv_down_proj.weight": down[:latent],
        "k_rope_proj.weight": halves(down[latent:]),
        "kv_norm.weight": theirs["kv_a_layernorm.weight"],
    }
    if "q_a_proj.weight" in theirs:
        ours |= {
            "q_proj.down_proj.weight": theirs["q_a_proj.weight"],
            "q_proj.norm.weight": theirs["q_a_layernorm.weight"],
        }
    if "o_proj.bias" in theirs:
        bias = theirs["kv_a_proj_with_mqa.bias"]
        ours |= {"o_proj.bias": theirs["o_proj.bias"], "kv_down_proj.bias": bias[:latent]}
        ours |= {"k_rope_proj.bias": halves(bias[latent:, None])[:, 0]}
        ours |= {"q_proj.down_proj.bias": theirs["q_a_proj.bias"]} if "q_a_proj.bias" in theirs else {}
    return ours


def test_scale_setting_replaces_the_default() -> None:
    default, rescaled = attention(rotary=ROTARIES["rotary"]), attention(rotary=ROTARIES["rotary"], scale=8**-0.5 * 1.5)
    x = embeddings(2, 5)
    with torch.no_grad():
        default.q_proj.up_proj.weight *= 1.5
    assert_close(run(rescaled, x), run(default, x), ROUNDING)


# Absorbed and naive


@every_pattern
@every_rotary
def test_absorbed_equals_naive(pattern: Pattern, rotary: Rotary | None) -> None:
    layer, x = attention(pattern, rotary), embeddings(3, 7)
    for more in ({}, {"lengths": torch.tensor([7, 4, 1])}):
        assert_close(run(layer, x, "absorbed", **more), run(layer, x, "naive", **more), ROUNDING)


@every_pattern
@pytest.mark.parametrize("rotary", [ROTARIES["none"], ROTARIES["yarn"]], ids=["none", "yarn"])
def test_absorbed_equals_naive_in_packed_documents(pattern: Pattern, rotary: Rotary | None) -> None:
    layer, x = attention(pattern, rotary), embeddings(2, 7)
    numbers = torch.tensor([[0, 0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, -1, -1]])
    packed = run(layer, x, "absorbed", documents=numbers)
    assert_close(packed, run(layer, x, "naive", documents=numbers), ROUNDING)
    assert_close(packed[1:, 1:5], run(layer, x[1:, 1:5]), ROUNDING)


@every_pattern
@every_rotary
def test_absorbed_and_naive_gradients_are_equal(pattern: Pattern, rotary: Rotary | None) -> None:
    layer, x = attention(pattern, rotary), embeddings(2, 6).requires_grad_()
    grad = embeddings(2, 6, seed=3)
    actual = []
    for form in ("naive", "absorbed"):
        output = run(layer, x, form, lengths=torch.tensor([6, 3]))
        actual.append(torch.autograd.grad(output, [x, *layer.parameters()], grad))
    for one, other in zip(*actual, strict=True):
        assert_close(one, other, ROUNDING)
        assert one.abs().max() > 1e-6


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_hook_receives_the_same_weights_in_both_orders(form: Form) -> None:
    layer, x = attention(PATTERNS["window"], ROTARIES["rotary"]), embeddings(2, 5)
    received: dict[str, Tensor] = {}
    for each in ("naive", form):
        run(layer, x, each, attention_hook=lambda module, weights, each=each: received.update({each: weights}))
    assert received[form].shape == (2, 3, 5, 5)
    assert_close(received[form].sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64), ROUNDING)
    assert_close(received[form], received["naive"], ROUNDING)


def test_heads_as_queries_have_the_mask_of_their_token() -> None:
    """Two rows of three tokens that attend to the same keys, in two heads."""
    mask = Causal().bind(6, 6)
    expanded = HeadsAsQueries.of(mask, heads=2, queries=3)
    token = [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert torch.equal(expanded.dense()[0, 0], mask.dense()[0, 0, token])
    assert not expanded.is_full


def test_heads_as_queries_of_a_full_mask_are_full() -> None:
    assert HeadsAsQueries.of(Causal().bind(1, 4), heads=2, queries=1).is_full


def test_dropout_applies_in_training_only() -> None:
    layer, x = attention(dropout=0.5), embeddings(2, 5)
    assert torch.equal(run(layer, x), run(layer, x))
    layer.train()
    for form in ("naive", "absorbed"):
        assert not torch.equal(run(layer, x, form), run(layer, x, form))


# Caching


def new_cache(layer: LatentSelfAttention, rows: int, capacity: int) -> KVCache:
    return KVCache(rows, capacity, [LayerState(layer.new_buffer(capacity))])


@torch.no_grad()
def step(layer: LatentSelfAttention, x: Tensor, cache: KVCache, counts: Tensor | None = None) -> Tensor:
    output = layer(x, Context.after(cache, ids(x), counts), cache.layers[0])
    cache.advance(x.shape[1], counts)
    return output


CHUNKS = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=4)


@given(
    st.sampled_from([PATTERNS[name] for name in ("causal", "window", "dilated")]),
    st.sampled_from(list(ROTARIES.values())),
    st.sampled_from(["naive", "absorbed", None]),
    CHUNKS,
)
def test_cached_ragged_chunks_equal_each_row_alone(
    pattern: Pattern, rotary: Rotary | None, form: Form | None, chunks: list[list[int]]
) -> None:
    layer = attention(pattern, rotary)
    x, cache, ends = embeddings(2, 12), new_cache(layer, 2, 15), [0, 0]
    for counts in chunks:
        chunk = torch.stack([x[row, end : end + 3] for row, end in enumerate(ends)])
        layer.form = form
        output = step(layer, chunk, cache, torch.tensor(counts))
        for row, count in enumerate(counts):
            ends[row] += count
            alone = run(layer, x[row : row + 1, : ends[row]], "naive")
            assert_close(output[row, :count], alone[0, ends[row] - count :], ROUNDING)


@every_rotary
def test_decoding_after_reorder_and_reserve_equals_uncached(rotary: Rotary | None) -> None:
    layer, x = attention(rotary=rotary), embeddings(3, 6)
    cache = new_cache(layer, 3, 4)
    step(layer, x[:, :4], cache)
    cache.reserve(6)
    cache.reorder(torch.tensor([2, 0, 0]))
    following = embeddings(3, 2, seed=5)
    output = step(layer, following, cache)
    sequence = torch.cat((x[[2, 0, 0], :4], following), dim=1)
    assert_close(output, run(layer, sequence)[:, 4:], ROUNDING)


def test_steps_are_absorbed_and_prompts_and_uncached_passes_naive() -> None:
    layer, x = attention(kv_latent=8), embeddings(2, 9)
    cache = new_cache(layer, 2, 9)
    with recorded_forms(layer) as taken:
        run(layer, x)
        step(layer, x[:, :7], cache)  # a prompt: projecting keys and values up once is cheaper
        step(layer, x[:, 7:8], cache)
        step(layer, x[:, 8:9], cache)
    assert taken == ["naive", "naive", "absorbed", "absorbed"]


@pytest.mark.parametrize("rotary", [None, Rotary(ROPE_DIM)], ids=["none", "rotary"])
def test_cache_holds_only_the_latent_and_the_rope_key(rotary: Rotary | None) -> None:
    layer = attention(rotary=rotary)
    cache = new_cache(layer, 2, 9)
    step(layer, embeddings(2, 3), cache)
    assert layer.kv_features == 5 + (0 if rotary is None else ROPE_DIM)
    assert cache.nbytes() == 2 * 9 * layer.kv_features * 8


def test_sliding_window_bounds_the_cache() -> None:
    layer = attention(PATTERNS["window"], Rotary(ROPE_DIM))
    cache = new_cache(layer, 2, 100)
    step(layer, embeddings(2, 1), cache)
    assert cache.nbytes() == 2 * 3 * layer.kv_features * 8


# Cross-attention


def cross_attention(rows: int, **settings: Any) -> tuple[LatentCrossAttention, Tensor, LayerState]:
    layer = randomized(config(**settings).cross_attention(WIDTH))
    memory = embeddings(rows, 5, seed=7)
    return layer, memory, LayerState(cross_kv=layer.project_kv(memory))


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_rows_of_one_source_equal_each_row_alone(form: Form) -> None:
    layer, _, state = cross_attention(2)
    layer.form = form
    x, lengths = embeddings(6, 3), Lengths(torch.tensor([5, 2]))
    batched = layer(x, Context(ids(x), memory=lengths), state)
    for row in range(6):
        source = slice(row // 3, row // 3 + 1)
        assert state.cross_kv is not None
        one_source = LayerState(cross_kv=(state.cross_kv[0][source], state.cross_kv[1][source]))
        alone = layer(x[row : row + 1], Context(ids(x)[:1], memory=Lengths(lengths.lengths[source])), one_source)
        assert_close(batched[row : row + 1], alone, ROUNDING)


def test_absorbed_cross_attention_equals_naive_with_weights_and_gradients() -> None:
    layer, memory, _ = cross_attention(2)
    x, received = embeddings(2, 3), []
    actual = []
    for form in ("naive", "absorbed"):
        layer.form = form
        state = LayerState(cross_kv=layer.project_kv(memory))
        context = Context(ids(x), attention_hook=lambda module, weights: received.append(weights))
        output = layer(x, context, state)
        actual.append([output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))])
    for one, another in zip(*actual, strict=True):
        assert_close(one, another, ROUNDING)
    assert_close(received[0], received[1], ROUNDING)


@pytest.mark.parametrize(("group", "form"), [(1, "absorbed"), (30, "naive")])
def test_many_rows_of_one_short_source_use_the_naive_order(group: int, form: Form) -> None:
    layer, memory, _ = cross_attention(1, kv_latent=8)
    x, state = embeddings(group, 1), LayerState(KVBuffer(3), layer.project_kv(memory))
    with recorded_forms(layer) as taken:
        layer(x, Context(ids(x)), state)
    assert taken == [form]


def test_cross_attention_caches_only_latents() -> None:
    _, _, state = cross_attention(2)
    assert KVCache(2, 1, [state]).nbytes() == 2 * 5 * 5 * 8  # rows × tokens × latent × bytes


# Configuration


def test_parameter_count_equals_the_paper_s() -> None:
    """d, n heads of d_h, d_c, d'_c and d_h^R as in §2.1; DeepSeek-V2's values are as wide as its keys."""
    layer = attention(rotary=Rotary(ROPE_DIM), bias=False, value_head_dim=4)
    d, n, d_h, d_c, d_q, d_r = WIDTH, 3, 4, 5, 7, ROPE_DIM
    down, up, out = d * (d_c + d_q + d_r), n * d_h * d_c * 2 + n * (d_h + d_r) * d_q, n * d_h * d
    norms = d_c + d_q
    assert sum(parameter.numel() for parameter in layer.parameters()) == down + up + out + norms


def test_deepseek_v2_caches_576_features_instead_of_32768() -> None:
    theirs = LatentAttentionConfig(
        heads=128, kv_latent=512, query_latent=1536, head_dim=128, rope_head_dim=64, value_head_dim=128
    )
    assert theirs.kv_features(5120) == 576
    assert theirs.sizes(5120).kv_heads * (128 + 128) == 32768


def test_default_sizes_follow_from_the_model_width() -> None:
    sizes = LatentAttentionConfig(heads=4, kv_latent=3, rope_head_dim=2).sizes(16)
    assert (sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.value_head_dim) == (4, 4, 6, 4)


@pytest.mark.parametrize(
    ("settings", "key", "problem"),
    [
        ({}, "kv_latent", "this key is required"),
        ({"kv_latent": 0}, "kv_latent", "found 0; expected greater than or equal to 1."),
        ({"kv_latent": 4, "query_latent": 0}, "query_latent", "found 0"),
        ({"kv_latent": 4, "rope_head_dim": -2}, "rope_head_dim", "found -2"),
        ({"kv_latent": 4, "scale": 0.0}, "scale", "found 0.0; expected greater than 0."),
        ({"kv_latent": 4, "eps": 0.0}, "eps", "found 0.0"),
        ({"kv_latent": 4, "dropout": 1.0}, "dropout", "found 1.0; expected less than 1."),
        ({"kv_latent": 4, "pattern": "slid(3)"}, "pattern", "'slid(3)' is not a pattern"),
        ({"kv_latent": 4, "kv_heads": 2}, "kv_heads", "unknown key"),
        ({"kv_latent": 4, "output_projection": False}, "output_projection", "unknown key"),
        ({"kv_latnet": 4}, "kv_latnet", "unknown key; did you mean 'kv_latent'?"),
    ],
)
def test_config_error_names_the_key(settings: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LatentAttentionConfig(**settings)
    assert caught.value.key == key
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("rope_head_dim", "position", "problem"),
    [
        (0, RotaryConfig(), "found 0; RoPE rotates pairs of features"),
        (3, RotaryConfig(), "found 3; RoPE rotates pairs of features"),
        (4, NoPositionConfig(), "found 4; expected 0"),
    ],
)
def test_rope_head_dim_that_does_not_fit_the_positions_is_an_error(rope_head_dim: int, position, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LatentAttentionConfig(kv_latent=4, rope_head_dim=rope_head_dim).rope_dim(16, position)
    assert caught.value.key == "rope_head_dim"
    assert problem in caught.value.problem
