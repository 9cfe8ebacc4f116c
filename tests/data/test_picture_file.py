"""One picture from one file: turned, cut, in grey or colour, and named where it is none."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard import UserError
from regard.data.picture_arrays import reframed
from regard.data.picture_file import Frame, read_picture
from tests.data.made_pictures import image, values


def test_a_crop_is_the_middle_of_a_picture_and_keeps_its_proportions() -> None:
    wide = np.zeros((1, 1, 4, 12), dtype=np.uint8)
    wide[..., 4:8] = 200
    assert (reframed(wide, Frame(size=(4, 4))) == 200).all()
    assert reframed(wide, Frame(size=(4, 4), fit="stretch")).min() < 20
    assert (reframed(wide.transpose(0, 1, 3, 2), Frame(size=(4, 4))) == 200).all()


def test_a_large_jpeg_decoded_at_a_fraction_is_nearly_what_all_of_it_gives(tmp_path: Path) -> None:
    y, x = np.mgrid[0:800, 0:1000]
    smooth = np.stack([(y * 255 / 800), (x * 255 / 1000), 255 - x * 255 / 1000]).astype(np.uint8)
    image(smooth).save(tmp_path / "a.jpg", quality=95)
    image(smooth).save(tmp_path / "a.png")
    one, other = (read_picture(tmp_path / name, Frame(size=(32, 32))) for name in ("a.jpg", "a.png"))
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 4


def test_a_photo_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    pixels = values(3, 4, 6, 1)[0]
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera stood on its right side
    image(pixels).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_picture(tmp_path / "a.png"), np.rot90(pixels, -1, (1, 2)))


def test_what_is_transparent_becomes_white(tmp_path: Path) -> None:
    clear = Image.fromarray(np.full((2, 2, 4), (10, 20, 30, 0), dtype=np.uint8))
    clear.putpixel((0, 0), (10, 20, 30, 255))
    clear.save(tmp_path / "a.png")
    found = read_picture(tmp_path / "a.png")
    assert found[:, 0, 0].tolist() == [10, 20, 30]
    assert (found[:, 1, :] == 255).all()


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    deep = np.array([[0, 257, 65535], [128, 129, 32896]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png").tolist() == [[[0, 1, 255], [0, 1, 128]]]


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)])
def test_a_single_picture_is_grey_or_colour_as_it_is(tmp_path: Path, mode: str, channels: int) -> None:
    Image.new(mode, (5, 4)).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png").shape == (channels, 4, 5)


@pytest.mark.parametrize("end", [".png", ".jpg", ".webp", ".bmp"])
def test_a_picture_cut_short_is_named(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"a{end}"
    image(values(3, 60, 60, 1)[0]).save(path)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(UserError, match=rf"a\{end} is not a picture, or damaged"):
        read_picture(path)


def test_a_picture_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.png: there is no such file"):
        read_picture(tmp_path / "a.png")


def test_fractions_of_an_unknown_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(UserError, match=r"a\.tiff .*fractions of an unknown range"):
        read_picture(tmp_path / "a.tiff")


@pytest.mark.parametrize("side", range(1, 40, 3))
def test_a_crop_never_reaches_beyond_a_picture(side: int) -> None:
    for height, width in ((7, 13), (13, 7), (31, 29)):
        for wanted in ((side, side), (side, 2 * side + 1)):
            assert reframed(values(1, height, width, 1), Frame(size=wanted)).shape == (1, 1, *wanted)


def test_pillow_is_not_imported_before_a_picture_is_read() -> None:
    code = "import sys, regard.data.picture_batches; print('PIL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
