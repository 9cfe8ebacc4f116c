"""Attention through a latent: both orders give the same, the cache holds no more than it should, and it is DeepSeek's.

Equalities are in float64, where both orders differ by the rounding of some dozens of sums; a wrong key, mask, angle or
scale shows from 1e-4 on.
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
    Cache,
    Causal,
    Context,
    Dilated,
    DynamicScaling,
    Full,
    Global,
    LatentConfig,
    LatentCrossAttention,
    LatentSelfAttention,
    LayerState,
    Lengths,
    LongScaling,
    NoPositionConfig,
    Pattern,
    Rotary,
    RotaryConfig,
    Sliding,
    Store,
    YarnScaling,
)
from regard.attention.latent import Form, HeadByHead
from regard.config import ConfigError

from .support import assert_close

ROUNDING = 1e-10
WIDTH, TURNED = 12, 4

PATTERNS = {
    "full": Full(),
    "causal": Causal(),
    "window": Causal() & Sliding(3),
    "dilated": Causal() & Dilated(2, 2),
    "global and window": Global(1) | Sliding(2),
}
ROTARIES = {
    "none": None,
    "rotary": Rotary(TURNED),
    "yarn": Rotary(TURNED, scaling=YarnScaling(factor=4.0, trained=8)),
    "dynamic": Rotary(TURNED, scaling=DynamicScaling(factor=4.0, trained=3)),
    "long": Rotary(TURNED, scaling=LongScaling(short_factors=(1.0, 2.0), long_factors=(3.0, 5.0), trained=3)),
}
every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=list(PATTERNS))
every_rotary = pytest.mark.parametrize("rotary", ROTARIES.values(), ids=list(ROTARIES))


def config(rotary_width: int = TURNED, **settings: Any) -> LatentConfig:
    small = {"heads": 3, "latent": 5, "query_latent": 7, "head_width": 4, "value_width": 6, "bias": True}
    return LatentConfig(**{**small, "rotary_width": rotary_width, **settings})


def moved(layer: nn.Module) -> Any:
    """In float64 and evaluation mode, no parameter where it starts."""
    torch.manual_seed(0)
    layer = layer.double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5 + 0.1)
    return layer


def attention(pattern: Pattern = PATTERNS["causal"], rotary: Rotary | None = None, **more: Any) -> LatentSelfAttention:
    settings = config(0 if rotary is None else TURNED, **more)
    return moved(LatentSelfAttention(settings, WIDTH, pattern, rotary))


def words(rows: int, length: int, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, WIDTH, generator=random, dtype=torch.float64)


def ids(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[:2], dtype=torch.long)


def run(layer: LatentSelfAttention, x: Tensor, form: Form | None = None, **more: Any) -> Tensor:
    """Everything at once, without a cache."""
    layer.form = form
    return layer(x, Context(ids(x), **more), LayerState())


@contextmanager
def forms_taken(layer: Any) -> Iterator[list[str]]:
    """Notes, for each call, whether all heads looked at one key or each at its own."""
    taken: list[str] = []
    weighed = layer.weighed

    def noting(query: Tensor, key: Tensor, *others: Any) -> Tensor:
        taken.append("absorbed" if key.shape[1] == 1 else "naive")
        return weighed(query, key, *others)

    layer.weighed = noting
    yield taken
    del layer.weighed


# What it computes


def by_the_paper(layer: LatentSelfAttention, x: Tensor) -> Tensor:
    """The formulas of DeepSeek-V2's §2.1 and appendix C, token by token and head by head."""
    heads, (plain, turned) = layer.heads, layer.parts
    values, (cosine, sine) = layer.sizes.value_width, layer.rotary.rotation(torch.arange(x.shape[1]), x.shape[1])

    def normed(x: Tensor, norm: nn.RMSNorm) -> Tensor:
        return x / (x.square().mean() + norm.eps).sqrt() * norm.weight

    def turn(x: Tensor, place: int) -> Tensor:
        pairs = torch.complex(x[: turned // 2], x[turned // 2 :])
        around = pairs * torch.complex(cosine[place].double(), sine[place].double())
        return torch.cat((around.real, around.imag))

    rows = []
    for row in x:
        latents = [normed(layer.source.down(h), layer.source.norm) for h in row]
        shared = [turn(layer.source.turned(h), place) for place, h in enumerate(row)]
        outputs = []
        for place, h in enumerate(row):
            queries = layer.query.up(normed(layer.query.down(h), layer.query.norm)).view(heads, plain + turned)
            mixed = []
            for head in range(heads):
                query = torch.cat((queries[head, :plain], turn(queries[head, plain:], place)))
                scores, seen = [], []
                for latent, part in zip(latents[: place + 1], shared[: place + 1], strict=True):
                    key = torch.cat((layer.key(latent).view(heads, plain)[head], part))
                    scores.append(query @ key * (plain + turned) ** -0.5)
                    seen.append(layer.value(latent).view(heads, values)[head])
                mixed.append(torch.stack(scores).softmax(dim=0) @ torch.stack(seen))
            outputs.append(layer.output(torch.cat(mixed)))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_it_is_what_the_paper_says(form: Form) -> None:
    layer, x = attention(rotary=ROTARIES["rotary"]), words(2, 5)
    assert_close(run(layer, x, form), by_the_paper(layer, x), ROUNDING)


@pytest.mark.parametrize("query_latent", [None, 7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_it_is_that_of_deepseek_v3_in_transformers(query_latent: int | None, bias: bool, form: Form) -> None:
    module = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    settings = module.DeepseekV3Config(
        hidden_size=WIDTH, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=query_latent, kv_lora_rank=5,
        qk_rope_head_dim=TURNED, qk_nope_head_dim=4, v_head_dim=6, attention_bias=bias, attn_implementation="eager",
    )  # fmt: skip
    theirs = moved(module.DeepseekV3Attention(settings, 0))
    ours = attention(rotary=Rotary(TURNED), query_latent=query_latent, bias=bias)
    ours.load_state_dict(of_deepseek({name: each.detach() for name, each in theirs.named_parameters()}))
    x = words(2, 6)
    cosine, sine = module.DeepseekV3RotaryEmbedding(settings)(x, torch.arange(6)[None])
    mask = torch.full((6, 6), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected, _ = theirs(x, (cosine, sine), mask)
    assert_close(run(ours, x, form), expected, 1e-6)  # their norm computes in float32


def of_deepseek(theirs: dict[str, Tensor], heads: int = 3, plain: int = 4, latent: int = 5) -> dict[str, Tensor]:
    """Our parameters from theirs: rows are dealt out, and of turned ones neighbours become halves."""

    def halves(rows: Tensor) -> Tensor:
        return torch.cat((rows[..., 0::2, :], rows[..., 1::2, :]), dim=-2)

    last = "q_b_proj.weight" if "q_b_proj.weight" in theirs else "q_proj.weight"
    queries = theirs[last].unflatten(0, (heads, -1))  # (heads, plain + turned, …)
    query = torch.cat((queries[:, :plain], halves(queries[:, plain:])), dim=1).flatten(0, 1)
    pairs = theirs["kv_b_proj.weight"].unflatten(0, (heads, -1))  # (heads, plain + values, latent)
    down = theirs["kv_a_proj_with_mqa.weight"]
    ours = {
        "query.weight" if last == "q_proj.weight" else "query.up.weight": query,
        "key.weight": pairs[:, :plain].flatten(0, 1),
        "value.weight": pairs[:, plain:].flatten(0, 1),
        "output.weight": theirs["o_proj.weight"],
        "source.down.weight": down[:latent],
        "source.turned.weight": halves(down[latent:]),
        "source.norm.weight": theirs["kv_a_layernorm.weight"],
    }
    if "q_a_proj.weight" in theirs:
        ours |= {"query.down.weight": theirs["q_a_proj.weight"], "query.norm.weight": theirs["q_a_layernorm.weight"]}
    if "o_proj.bias" in theirs:
        bias = theirs["kv_a_proj_with_mqa.bias"]
        ours |= {"output.bias": theirs["o_proj.bias"], "source.down.bias": bias[:latent]}
        ours |= {"source.turned.bias": halves(bias[latent:, None])[:, 0]}
        ours |= {"query.down.bias": theirs["q_a_proj.bias"]} if "q_a_proj.bias" in theirs else {}
    return ours


def test_a_scale_that_is_given_takes_the_place_of_the_usual_one() -> None:
    usual, given = attention(rotary=ROTARIES["rotary"]), attention(rotary=ROTARIES["rotary"], scale=8**-0.5 * 1.5)
    x = words(2, 5)
    with torch.no_grad():
        usual.query.up.weight *= 1.5
    assert_close(run(given, x), run(usual, x), ROUNDING)


# Both orders


@every_pattern
@every_rotary
def test_both_orders_give_the_same(pattern: Pattern, rotary: Rotary | None) -> None:
    layer, x = attention(pattern, rotary), words(3, 7)
    for more in ({}, {"lengths": torch.tensor([7, 4, 1])}):
        assert_close(run(layer, x, "absorbed", **more), run(layer, x, "naive", **more), ROUNDING)


@every_pattern
@pytest.mark.parametrize("rotary", [ROTARIES["none"], ROTARIES["yarn"]], ids=["none", "yarn"])
def test_both_orders_give_the_same_in_packed_documents(pattern: Pattern, rotary: Rotary | None) -> None:
    layer, x = attention(pattern, rotary), words(2, 7)
    numbers = torch.tensor([[0, 0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, -1, -1]])
    packed = run(layer, x, "absorbed", documents=numbers)
    assert_close(packed, run(layer, x, "naive", documents=numbers), ROUNDING)
    assert_close(packed[1:, 1:5], run(layer, x[1:, 1:5]), ROUNDING)


@every_pattern
@every_rotary
def test_both_orders_have_the_same_gradients(pattern: Pattern, rotary: Rotary | None) -> None:
    layer, x = attention(pattern, rotary), words(2, 6).requires_grad_()
    slope = words(2, 6, seed=3)
    found = []
    for form in ("naive", "absorbed"):
        made = run(layer, x, form, lengths=torch.tensor([6, 3]))
        found.append(torch.autograd.grad(made, [x, *layer.parameters()], slope))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, ROUNDING)
        assert one.abs().max() > 1e-6


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_who_watches_sees_the_same_weights_of_every_head(form: Form) -> None:
    layer, x = attention(PATTERNS["window"], ROTARIES["rotary"]), words(2, 5)
    seen: dict[str, Tensor] = {}
    for each in ("naive", form):
        run(layer, x, each, watch=lambda module, weights, each=each: seen.update({each: weights}))
    assert seen[form].shape == (2, 3, 5, 5)
    assert_close(seen[form].sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64), ROUNDING)
    assert_close(seen[form], seen["naive"], ROUNDING)


def test_heads_that_stand_in_one_row_each_see_what_their_token_sees() -> None:
    """Two rows of three tokens that look at the same keys, in two heads."""
    scope = Causal().over(6, 6)
    beside = HeadByHead.of(scope, heads=2, queries=3)
    token = [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert torch.equal(beside.mask()[0, 0], scope.mask()[0, 0, token])
    assert not beside.everything


def test_heads_that_stand_in_one_row_need_no_mask_where_tokens_need_none() -> None:
    assert HeadByHead.of(Causal().over(1, 4), heads=2, queries=1).everything


def test_dropout_falls_on_weights_in_training_alone() -> None:
    layer, x = attention(dropout=0.5), words(2, 5)
    assert torch.equal(run(layer, x), run(layer, x))
    layer.train()
    for form in ("naive", "absorbed"):
        assert not torch.equal(run(layer, x, form), run(layer, x, form))


# Behind a cache


def cache_of(layer: LatentSelfAttention, rows: int, capacity: int) -> Cache:
    return Cache(rows, capacity, [LayerState(layer.store(capacity))])


@torch.no_grad()
def step(layer: LatentSelfAttention, x: Tensor, cache: Cache, counts: Tensor | None = None) -> Tensor:
    made = layer(x, Context.after(cache, ids(x), counts), cache.layers[0])
    cache.advance(x.shape[1], counts)
    return made


CHUNKS = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=4)


@given(
    st.sampled_from([PATTERNS[name] for name in ("causal", "window", "dilated")]),
    st.sampled_from(list(ROTARIES.values())),
    st.sampled_from(["naive", "absorbed", None]),
    CHUNKS,
)
def test_ragged_chunks_behind_a_cache_equal_each_row_alone(
    pattern: Pattern, rotary: Rotary | None, form: Form | None, chunks: list[list[int]]
) -> None:
    layer = attention(pattern, rotary)
    x, cache, ends = words(2, 12), cache_of(layer, 2, 15), [0, 0]
    for counts in chunks:
        chunk = torch.stack([x[row, end : end + 3] for row, end in enumerate(ends)])
        layer.form = form
        made = step(layer, chunk, cache, torch.tensor(counts))
        for row, count in enumerate(counts):
            ends[row] += count
            alone = run(layer, x[row : row + 1, : ends[row]], "naive")
            assert_close(made[row, :count], alone[0, ends[row] - count :], ROUNDING)


@every_rotary
def test_rows_are_reordered_and_room_grows(rotary: Rotary | None) -> None:
    layer, x = attention(rotary=rotary), words(3, 6)
    cache = cache_of(layer, 3, 4)
    step(layer, x[:, :4], cache)
    cache.grow(6)
    cache.reorder(torch.tensor([2, 0, 0]))
    following = words(3, 2, seed=5)
    made = step(layer, following, cache)
    whole = torch.cat((x[[2, 0, 0], :4], following), dim=1)
    assert_close(made, run(layer, whole)[:, 4:], ROUNDING)


def test_a_step_is_absorbed_and_a_pass_without_a_cache_is_not() -> None:
    layer, x = attention(latent=8), words(2, 9)
    cache = cache_of(layer, 2, 9)
    with forms_taken(layer) as taken:
        run(layer, x)
        step(layer, x[:, :7], cache)  # a prompt: making keys and values once is cheaper than comparing latents
        step(layer, x[:, 7:8], cache)
        step(layer, x[:, 8:9], cache)
    assert taken == ["naive", "naive", "absorbed", "absorbed"]


@pytest.mark.parametrize("rotary", [None, Rotary(TURNED)], ids=["none", "rotary"])
def test_the_cache_holds_the_latent_and_the_shared_key_alone(rotary: Rotary | None) -> None:
    layer = attention(rotary=rotary)
    cache = cache_of(layer, 2, 9)
    step(layer, words(2, 3), cache)
    assert layer.cached == 5 + (0 if rotary is None else TURNED)
    assert cache.bytes() == 2 * 9 * layer.cached * 8


def test_a_window_bounds_what_is_kept() -> None:
    layer = attention(PATTERNS["window"], Rotary(TURNED))
    cache = cache_of(layer, 2, 100)
    step(layer, words(2, 1), cache)
    assert cache.bytes() == 2 * 3 * layer.cached * 8


# Cross-attention


def other(rows: int, **settings: Any) -> tuple[LatentCrossAttention, Tensor, LayerState]:
    layer = moved(config(**settings).cross_attention(WIDTH))
    memory = words(rows, 5, seed=7)
    return layer, memory, LayerState(memory=layer.source(memory))


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_rows_that_share_a_source_look_at_it_as_each_alone_does(form: Form) -> None:
    layer, _, state = other(2)
    layer.form = form
    x, seen = words(6, 3), Lengths(torch.tensor([5, 2]))
    together = layer(x, Context(ids(x), memory=seen), state)
    for row in range(6):
        source = slice(row // 3, row // 3 + 1)
        assert state.memory is not None
        own = LayerState(memory=(state.memory[0][source], state.memory[1][source]))
        alone = layer(x[row : row + 1], Context(ids(x)[:1], memory=Lengths(seen.lengths[source])), own)
        assert_close(together[row : row + 1], alone, ROUNDING)


def test_both_orders_of_cross_attention_give_the_same_values_weights_and_gradients() -> None:
    layer, memory, _ = other(2)
    x, seen = words(2, 3), []
    found = []
    for form in ("naive", "absorbed"):
        layer.form = form
        state = LayerState(memory=layer.source(memory))
        context = Context(ids(x), watch=lambda module, weights: seen.append(weights))
        made = layer(x, context, state)
        found.append([made, *torch.autograd.grad(made.square().sum(), list(layer.parameters()))])
    for one, another in zip(*found, strict=True):
        assert_close(one, another, ROUNDING)
    assert_close(seen[0], seen[1], ROUNDING)


@pytest.mark.parametrize(("group", "form"), [(1, "absorbed"), (30, "naive")])
def test_steps_of_many_rows_on_one_short_source_share_the_keys_made_of_it(group: int, form: Form) -> None:
    layer, memory, _ = other(1, latent=8)
    x, state = words(group, 1), LayerState(Store(3), layer.source(memory))
    with forms_taken(layer) as taken:
        layer(x, Context(ids(x)), state)
    assert taken == [form]


def test_of_the_encoders_output_only_latents_are_kept() -> None:
    _, _, state = other(2)
    assert Cache(2, 1, [state]).bytes() == 2 * 5 * 5 * 8  # rows, words, latent


# Settings


def test_parameters_are_those_of_the_paper() -> None:
    """d, n heads of d_h, d_c, d'_c and d_h^R as in §2.1; DeepSeek-V2's values are as wide as its keys."""
    layer = attention(rotary=Rotary(TURNED), bias=False, value_width=4)
    d, n, d_h, d_c, d_q, d_r = WIDTH, 3, 4, 5, 7, TURNED
    down, up, out = d * (d_c + d_q + d_r), n * d_h * d_c * 2 + n * (d_h + d_r) * d_q, n * d_h * d
    norms = d_c + d_q
    assert sum(parameter.numel() for parameter in layer.parameters()) == down + up + out + norms


def test_deepseek_v2_keeps_576_numbers_a_token_where_heads_of_its_size_keep_32768() -> None:
    theirs = LatentConfig(heads=128, latent=512, query_latent=1536, head_width=128, rotary_width=64, value_width=128)
    assert theirs.cached(5120) == 576
    assert theirs.sizes(5120).key_heads * (128 + 128) == 32768


def test_widths_left_out_follow_from_the_model() -> None:
    sizes = LatentConfig(heads=4, latent=3, rotary_width=2).sizes(16)
    assert (sizes.heads, sizes.key_heads, sizes.head_width, sizes.value_width) == (4, 4, 6, 4)


@pytest.mark.parametrize(
    ("settings", "key", "problem"),
    [
        ({}, "latent", "this key is required"),
        ({"latent": 0}, "latent", "found 0; expected greater than or equal to 1."),
        ({"latent": 4, "query_latent": 0}, "query_latent", "found 0"),
        ({"latent": 4, "rotary_width": -2}, "rotary_width", "found -2"),
        ({"latent": 4, "scale": 0.0}, "scale", "found 0.0; expected greater than 0."),
        ({"latent": 4, "epsilon": 0.0}, "epsilon", "found 0.0"),
        ({"latent": 4, "dropout": 1.0}, "dropout", "found 1.0; expected less than 1."),
        ({"latent": 4, "pattern": "slid(3)"}, "pattern", "'slid(3)' is not a pattern"),
        ({"latent": 4, "key_heads": 2}, "key_heads", "unknown key"),
        ({"latent": 4, "output": False}, "output", "unknown key"),
        ({"latnet": 4}, "latnet", "unknown key; did you mean 'latent'?"),
    ],
)
def test_wrong_settings_are_refused_by_key(settings: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LatentConfig(**settings)
    assert caught.value.key == key
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("rotary_width", "position", "problem"),
    [
        (0, RotaryConfig(), "found 0; rotary positions turn pairs of features"),
        (3, RotaryConfig(), "found 3; rotary positions turn pairs of features"),
        (4, NoPositionConfig(), "found 4; expected 0"),
    ],
)
def test_a_turned_part_that_does_not_fit_the_positions_is_refused(rotary_width: int, position, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LatentConfig(latent=4, rotary_width=rotary_width).turned_width(16, position)
    assert caught.value.key == "rotary_width"
    assert problem in caught.value.problem
