"""`dml export`: files for other programs give the embeddings of the network."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from dml_core import DmlError
from dml_train.data import prepare
from dml_train.data.preparation import Preparation
from dml_train.trained import export as exporting
from dml_train.trained.model import open_model

# The exporters and libraries warn of coming changes.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def read_torch(path):
    program = torch.export.load(path).module()
    return lambda images: program(images).detach().numpy()


def read_onnx(path):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: session.run(["embeddings"], {"images": images.numpy()})[0]


@pytest.mark.parametrize(
    ("form", "name", "read"), [("torch-export", "m.pt2", read_torch), ("onnx", "m.onnx", read_onnx)]
)
def test_the_exported_network_gives_the_same_embeddings(
    dml, photo_run, model, tmp_path, form, name, read
):
    if form == "onnx":
        pytest.importorskip("onnxscript")
    out = tmp_path / name
    said = dml("export", photo_run, "--to", form, "--out", out).stdout
    assert re.fullmatch(
        re.escape(str(out))
        + r": embeddings of image files differ from dml embed's by at most \S+ in cosine\n",
        said,
    )
    exported = read(out)
    for batch in (1, 3, 17):
        images = torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(batch))
        expected = model.network(images).detach().numpy()
        # The exported program may sum float32 in a different order.
        np.testing.assert_allclose(exported(images), expected, rtol=1e-4, atol=1e-5)
    about = json.loads((tmp_path / f"{name}.json").read_text())
    assert about["input"] == {"name": "images", "dtype": "float32", "shape": ["batch", 3, 16, 16]}
    assert about["output"]["shape"] == ["batch", 12]
    assert about["preparation"]["crop"] == "the middle 16 x 16"
    assert about["largest_difference"] < 1e-4
    assert about["largest_cosine_difference"] < 1e-5
    assert about["program"] == {"name": "prepare.py", "pillow": PIL.__version__}
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, f"{name}.json", "prepare.py"]
    assert (tmp_path / "prepare.py").read_bytes() == Path(prepare.__file__).read_bytes()
    refused = dml("export", photo_run, "--to", form, "--out", out, code=2)
    assert "exists already" in refused.stderr


def test_an_exported_model_embeds_image_files_as_dml_embed_does(dml, photo_run, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for i, (width, height) in enumerate([(700, 500), (333, 250), (150, 200), (90, 80), (24, 20)]):
        pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{i}.jpg")
    dml("export", photo_run, "--to", "torch-export", "--out", tmp_path / "m.pt2")
    dml("embed", photo_run, photos, "--out", tmp_path / "photos.npy")
    steps = json.loads((tmp_path / "m.pt2.json").read_text())["preparation"]
    # The shorter side becomes 18 pixels: the first three images are decoded to 1/4, 1/2 and 1/2 of
    # the size.
    assert "eighth" in steps["decode"]
    assert "72 pixels" in steps["decode"]
    images = runpy.run_path(str(tmp_path / "prepare.py"))["prepare"](
        sorted(photos.iterdir()), steps
    )
    exported, rows = (
        read_torch(tmp_path / "m.pt2")(torch.from_numpy(images)),
        np.load(tmp_path / "photos.npy"),
    )
    cosines = (
        (exported * rows).sum(1) / np.linalg.norm(exported, axis=1) / np.linalg.norm(rows, axis=1)
    )
    np.testing.assert_allclose(cosines, 1.0, atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_program_that_prepares_otherwise_is_found(model, tmp_path, monkeypatch, precision):
    right = prepare.prepare

    def normalised_otherwise(files, steps):
        return right(files, steps | {"options": steps["options"] | {"normalize": "half"}})

    training = model.recipe.training.model_copy(update={"precision": precision})
    model = dataclasses.replace(
        model, recipe=model.recipe.model_copy(update={"training": training})
    )
    monkeypatch.setattr(prepare, "prepare", normalised_otherwise)
    message = r"prepare\.py and the exported network give different embeddings of image files"
    with pytest.raises(DmlError, match=message):
        exporting.export(model, "torch-export", tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    exporting.export(model, "torch-export", tmp_path / "m.pt2")
    difference = json.loads((tmp_path / "m.pt2.json").read_text())["largest_cosine_difference"]
    assert (difference > 1e-9) == (precision == "bfloat16")  # this run's embeddings are rounded


def test_two_models_share_a_program_and_another_version_is_kept(dml, photo_run, tmp_path):
    for name in ("a.pt2", "b.pt2"):
        dml("export", photo_run, "--to", "torch-export", "--out", tmp_path / name)
    (tmp_path / "prepare.py").write_text("older")
    refused = dml("export", photo_run, "--to", "torch-export", "--out", tmp_path / "c.pt2", code=2)
    assert "differs from the prepare.py of this version" in refused.stderr
    assert (tmp_path / "prepare.py").read_text() == "older"
    assert not (tmp_path / "c.pt2").exists()


@pytest.mark.parametrize("reads_files", [True, False])
def test_a_plugins_own_preparation_gets_no_program(model, tmp_path, reads_files):
    class TheirReader(Preparation):
        def describe(self):
            return {"resize": "by hand"}

    reader = TheirReader(resize=18, crop=16) if reads_files else None
    difference = exporting.export(
        dataclasses.replace(model, reader=reader), "torch-export", tmp_path / "m.pt2"
    )
    assert difference < 1e-5
    about = json.loads((tmp_path / "m.pt2.json").read_text())
    assert about["program"] is None
    assert about["preparation"] == ({"resize": "by hand"} if reads_files else model.recipe.dataset)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt2", "m.pt2.json"]


def test_the_check_keeps_to_max_pixels(model, tmp_path):
    reader = Preparation(resize=18, crop=16, max_pixels=900)
    model = dataclasses.replace(model, reader=reader)
    assert exporting.export(model, "torch-export", tmp_path / "m.pt2") < 1e-5


def test_an_export_with_other_embeddings_is_removed(model, tmp_path, monkeypatch):
    exporter = exporting.EXPORTERS["torch-export"]

    def wrong(network, shape, path):
        with torch.no_grad():
            network.head.linear.bias += 1e-2
        exporter.write(network, shape, path)
        with torch.no_grad():
            network.head.linear.bias -= 1e-2

    monkeypatch.setitem(exporting.EXPORTERS, "torch-export", exporter._replace(write=wrong))
    with pytest.raises(DmlError, match="gives different embeddings: they differ by"):
        exporting.export(model, "torch-export", tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


def test_an_untraceable_network_is_one_message(photo_run, registry, tmp_path):
    model = open_model(photo_run, registry)
    forward = model.network.backbone.forward
    model.network.backbone.forward = lambda images: forward(images * float(images.sum() > 0))
    with pytest.raises(DmlError, match="can't be exported to torch-export"):
        exporting.export(model, "torch-export", tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_and_missing_packages_are_named(
    dml, photo_run, model, tmp_path, monkeypatch
):
    for source, out, message in (
        (photo_run, "m.onnx", "ends in .pt2"),
        (photo_run, "no/m.pt2", "is not a folder"),
        (tmp_path, "m.pt2", "not a run's folder"),
    ):
        refused = dml("export", source, "--to", "torch-export", "--out", tmp_path / out, code=2)
        assert message in refused.stderr
    with pytest.raises(
        DmlError, match="unknown export format 'tflite'; expected one of: onnx, torch-export"
    ):
        exporting.export(model, "tflite", tmp_path / "m.tflite")
    exporter = exporting.EXPORTERS["onnx"]
    monkeypatch.setitem(
        exporting.EXPORTERS, "onnx", exporter._replace(packages=("onnx_that_nobody_has",))
    )
    with pytest.raises(
        DmlError, match=r"needs onnx_that_nobody_has .* pip install 'dml-train\[onnx\]'"
    ):
        exporting.export(model, "onnx", tmp_path / "m.onnx")
