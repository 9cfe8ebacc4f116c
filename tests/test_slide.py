"""The two "??" of lecture 000 (scripts/doc_figures/slide.py) against arithmetic done by hand."""

import pytest
from doc_figures.slide import SlideCost, slide_cost, slide_model, slide_parameters

from regard.errors import UserError

WIDTH, VOCAB_SIZE, LAYERS, CONTEXT = 12_288, 131_072, 96, 32_768
MATRICES = 175_556_788_224


@pytest.fixture(scope="module")
def example() -> SlideCost:
    return slide_cost(10**11, price_per_hour=3.0)


def test_model_has_the_slides_hyperparameters() -> None:
    config = slide_model()
    attention = config.decoder.attention
    assert (config.vocab_size, config.width, config.decoder.layers, attention.heads) == (VOCAB_SIZE, WIDTH, LAYERS, 96)
    assert attention.sizes(WIDTH).head_dim == 128


def test_slides_formula_gives_74_billion_parameters() -> None:
    # 131,072 · 12,288 = 1,610,612,736 and 5 · 96 · 12,288² = 480 · 150,994,944 = 72,477,573,120.
    assert slide_parameters() == 1_610_612_736 + 72_477_573_120 == 74_088_185_856


def test_output_projection_and_wide_feed_forward_make_175_billion(example: SlideCost) -> None:
    # 12 · 96 · 12,288² = 173,946,175,488; and in each layer b₁ and b₂ (5d) and two norms (4d), a final norm (2d).
    assert MATRICES == 1_610_612_736 + 173_946_175_488
    assert example.cost.parameters == MATRICES + 96 * 9 * WIDTH + 2 * WIDTH == 175_567_429_632
    assert 2 * example.cost.parameters == pytest.approx(351e9, rel=1e-3)  # bytes


def test_training_flops_are_three_times_forward(example: SlideCost) -> None:
    # Two FLOPs for each weight of a matrix, and 4dN for each key attended to: (n + 256) / 2 of them on average.
    forward = 2 * MATRICES + 4 * WIDTH * LAYERS * (CONTEXT + 256) // 2
    assert forward == 351_113_576_448 + 77_913_391_104
    assert example.cost.flops_per_token == (0, forward)
    assert example.training_flops == 3 * forward * 10**11
    assert example.training_flops == pytest.approx(1.287e23, rel=1e-3)
    assert example.training_flops_by_parameters == pytest.approx(1.05e23, rel=5e-3)
    assert example.training_flops_by_slide_parameters == pytest.approx(4.445e22, rel=1e-3)


def test_training_flops_grow_with_the_tokens(example: SlideCost) -> None:
    more = slide_cost(10**12, price_per_hour=3.0)
    assert more.training_flops == 10 * example.training_flops
    assert more.training_flops_by_parameters == pytest.approx(1.05e24, rel=5e-3)


def test_training_hours_and_price(example: SlideCost) -> None:
    # 1.287e23 / (0.4 · 770e12) = 4.1788e8 seconds.
    assert example.training_hours == pytest.approx(116_079, rel=1e-4)
    assert example.training_price == pytest.approx(3 * 116_079, rel=1e-4)
    assert slide_cost(10**11, price_per_hour=0.0).training_price == 0


def test_model_state_of_18_bytes_per_parameter_needs_22_gpus(example: SlideCost) -> None:
    # 18 · 175,567,429,632 = 3.160e12, and 139 GiB = 1.4925e11.
    assert example.min_gpus == 22


def test_generated_token_flops_grow_with_the_context(example: SlideCost) -> None:
    assert example.first_token_flops == 351_113_576_448 + 4 * WIDTH * LAYERS
    assert example.last_token_flops == 351_113_576_448 + 4 * WIDTH * LAYERS * CONTEXT == 505_732_399_104
    assert example.prompt_flops == CONTEXT * (351_113_576_448 + 77_913_391_104)


def test_kv_cache_of_a_full_context_takes_154_gigabytes(example: SlideCost) -> None:
    assert example.kv_cache_bytes == 2 * 2 * LAYERS * WIDTH * CONTEXT == 154_618_822_656


def test_generation_is_bound_by_memory(example: SlideCost) -> None:
    # 351.1 GB of weights and 154.6 GB of cache at 4.22 TB/s; in a batch of 64, 5.5 GB and 154.6 GB.
    assert example.token_seconds() == pytest.approx(505.754e9 / 4.22e12, rel=1e-4)
    assert example.token_seconds(64) == pytest.approx((351.135e9 / 64 + 154.619e9) / 4.22e12, rel=1e-4)
    assert example.million_tokens_price() == pytest.approx(1e6 * 0.119847 / 3600 * 3, rel=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"price_per_hour": -1.0}, {"utilization": 0.0}, {"hardware": "abacus"}, {"tokens": 0}]
)
def test_invalid_argument_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        slide_cost(**{"tokens": 1, "price_per_hour": 1.0, **wrong})  # type: ignore[arg-type]
