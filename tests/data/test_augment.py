"""Augmentation: one operation does to a batch what a loop does to each picture, and chance is what it should be."""

import math

import pytest
import torch
from torch import Generator, Tensor

from regard import UserError
from regard.data.augment import AugmentConfig, Augmented, Box, erase, mix, move, symmetric_beta

ROWS, CHANNELS, HEIGHT, WIDTH = 7, 3, 6, 5
ALL = AugmentConfig(crop=2, flip=0.5, erase=0.5, mixup=0.8, cutmix=1.0, mixed=0.8)
EACH = [
    AugmentConfig(crop=2),
    AugmentConfig(flip=0.5),
    AugmentConfig(erase=0.5),
    AugmentConfig(mixup=0.4),
    AugmentConfig(cutmix=1.0),
    ALL,
]


def dice(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def batch(kind: torch.dtype = torch.float64, rows: int = ROWS) -> Tensor:
    values = torch.randint(0, 256, (rows, CHANNELS, HEIGHT, WIDTH), generator=dice(1), dtype=torch.uint8)
    return values if kind == torch.uint8 else values.to(kind) / 255


def labels(rows: int = ROWS, empty: int = 0) -> Tensor:
    return torch.cat((torch.arange(rows - empty), torch.full((empty,), -1)))


def boxes() -> Box:
    """Some inside, one of the whole picture, some empty."""
    top, left = torch.tensor([0, 1, 2, 0, 5, 3, 0]), torch.tensor([0, 2, 0, 0, 4, 3, 0])
    bottom, right = torch.tensor([6, 3, 4, 0, 6, 6, 1]), torch.tensor([5, 4, 5, 0, 5, 3, 1])
    return Box(top, bottom, left, right)


def same(one: Augmented, other: Augmented) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("kind", [torch.float64, torch.uint8])
def test_moving_and_mirroring_are_what_a_crop_from_a_black_ground_gives(kind: torch.dtype) -> None:
    pixels, padding = batch(kind), 3
    down, right = torch.tensor([0, 3, -3, 1, -1, 2, 0]), torch.tensor([0, -3, 3, 2, -2, 0, 1])
    flipped = torch.tensor([False, True, False, True, True, False, True])
    made = move(pixels, down, right, flipped)
    for row in range(ROWS):
        ground = torch.zeros(CHANNELS, HEIGHT + 2 * padding, WIDTH + 2 * padding, dtype=kind)
        ground[:, padding : padding + HEIGHT, padding : padding + WIDTH] = pixels[row]
        top, left = padding + int(down[row]), padding + int(right[row])
        wanted = ground[:, top : top + HEIGHT, left : left + WIDTH]
        assert torch.equal(made[row], wanted.flip(2) if flipped[row] else wanted)


def test_what_is_moved_away_altogether_is_black() -> None:
    far = torch.full((ROWS,), HEIGHT + WIDTH)
    assert not move(batch(), far, 0 * far, far > 0).any()


@pytest.mark.parametrize("kind", [torch.float64, torch.uint8])
def test_erasing_is_what_a_loop_over_pictures_does(kind: torch.dtype) -> None:
    pixels, box = batch(kind), boxes()
    wanted = pixels.clone()
    for row, (top, bottom, left, right) in enumerate(torch.stack(box, dim=1).tolist()):
        for channel in range(CHANNELS):
            mean = pixels[row, channel].double().mean()
            wanted[row, channel, top:bottom, left:right] = mean if kind != torch.uint8 else mean.round()
    torch.testing.assert_close(erase(pixels, box), wanted)


@pytest.mark.parametrize("empty", [0, 2, 6, 7])
def test_mixup_is_what_a_loop_over_pictures_does(empty: int) -> None:
    pixels, given = batch(), labels(empty=empty)
    share = torch.rand(ROWS, generator=dice())
    made = mix(pixels, given, share)
    for row in range(ROWS):
        other = row if row >= ROWS - empty else (row + 1) % (ROWS - empty)
        kept = float(share[row])
        torch.testing.assert_close(made.pixels[row], kept * pixels[row] + (1 - kept) * pixels[other])
        assert made.others[row] == given[other]
    assert torch.equal(made.labels, given)
    assert torch.equal(made.share, share)


@pytest.mark.parametrize("kind", [torch.float64, torch.uint8])
@pytest.mark.parametrize("empty", [0, 3])
def test_cutmix_is_what_a_loop_over_pictures_does(kind: torch.dtype, empty: int) -> None:
    pixels, given, box = batch(kind), labels(empty=empty), boxes()
    made = mix(pixels, given, box=box)
    for row, (top, bottom, left, right) in enumerate(torch.stack(box, dim=1).tolist()):
        other = row if row >= ROWS - empty else (row + 1) % (ROWS - empty)
        wanted = pixels[row].clone()
        wanted[:, top:bottom, left:right] = pixels[other, :, top:bottom, left:right]
        assert torch.equal(made.pixels[row], wanted)
        area = (bottom - top) * (right - left)
        torch.testing.assert_close(float(made.share[row]), 1 - area / (HEIGHT * WIDTH), rtol=0, atol=1e-6)
    assert made.pixels.dtype == kind


def test_mixup_makes_fractions_of_bytes() -> None:
    made = mix(batch(torch.uint8), labels(), torch.ones(ROWS))
    torch.testing.assert_close(made.pixels, batch(torch.float32))


@pytest.mark.parametrize("kind", [torch.float64, torch.uint8])
def test_with_everything_off_a_batch_is_left_alone_and_nothing_is_drawn(kind: torch.dtype) -> None:
    pixels, given, generator = batch(kind), labels(empty=2), dice()
    before = generator.get_state()
    made = AugmentConfig().apply(pixels, given, generator)
    assert made.pixels is pixels
    assert torch.equal(made.labels, given)
    assert torch.equal(made.others, given)
    assert torch.equal(made.share, torch.ones(ROWS))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("config", EACH)
@pytest.mark.parametrize("kind", [torch.float64, torch.uint8])
def test_the_same_seed_gives_the_same_changes_and_another_others(config: AugmentConfig, kind: torch.dtype) -> None:
    pixels, given = batch(kind), labels()
    before = pixels.clone()
    one, again, other = (config.apply(pixels, given, dice(seed)) for seed in (3, 3, 4))
    assert same(one, again)
    assert not torch.equal(one.pixels, other.pixels)
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("config", EACH)
def test_without_a_generator_the_numbers_are_the_devices_own(config: AugmentConfig) -> None:
    torch.manual_seed(5)
    one = config.apply(batch(), labels())
    middle = torch.get_rng_state()
    two = config.apply(batch(), labels())
    torch.set_rng_state(middle)
    assert same(config.apply(batch(), labels()), two)
    assert not torch.equal(one.pixels, two.pixels)


@pytest.mark.parametrize("config", EACH)
@pytest.mark.parametrize("kind", [torch.float64, torch.uint8])
def test_shapes_and_kinds_stay_and_empty_rows_keep_their_label(config: AugmentConfig, kind: torch.dtype) -> None:
    pixels, given = batch(kind), labels(empty=2)
    made = config.apply(pixels, given, dice())
    assert made.pixels.shape == pixels.shape
    assert made.pixels.dtype == (torch.float32 if config.mixup and kind == torch.uint8 else kind)
    assert (made.share.shape, made.share.dtype) == (given.shape, torch.float32)
    assert made.others[-2:].tolist() == [-1, -1]
    assert (made.others[:-2] >= 0).all()
    assert ((made.share >= 0) & (made.share <= 1)).all()


@pytest.mark.parametrize("config", EACH)
def test_all_of_it_runs_where_nothing_can_be_asked_of_the_device(config: AugmentConfig) -> None:
    # The meta device has no numbers: whatever looked at one, or made a shape of it, would fail.
    made = config.apply(batch().to("meta"), labels().to("meta"))
    assert made.pixels.shape == (ROWS, CHANNELS, HEIGHT, WIDTH)


def many(rows: int = 20_000) -> Tensor:
    """Pictures whose columns and rows are all different."""
    return torch.arange(1, 17, dtype=torch.float64).view(1, 1, 4, 4).expand(rows, 1, 4, 4)


def test_as_many_are_mirrored_as_the_share_says() -> None:
    made = AugmentConfig(flip=0.3).apply(many(), labels(20_000), dice()).pixels
    share = float((made[:, 0, 0, 0] == 4).double().mean())
    assert abs(share - 0.3) < 0.015


def test_every_place_of_a_crop_is_as_likely_as_any_other() -> None:
    made = AugmentConfig(crop=1).apply(many(), labels(20_000), dice()).pixels
    seen = torch.bincount(made[:, 0, 1, 1].long(), minlength=17)[[1, 2, 3, 5, 6, 7, 9, 10, 11]]
    assert int(seen.sum()) == 20_000
    assert ((seen / 20_000 - 1 / 9).abs() < 0.01).all()


def test_as_many_are_erased_as_the_share_says_and_a_third_at_most() -> None:
    pixels = torch.rand(4000, 1, 24, 24, generator=dice(1), dtype=torch.float64)
    made = AugmentConfig(erase=0.4).apply(pixels, labels(4000), dice()).pixels
    areas = (made != pixels).double().mean(dim=(1, 2, 3))
    touched = areas[areas > 0]
    assert abs(len(touched) / 4000 - 0.4) < 0.03
    assert 0.01 < float(touched.min()) < 0.05
    assert 0.25 < float(touched.max()) < 0.38
    assert abs(float(touched.mean()) - (0.02 + 1 / 3) / 2) < 0.02


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 3.0])
def test_proportions_are_distributed_as_a_symmetric_beta(alpha: float) -> None:
    generator = dice()
    drawn = symmetric_beta(alpha, *(torch.rand(200_000, generator=generator) for _ in range(2))).double()
    assert ((drawn >= 0) & (drawn <= 1)).all()
    # The moments of Beta(α, α).
    assert abs(float(drawn.mean()) - 0.5) < 0.005
    assert abs(float(drawn.var()) - 1 / (4 * (2 * alpha + 1))) < 0.002
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert abs(float((drawn - 0.5).pow(4).mean()) - fourth) < 0.001
    # Its distribution function where that is known in closed form.
    for place in (0.1, 0.3, 0.7):
        known = {1.0: place, 0.5: 2 / math.pi * math.asin(math.sqrt(place))}.get(alpha)
        assert known is None or abs(float((drawn < place).double().mean()) - known) < 0.005


def test_proportions_are_numbers_at_the_ends_of_the_range_as_well() -> None:
    ends = torch.tensor([0.0, 1 - 2**-24, 0.5]).repeat_interleave(3)
    for alpha in (0.01, 0.2, 1.0, 100.0):
        assert symmetric_beta(alpha, ends, torch.tensor([0.0, 0.25, 0.5]).repeat(3)).isfinite().all()


def test_mixup_and_cutmix_share_the_pictures_evenly_and_leave_the_others() -> None:
    pixels = torch.rand(4000, 1, 12, 12, generator=dice(1), dtype=torch.float64)
    config = AugmentConfig(mixup=1.0, cutmix=1.0, mixed=0.5)
    made = config.apply(pixels, labels(4000), dice())
    other = pixels.roll(-1, 0)
    kept = (made.pixels == pixels).flatten(1)
    cut = ((made.pixels == other).flatten(1) | kept).all(dim=1) & ~kept.all(dim=1)
    laid = ~kept.any(dim=1) & ~cut
    assert abs(float(laid.double().mean()) - 0.25) < 0.03
    assert abs(float(cut.double().mean()) - 0.25) < 0.04
    assert (made.share[kept.all(dim=1)] == 1).all()
    # What is kept of a picture is what its label counts for.
    torch.testing.assert_close(made.share[cut].double(), kept[cut].double().mean(dim=1), rtol=0, atol=1e-6)


def test_cutmix_keeps_half_of_a_picture_on_average_and_more_at_the_edges() -> None:
    made = AugmentConfig(cutmix=1.0).apply(torch.zeros(20_000, 1, 32, 32), labels(20_000), dice())
    # Inside, 1 − λ is a half on average; a middle near an edge loses part of the box.
    assert 0.55 < float(made.share.mean()) < 0.70


@pytest.mark.parametrize(
    "wrong", [{"crop": -1}, {"flip": 1.5}, {"erase": -0.1}, {"mixup": -1.0}, {"cutmix": -1.0}, {"mixed": 2.0}, {"x": 1}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        AugmentConfig(**wrong)
