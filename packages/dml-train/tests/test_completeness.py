"""Image files that are cut off are found by their end, and only doubtful ones are decoded."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dml_core import DmlError
from dml_train.data import completeness
from dml_train.data.completeness import check_complete_image

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 50, 3), dtype=np.uint8)
with_each_format = pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp", "webp", "tif"])


@with_each_format
def test_an_intact_file_passes_without_being_decoded(tmp_path, monkeypatch, suffix):
    file = tmp_path / f"a.{suffix}"
    Image.fromarray(PIXELS).save(file)
    monkeypatch.setattr(completeness, "read_image", None)  # isn't called
    check_complete_image(file)


@with_each_format
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_a_file_cut_off_behind_its_header_is_named(tmp_path, suffix, kept):
    file = tmp_path / f"a.{suffix}"
    Image.fromarray(PIXELS).save(file, **({"compression": "tiff_lzw"} if suffix == "tif" else {}))
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DmlError, match=f"can't read the image .*a.{suffix}"):
        check_complete_image(file)


def test_bytes_behind_the_end_are_no_fault(tmp_path):
    file = tmp_path / "a.jpg"
    Image.fromarray(PIXELS).save(file)
    for more in (bytes(1000), b"a camera's own data" * 20):
        file.write_bytes(file.read_bytes() + more)
        check_complete_image(file)
