"""Augmentation: batched operations equal a loop over images, and their random draws have the right distribution."""

import math

import pytest
import torch
from torch import Generator, Tensor

from regard import UserError
from regard.data.images.augment import AugmentConfig, Augmented, Box, erase, mix, shift_and_flip, symmetric_beta

ROWS, CHANNELS, HEIGHT, WIDTH = 7, 3, 6, 5
ALL = AugmentConfig(crop=2, flip=0.5, erase=0.5, mixup=0.8, cutmix=1.0, mix_probability=0.8)
EACH = [
    AugmentConfig(crop=2),
    AugmentConfig(flip=0.5),
    AugmentConfig(erase=0.5),
    AugmentConfig(mixup=0.4),
    AugmentConfig(cutmix=1.0),
    ALL,
]


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def batch(dtype: torch.dtype = torch.float64, rows: int = ROWS) -> Tensor:
    values = torch.randint(0, 256, (rows, CHANNELS, HEIGHT, WIDTH), generator=rng(1), dtype=torch.uint8)
    return values if dtype == torch.uint8 else values.to(dtype) / 255


def labels(rows: int = ROWS, empty: int = 0) -> Tensor:
    return torch.cat((torch.arange(rows - empty), torch.full((empty,), -1)))


def boxes() -> Box:
    """Boxes inside the image, one over the full image, and empty ones."""
    top, left = torch.tensor([0, 1, 2, 0, 5, 3, 0]), torch.tensor([0, 2, 0, 0, 4, 3, 0])
    bottom, right = torch.tensor([6, 3, 4, 0, 6, 6, 1]), torch.tensor([5, 4, 5, 0, 5, 3, 1])
    return Box(top, bottom, left, right)


def same(one: Augmented, other: Augmented) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_shift_and_flip_equals_crop_of_a_padded_image(dtype: torch.dtype) -> None:
    pixels, padding = batch(dtype), 3
    down, right = torch.tensor([0, 3, -3, 1, -1, 2, 0]), torch.tensor([0, -3, 3, 2, -2, 0, 1])
    flipped = torch.tensor([False, True, False, True, True, False, True])
    moved = shift_and_flip(pixels, down, right, flipped)
    for row in range(ROWS):
        padded = torch.zeros(CHANNELS, HEIGHT + 2 * padding, WIDTH + 2 * padding, dtype=dtype)
        padded[:, padding : padding + HEIGHT, padding : padding + WIDTH] = pixels[row]
        top, left = padding + int(down[row]), padding + int(right[row])
        expected = padded[:, top : top + HEIGHT, left : left + WIDTH]
        assert torch.equal(moved[row], expected.flip(2) if flipped[row] else expected)


def test_image_shifted_out_of_view_is_black() -> None:
    far = torch.full((ROWS,), HEIGHT + WIDTH)
    assert not shift_and_flip(batch(), far, 0 * far, far > 0).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_erase_equals_a_loop(dtype: torch.dtype) -> None:
    pixels, box = batch(dtype), boxes()
    expected = pixels.clone()
    for row, (top, bottom, left, right) in enumerate(torch.stack(box, dim=1).tolist()):
        for channel in range(CHANNELS):
            mean = pixels[row, channel].double().mean()
            expected[row, channel, top:bottom, left:right] = mean if dtype != torch.uint8 else mean.round()
    torch.testing.assert_close(erase(pixels, box), expected)


@pytest.mark.parametrize("empty", [0, 2, 6, 7])
def test_mixup_equals_a_loop(empty: int) -> None:
    pixels, target = batch(), labels(empty=empty)
    weight = torch.rand(ROWS, generator=rng())
    result = mix(pixels, target, weight)
    for row in range(ROWS):
        other = row if row >= ROWS - empty else (row + 1) % (ROWS - empty)
        own = float(weight[row])
        torch.testing.assert_close(result.pixels[row], own * pixels[row] + (1 - own) * pixels[other])
        assert result.mixed_labels[row] == target[other]
    assert torch.equal(result.labels, target)
    assert torch.equal(result.weight, weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
@pytest.mark.parametrize("empty", [0, 3])
def test_cutmix_equals_a_loop(dtype: torch.dtype, empty: int) -> None:
    pixels, target, box = batch(dtype), labels(empty=empty), boxes()
    result = mix(pixels, target, box=box)
    for row, (top, bottom, left, right) in enumerate(torch.stack(box, dim=1).tolist()):
        other = row if row >= ROWS - empty else (row + 1) % (ROWS - empty)
        expected = pixels[row].clone()
        expected[:, top:bottom, left:right] = pixels[other, :, top:bottom, left:right]
        assert torch.equal(result.pixels[row], expected)
        area = (bottom - top) * (right - left)
        torch.testing.assert_close(float(result.weight[row]), 1 - area / (HEIGHT * WIDTH), rtol=0, atol=1e-6)
    assert result.pixels.dtype == dtype


def test_mixup_converts_uint8_to_float() -> None:
    result = mix(batch(torch.uint8), labels(), torch.ones(ROWS))
    torch.testing.assert_close(result.pixels, batch(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_without_augmentation_nothing_changes_and_nothing_is_sampled(dtype: torch.dtype) -> None:
    pixels, target, generator = batch(dtype), labels(empty=2), rng()
    before = generator.get_state()
    result = AugmentConfig().apply(pixels, target, generator)
    assert result.pixels is pixels
    assert torch.equal(result.labels, target)
    assert torch.equal(result.mixed_labels, target)
    assert torch.equal(result.weight, torch.ones(ROWS))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("config", EACH)
@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_augmentation_depends_on_the_seed_only(config: AugmentConfig, dtype: torch.dtype) -> None:
    pixels, target = batch(dtype), labels()
    before = pixels.clone()
    one, again, other = (config.apply(pixels, target, rng(seed)) for seed in (3, 3, 4))
    assert same(one, again)
    assert not torch.equal(one.pixels, other.pixels)
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("config", EACH)
def test_default_generator_is_the_global_one(config: AugmentConfig) -> None:
    torch.manual_seed(5)
    one = config.apply(batch(), labels())
    middle = torch.get_rng_state()
    two = config.apply(batch(), labels())
    torch.set_rng_state(middle)
    assert same(config.apply(batch(), labels()), two)
    assert not torch.equal(one.pixels, two.pixels)


@pytest.mark.parametrize("config", EACH)
@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_shapes_dtypes_and_empty_rows_are_preserved(config: AugmentConfig, dtype: torch.dtype) -> None:
    pixels, target = batch(dtype), labels(empty=2)
    result = config.apply(pixels, target, rng())
    assert result.pixels.shape == pixels.shape
    assert result.pixels.dtype == (torch.float32 if config.mixup and dtype == torch.uint8 else dtype)
    assert (result.weight.shape, result.weight.dtype) == (target.shape, torch.float32)
    assert result.mixed_labels[-2:].tolist() == [-1, -1]
    assert (result.mixed_labels[:-2] >= 0).all()
    assert ((result.weight >= 0) & (result.weight <= 1)).all()


@pytest.mark.parametrize("config", EACH)
def test_augmentation_does_not_synchronize(config: AugmentConfig) -> None:
    # Tensors on the meta device have no values: reading one, or deriving a shape from it, would fail.
    result = config.apply(batch().to("meta"), labels().to("meta"))
    assert result.pixels.shape == (ROWS, CHANNELS, HEIGHT, WIDTH)


def many_images(rows: int = 20_000) -> Tensor:
    """Images in which all pixels differ."""
    return torch.arange(1, 17, dtype=torch.float64).view(1, 1, 4, 4).expand(rows, 1, 4, 4)


def test_flips_have_their_probability() -> None:
    result = AugmentConfig(flip=0.3).apply(many_images(), labels(20_000), rng()).pixels
    fraction = float((result[:, 0, 0, 0] == 4).double().mean())
    assert abs(fraction - 0.3) < 0.015


def test_crop_offsets_are_uniform() -> None:
    result = AugmentConfig(crop=1).apply(many_images(), labels(20_000), rng()).pixels
    counts = torch.bincount(result[:, 0, 1, 1].long(), minlength=17)[[1, 2, 3, 5, 6, 7, 9, 10, 11]]
    assert int(counts.sum()) == 20_000
    assert ((counts / 20_000 - 1 / 9).abs() < 0.01).all()


def test_erased_boxes_have_their_probability_and_area() -> None:
    pixels = torch.rand(4000, 1, 24, 24, generator=rng(1), dtype=torch.float64)
    result = AugmentConfig(erase=0.4).apply(pixels, labels(4000), rng()).pixels
    areas = (result != pixels).double().mean(dim=(1, 2, 3))
    erased = areas[areas > 0]
    assert abs(len(erased) / 4000 - 0.4) < 0.03
    assert 0.01 < float(erased.min()) < 0.05
    assert 0.25 < float(erased.max()) < 0.38
    assert abs(float(erased.mean()) - (0.02 + 1 / 3) / 2) < 0.02


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 3.0])
def test_symmetric_beta_has_the_right_distribution(alpha: float) -> None:
    generator = rng()
    drawn = symmetric_beta(alpha, *(torch.rand(200_000, generator=generator) for _ in range(2))).double()
    assert ((drawn >= 0) & (drawn <= 1)).all()
    # The moments of Beta(α, α).
    assert abs(float(drawn.mean()) - 0.5) < 0.005
    assert abs(float(drawn.var()) - 1 / (4 * (2 * alpha + 1))) < 0.002
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert abs(float((drawn - 0.5).pow(4).mean()) - fourth) < 0.001
    # The cumulative distribution function, where it has a closed form.
    for x in (0.1, 0.3, 0.7):
        known = {1.0: x, 0.5: 2 / math.pi * math.asin(math.sqrt(x))}.get(alpha)
        assert known is None or abs(float((drawn < x).double().mean()) - known) < 0.005


def test_symmetric_beta_is_finite_at_the_ends() -> None:
    ends = torch.tensor([0.0, 1 - 2**-24, 0.5]).repeat_interleave(3)
    for alpha in (0.01, 0.2, 1.0, 100.0):
        assert symmetric_beta(alpha, ends, torch.tensor([0.0, 0.25, 0.5]).repeat(3)).isfinite().all()


def test_mixup_and_cutmix_split_the_mixed_images_evenly() -> None:
    pixels = torch.rand(4000, 1, 12, 12, generator=rng(1), dtype=torch.float64)
    config = AugmentConfig(mixup=1.0, cutmix=1.0, mix_probability=0.5)
    result = config.apply(pixels, labels(4000), rng())
    other = pixels.roll(-1, 0)
    unchanged = (result.pixels == pixels).flatten(1)
    cut = ((result.pixels == other).flatten(1) | unchanged).all(dim=1) & ~unchanged.all(dim=1)
    blended = ~unchanged.any(dim=1) & ~cut
    assert abs(float(blended.double().mean()) - 0.25) < 0.03
    assert abs(float(cut.double().mean()) - 0.25) < 0.04
    assert (result.weight[unchanged.all(dim=1)] == 1).all()
    # The weight of an image's label is the fraction of its pixels that is unchanged.
    torch.testing.assert_close(result.weight[cut].double(), unchanged[cut].double().mean(dim=1), rtol=0, atol=1e-6)


def test_cutmix_keeps_more_than_half_on_average() -> None:
    result = AugmentConfig(cutmix=1.0).apply(torch.zeros(20_000, 1, 32, 32), labels(20_000), rng())
    # 1 − λ is a half on average, but a box near an edge is clipped.
    assert 0.55 < float(result.weight.mean()) < 0.70


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop": -1},
        {"flip": 1.5},
        {"erase": -0.1},
        {"mixup": -1.0},
        {"cutmix": -1.0},
        {"mix_probability": 2.0},
        {"x": 1},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        AugmentConfig(**wrong)
