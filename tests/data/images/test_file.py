"""Reading one image file: orientation, crop, color, bit depth; errors name the file."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard import UserError
from regard.data.images.arrays import convert_images
from regard.data.images.file import ImageFormat, read_image
from tests.data.images.support import random_pixels, to_pillow


def test_center_crop_keeps_the_aspect_ratio() -> None:
    wide = np.zeros((1, 1, 4, 12), dtype=np.uint8)
    wide[..., 4:8] = 200
    assert (convert_images(wide, ImageFormat(size=(4, 4))) == 200).all()
    assert convert_images(wide, ImageFormat(size=(4, 4), fit="stretch")).min() < 20
    assert (convert_images(wide.transpose(0, 1, 3, 2), ImageFormat(size=(4, 4))) == 200).all()


def test_large_jpeg_decoded_at_reduced_size_is_nearly_equal(tmp_path: Path) -> None:
    y, x = np.mgrid[0:800, 0:1000]
    smooth = np.stack([(y * 255 / 800), (x * 255 / 1000), 255 - x * 255 / 1000]).astype(np.uint8)
    to_pillow(smooth).save(tmp_path / "a.jpg", quality=95)
    to_pillow(smooth).save(tmp_path / "a.png")
    one, other = (read_image(tmp_path / name, ImageFormat(size=(32, 32))) for name in ("a.jpg", "a.png"))
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 4


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    pixels = random_pixels(3, 4, 6, 1)[0]
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    to_pillow(pixels).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "a.png"), np.rot90(pixels, -1, (1, 2)))


def test_transparency_becomes_white(tmp_path: Path) -> None:
    clear = Image.fromarray(np.full((2, 2, 4), (10, 20, 30, 0), dtype=np.uint8))
    clear.putpixel((0, 0), (10, 20, 30, 255))
    clear.save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png")
    assert found[:, 0, 0].tolist() == [10, 20, 30]
    assert (found[:, 1, :] == 255).all()


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    deep = np.array([[0, 257, 65535], [128, 129, 32896]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").tolist() == [[[0, 1, 255], [0, 1, 128]]]


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)])
def test_image_keeps_its_channels_by_default(tmp_path: Path, mode: str, channels: int) -> None:
    Image.new(mode, (5, 4)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").shape == (channels, 4, 5)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp"])
def test_truncated_image_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    to_pillow(random_pixels(3, 60, 60, 1)[0]).save(path)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(UserError, match=rf"a\{suffix} is not an image, or damaged"):
        read_image(path)


def test_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.png: there is no such file"):
        read_image(tmp_path / "a.png")


def test_float_image_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(UserError, match=r"a\.tiff .*floats of an unknown range"):
        read_image(tmp_path / "a.tiff")


@pytest.mark.parametrize("side", range(1, 40, 3))
def test_crop_stays_inside_the_image(side: int) -> None:
    for height, width in ((7, 13), (13, 7), (31, 29)):
        for size in ((side, side), (side, 2 * side + 1)):
            assert convert_images(random_pixels(1, height, width, 1), ImageFormat(size=size)).shape == (1, 1, *size)


def test_pillow_is_imported_lazily() -> None:
    code = "import sys, regard.data.images.batches; print('PIL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
