"""`prepare.py`, which `dml export` copies, gives the bits of the network's input, and only needs
Pillow and numpy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dml_train.data import prepare
from dml_train.data.glyphs import DrawingReader
from dml_train.data.preparation import Preparation

READERS = {
    "defaults": Preparation(),
    "small": Preparation(resize=72, crop=64, normalize="half"),
    "square": Preparation(resize=40, crop=33, square=True, normalize="clip"),
    "upright": Preparation(resize=[64, 32], crop=[60, 32]),
    "upright crop": Preparation(resize=50, crop=[40, 50]),
    "bicubic": Preparation(resize=60, crop=47, interpolation="bicubic", normalize="caffe"),
    "square, bicubic": Preparation(
        resize=50, crop=50, square=True, interpolation="bicubic", normalize="none"
    ),
    "of training": Preparation(resize=20, crop=16, train_crop="random", min_area=0.5, flip=0.1),
    "glyphs": DrawingReader(32),
    "large glyphs": DrawingReader(150),
}
# Make these packages fail to import, since users copy prepare.py without them; then prepare the
# files in all ways.
ALONE = """
import json, sys
for name in ("torch", "torchvision", "dml_core", "dml_train", "scipy", "cv2"):
    sys.modules[name] = None
import numpy as np
from prepare import prepare
files, steps = json.load(open("cases.json"))
arrays = {name: prepare(files, by) for name, by in steps.items()}
with open(files[0], "rb") as opened:
    arrays["opened"] = prepare([opened], steps["small"])
np.savez("inputs.npz", **arrays)
"""


def noise(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(values).convert("RGB").convert(mode)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """Write images of all modes and special forms, from tiny images to images that are decoded in
    reduced size.
    """
    folder = tmp_path_factory.mktemp("images")
    exif = Image.Exif()
    exif[0x0112] = 6
    transparent = Image.fromarray(
        np.random.default_rng(1).integers(0, 256, (70, 90, 4), dtype=np.uint8)
    )
    palette = noise(80, 70).quantize(16)
    deep = np.random.default_rng(2).integers(0, 65536, (75, 99), dtype=np.uint16)
    images = {
        "jpeg.jpg": (noise(640, 480), {"quality": 90}),
        "half.jpg": (noise(700, 600).resize((2100, 2400)), {}),  # the defaults reduce it, too
        "quarter.jpg": (noise(300, 200).resize((1300, 1201)), {"subsampling": 0}),
        "eighth.jpg": (noise(250, 300).resize((2400, 2900)), {"progressive": True}),
        "turned.jpg": (noise(700, 500), {"exif": exif}),
        "grey.jpg": (noise(400, 300, mode="L"), {}),
        "cmyk.jpg": (noise(400, 300, mode="CMYK"), {}),
        "grey.png": (noise(90, 70, mode="L"), {}),
        "grey-alpha.png": (transparent.convert("LA"), {}),
        "alpha.png": (transparent, {}),
        "alpha.webp": (transparent, {"lossless": True}),
        "palette.png": (palette, {}),
        "palette-alpha.png": (palette, {"transparency": 3}),
        "bits.png": (noise(77, 78, mode="1"), {}),
        "deep.png": (Image.fromarray(deep), {}),
        "deep.tiff": (Image.fromarray(deep.astype(np.int32) * 3), {}),
        "floats.tiff": (Image.fromarray((deep / 65535).astype(np.float32)), {}),
        "frames.gif": (
            palette,
            {"save_all": True, "append_images": [noise(80, 70, 5).quantize(16)]},
        ),
        "plain.bmp": (noise(333, 222), {}),
        "as-resized.png": (noise(72, 72), {}),
        "tiny.png": (noise(3, 2), {}),
        "dot.png": (noise(1, 1), {}),
        "long.png": (noise(300, 7), {}),
    }
    for name, (image, options) in images.items():
        image.save(folder / name, **options)
    return [folder / name for name in images]


def test_alone_it_gives_the_readers_input_to_the_bit(files, tmp_path):
    shutil.copy(prepare.__file__, tmp_path)
    steps = {name: reader.describe() for name, reader in READERS.items()}
    (tmp_path / "cases.json").write_text(json.dumps([[str(file) for file in files], steps]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "inputs.npz") as inputs:
        for name, reader in READERS.items():
            expected = reader.of_images(files).load(np.arange(len(files))).numpy()
            assert inputs[name].dtype == np.float32
            assert inputs[name].shape == expected.shape
            for row, file in enumerate(files):
                assert np.array_equal(inputs[name][row], expected[row]), f"{file.name} by {name}"
        assert np.array_equal(inputs["opened"][0], inputs["small"][0])


@settings(deadline=None)
@given(
    height=st.integers(1, 260),
    width=st.integers(1, 260),
    resize=st.integers(1, 130),
    crop=st.integers(1, 130),
    square=st.booleans(),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    seed=st.integers(0, 2**32),
    extremes=st.booleans(),
)
def test_resizing_has_torchs_bits(
    height, width, resize, crop, square, interpolation, seed, extremes
):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if extremes:
        pixels = np.where(pixels < 128, 0, 255).astype(np.uint8)
    crop = min(crop, resize)
    size = prepare.choose_size(height, width, resize, square)
    resized = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None], size, mode=interpolation, antialias=True
    )[0]
    top, left = ((side - crop) // 2 for side in size)
    expected = resized[:, top : top + crop, left : left + crop].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(
        prepare.resize_center(pixels, *size, crop=crop, interpolation=interpolation), expected
    )


def resized(files: list[Path]) -> torch.Tensor:
    """Prepare images as training does, which resizes crops, too."""
    preparation = Preparation(resize=72, crop=64)
    images = [preparation.load_resized(file) for file in files]
    return preparation.make_batch(images, np.arange(len(images), dtype=np.uint64))


@pytest.mark.slow
def test_a_processor_without_vector_instructions_gives_the_same_bits(files, tmp_path):
    """Note that torchvision's resize would compute in float32 on such a processor, and change some
    pixels by 1.
    """
    out = tmp_path / "batch.npy"
    code = (
        "import sys, numpy as np; from pathlib import Path; from test_prepare import resized; "
        "np.save(sys.argv[1], resized([Path(file) for file in sys.argv[2:]]).numpy())"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(out), *map(str, files[:5])],
        cwd=Path(__file__).parent, env={**os.environ, "ATEN_CPU_CAPABILITY": "default"}, check=True,
    )  # fmt: skip
    np.testing.assert_array_equal(np.load(out), resized(files[:5]).numpy())


def test_steps_of_another_program_and_too_many_pixels_are_refused(tmp_path):
    message = "expected one of: photograph, drawing, as in the value of 'preparation'"
    for steps in ({"name": "theirs"}, {"kind": "sound", "options": {}}):
        with pytest.raises(ValueError, match=message):
            prepare.prepare([], steps)
    noise(90, 80).save(tmp_path / "a.png")
    steps = Preparation(resize=8, crop=8, max_pixels=7000).describe()
    with pytest.raises(
        Image.DecompressionBombError, match="7,200 pixels exceed max_pixels = 7,000"
    ):
        prepare.prepare([tmp_path / "a.png"], steps)
