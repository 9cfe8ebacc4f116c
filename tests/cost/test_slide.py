"""The two "??" of seed 000, against arithmetic done by hand."""

import pytest

from regard.cost.slide import Answer, answer, slide_model, slide_parameters
from regard.errors import UserError

D, T, N, WINDOW = 12_288, 131_072, 96, 32_768


@pytest.fixture(scope="module")
def answered() -> Answer:
    return answer(10**11, price=3.0)


def test_the_model_has_the_numbers_of_the_slide() -> None:
    config = slide_model()
    heads = config.decoder.attention
    assert (config.vocabulary, config.width, config.decoder.layers, heads.heads) == (T, D, N, 96)
    assert heads.sizes(D).head_width == 128


def test_the_slide_s_own_formula_gives_74_billion() -> None:
    # 131,072 · 12,288 = 1,610,612,736 and 5 · 96 · 12,288² = 480 · 150,994,944 = 72,477,573,120.
    assert slide_parameters() == 1_610_612_736 + 72_477_573_120 == 74_088_185_856


def test_with_the_output_projection_and_a_wide_feed_forward_there_are_175_billion(answered: Answer) -> None:
    # 12 · 96 · 12,288² = 173,946,175,488; and in each layer b₁ and b₂ (5d) and two norms (4d), a last norm (2d).
    matrices = 1_610_612_736 + 173_946_175_488
    assert matrices == 175_556_788_224
    assert answered.cost.parameters == matrices + 96 * 9 * D + 2 * D == 175_567_429_632
    assert 2 * answered.cost.parameters == pytest.approx(351e9, rel=1e-3)  # bytes


def test_training_is_three_times_forward_for_each_token(answered: Answer) -> None:
    # Two FLOPs for each weight of a matrix, and 4dN for each token looked at: (n + 256) / 2 of them on the mean.
    forward = 2 * 175_556_788_224 + 4 * D * N * (WINDOW + 256) // 2
    assert forward == 351_113_576_448 + 77_913_391_104
    assert answered.cost.flops_per_token == (0, forward)
    assert answered.training_flops == 3 * forward * 10**11
    assert answered.training_flops == pytest.approx(1.287e23, rel=1e-3)
    assert answered.training_flops_by_parameters == pytest.approx(1.05e23, rel=5e-3)
    assert answered.training_flops_by_the_slide == pytest.approx(4.445e22, rel=1e-3)


def test_ten_times_the_tokens_take_ten_times_the_effort(answered: Answer) -> None:
    more = answer(10**12, price=3.0)
    assert more.training_flops == 10 * answered.training_flops
    assert more.training_flops_by_parameters == pytest.approx(1.05e24, rel=5e-3)


def test_hours_and_money_follow_from_rate_and_price(answered: Answer) -> None:
    # 1.287e23 / (0.4 · 770e12) = 4.1788e8 seconds.
    assert answered.training_hours == pytest.approx(116_079, rel=1e-4)
    assert answered.training_money == pytest.approx(3 * 116_079, rel=1e-4)
    assert answer(10**11, price=0.0).training_money == 0


def test_eighteen_bytes_a_parameter_need_22_gpus(answered: Answer) -> None:
    # 18 · 175,567,429,632 = 3.160e12, and 139 GiB = 1.4925e11.
    assert answered.least_gpus == 22


def test_a_generated_token_meets_every_weight_and_every_token_before_it(answered: Answer) -> None:
    assert answered.first_token_flops == 351_113_576_448 + 4 * D * N
    assert answered.last_token_flops == 351_113_576_448 + 4 * D * N * WINDOW == 505_732_399_104
    assert answered.prompt_flops == WINDOW * (351_113_576_448 + 77_913_391_104)


def test_the_cache_of_a_window_takes_154_gigabytes(answered: Answer) -> None:
    assert answered.cache_bytes == 2 * 2 * N * D * WINDOW == 154_618_822_656


def test_a_token_alone_waits_for_memory(answered: Answer) -> None:
    # 351.1 GB of weights and 154.6 GB of cache at 4.22 TB/s; shared by 64 rows, 5.5 GB and 154.6 GB.
    assert answered.token_seconds() == pytest.approx(505.754e9 / 4.22e12, rel=1e-4)
    assert answered.token_seconds(64) == pytest.approx((351.135e9 / 64 + 154.619e9) / 4.22e12, rel=1e-4)
    assert answered.million_tokens_money() == pytest.approx(1e6 * 0.119847 / 3600 * 3, rel=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [{"price": -1.0}, {"price": 1.0, "share": 0.0}, {"price": 1.0, "hardware": "abacus"}, {"price": 1.0, "tokens": 0}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        answer(**{"tokens": 1, **wrong})  # type: ignore[arg-type]
