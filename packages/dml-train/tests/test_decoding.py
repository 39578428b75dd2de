"""Image files of all formats and modes are decoded correctly; if a file is bad or cut off, an error
names the path.
"""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from dml_core import DmlError
from dml_train.data import decoding
from dml_train.data.decoding import check_complete_image, read_image

with_each_format = pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp", "webp", "tif"])
with_each_reader = pytest.mark.parametrize("read", [read_image, check_complete_image])


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def test_a_photograph_is_rotated_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned, so a viewer must rotate by 90 degrees clockwise
    image = Image.new("RGB", (40, 20), "red")
    image.paste("blue", (0, 0, 20, 20))
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    upright = read_image(tmp_path / "a.jpg")
    assert upright.size == (20, 40)
    assert upright.getpixel((10, 5))[2] > 200  # blue is on top
    assert upright.getpixel((10, 35))[0] > 200


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("1", "png"), ("L", "jpg"), ("CMYK", "jpg"), ("P", "gif"), ("RGB", "webp"), ("L", "bmp")],
)
@pytest.mark.parametrize("min_side", [None, 4])
def test_every_mode_becomes_rgb(tmp_path, mode, suffix, min_side):
    file = tmp_path / f"a.{suffix}"
    Image.new("RGB", (12, 9), (255, 255, 255)).convert(mode).save(file)
    image = read_image(file, min_side)
    assert image.mode == "RGB"
    assert min(image.size) >= 4
    assert min(image.getpixel((1, 1))) >= 250


def test_cmyk_keeps_its_colours_and_sixteen_bits_are_scaled_not_clipped(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)  # red ink
    red, green, blue = read_image(tmp_path / "a.jpg").getpixel((8, 8))
    assert red > 240
    assert max(green, blue) < 15
    Image.fromarray(np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)).save(
        tmp_path / "a.png"
    )
    np.testing.assert_array_equal(
        np.asarray(read_image(tmp_path / "a.png"))[:, :, 0], [[0, 100], [200, 255]]
    )


def test_transparent_pixels_become_white(tmp_path):
    picture = Image.new("LA", (2, 1), (0, 0))
    picture.putpixel((1, 0), (0, 255))
    picture.save(tmp_path / "a.png")
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([0, 0, 0, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "b.png", transparency=0)
    for name in ("a.png", "b.png"):
        np.testing.assert_array_equal(
            np.asarray(read_image(tmp_path / name))[0], [[255] * 3, [0] * 3]
        )


def test_the_first_of_several_frames_is_decoded(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "a.gif").getpixel((4, 4)) == (255, 0, 0)


def test_a_large_photograph_is_decoded_at_a_fraction_of_its_size(tmp_path):
    # Decode at the smallest of the sizes 1, 1/2, 1/4, … that keeps both sides at min_side pixels or
    # more.
    noise(70, 50).resize((1400, 1000)).save(tmp_path / "a.jpg", quality=95)
    assert read_image(tmp_path / "a.jpg", min_side=250).size == (350, 250)
    assert read_image(tmp_path / "a.jpg", min_side=251).size == (700, 500)
    assert read_image(tmp_path / "a.jpg").size == (1400, 1000)
    small = read_image(tmp_path / "a.jpg", min_side=250)
    full = read_image(tmp_path / "a.jpg").resize((350, 250), Image.Resampling.BOX)
    # The decoder drops the high frequencies of a block, but the box filter averages it, so edges
    # differ a little.
    assert np.abs(np.asarray(small).astype(int) - np.asarray(full)).mean() < 2.0


@with_each_reader
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"hello", "not an image"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "repair or remove"),
    ],
    ids=["empty", "text", "truncated"],
)
def test_a_file_that_is_no_image_is_named(tmp_path, read, content, reason):
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(DmlError, match=rf"can't read the image .*bad\.png: .*{reason}"):
        read(tmp_path / "bad.png")


@with_each_reader
@with_each_format
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_a_file_cut_off_behind_its_header_is_named(tmp_path, read, suffix, kept):
    file = tmp_path / f"a.{suffix}"
    noise(50, 60).save(file, **({"compression": "tiff_lzw"} if suffix == "tif" else {}))
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DmlError, match=f"can't read the image .*a.{suffix}"):
        read(file)


@with_each_format
def test_an_intact_file_is_complete_without_being_decoded(tmp_path, monkeypatch, suffix):
    noise(50, 60).save(tmp_path / f"a.{suffix}")
    monkeypatch.setattr(decoding, "read_image", None)  # isn't called
    check_complete_image(tmp_path / f"a.{suffix}")


def test_bytes_behind_the_end_are_no_fault(tmp_path):
    file = tmp_path / "a.jpg"
    noise(50, 60).save(file)
    for more in (bytes(1000), b"a camera's own data" * 20):
        file.write_bytes(file.read_bytes() + more)
        check_complete_image(file)


@with_each_reader
def test_an_image_too_huge_to_decode_is_named_and_not_decoded(tmp_path, read):
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    (tmp_path / "huge.png").write_bytes(png)
    with pytest.raises(DmlError, match=r"can't read the image .*huge\.png: it has too many pixels"):
        read(tmp_path / "huge.png")


def test_the_most_pixels_are_an_option_that_counts_after_the_reduction(tmp_path):
    noise(70, 50).resize((1400, 1000)).save(tmp_path / "a.jpg")
    with pytest.raises(
        DmlError, match=r"too many pixels \(1,400,000 pixels exceed max_pixels = 1,000,000\)"
    ):
        read_image(tmp_path / "a.jpg", max_pixels=1_000_000)
    assert read_image(tmp_path / "a.jpg", min_side=250, max_pixels=1_000_000).size == (350, 250)


@with_each_reader
@pytest.mark.parametrize("suffix", [".jpg", ".eps"])
def test_only_the_documented_formats_are_read_whatever_the_suffix(tmp_path, read, suffix):
    """A PostScript file would start Ghostscript."""
    noise(8, 8).save(tmp_path / "drawing.eps")
    photo = (tmp_path / "drawing.eps").rename(tmp_path / f"photo{suffix}")
    with pytest.raises(DmlError, match="not an image in PNG, JPEG, WEBP, BMP, GIF, TIFF"):
        read(photo)


@with_each_reader
def test_a_missing_file_a_pipe_or_a_folder_is_refused_and_not_waited_for(tmp_path, read):
    with pytest.raises(DmlError, match=r"can't read the image .*gone\.png: no such file"):
        read(tmp_path / "gone.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name, kind in (("pipe", "a pipe or a device"), ("folder", "a folder")):
        with pytest.raises(DmlError, match=f"{kind}, not a file"):
            read(tmp_path / f"{name}.png")
