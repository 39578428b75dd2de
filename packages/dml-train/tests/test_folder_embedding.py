"""`dml embed` of a folder: order, resuming, bad images, and the files it writes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from train_support.photo_world import train_on, write_photos

from dml_core import DmlError
from dml_train.data.preparation import ImageSplit
from dml_train.files import lock_folder
from dml_train.trained.folder import embed_folder
from dml_train.trained.model import open_model


@pytest.fixture
def embed(model, photos):
    """Embed the photos in chunks of four."""
    return lambda out, **options: embed_folder(model, photos, out, chunk_size=4, **options)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "photos")


def test_rows_are_the_images_in_the_order_of_their_paths(dml, photo_run, model, photos, tmp_path):
    (photos / "class-0" / "deeper").mkdir()
    (photos / "class-0" / "0.png").rename(photos / "class-0" / "deeper" / "ünï.PNG")
    (photos / "loose.png").write_bytes((photos / "class-1" / "0.png").read_bytes())
    (photos / ".hidden.png").write_bytes(b"")
    (photos / "notes.txt").write_text("no image")
    out = tmp_path / "e.npy"
    assert dml("embed", photo_run, photos, "--out", out).stdout == f"{out}: 31 images\n"
    about = json.loads((tmp_path / "e.json").read_text())
    assert about["paths"][:5] == [
        "class-0/1.png", "class-0/2.png", "class-0/3.png", "class-0/4.png",
        "class-0/deeper/ünï.PNG",
    ]  # fmt: skip
    assert about["paths"][-1] == "loose.png"
    assert (about["kind"], about["dim"], about["step"]) == ("float32", 12, 3)
    assert about["preparation"]["crop"] == "the middle 16 x 16"
    embeddings = np.load(out)
    assert embeddings.dtype == np.float32
    split = model.reader.of_images([photos / path for path in about["paths"]])
    alone = [model.network(split.load(np.array([i]))).detach().numpy() for i in range(len(split))]
    # Matrix products sum in a different order if the batch size differs.
    np.testing.assert_allclose(embeddings, np.concatenate(alone), rtol=1e-5, atol=1e-6)
    assert visible(tmp_path) == ["e.json", "e.npy"]


def test_codes_and_labels(dml, photo_run, photos, tmp_path):
    dml("embed", photo_run, photos, "--out", tmp_path / "e.npy", "--labels", tmp_path / "l.npy")
    dml("embed", photo_run, photos, "--out", tmp_path / "c.npy", "--codes")
    codes = np.load(tmp_path / "c.npy")
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes, np.packbits(np.load(tmp_path / "e.npy") > 0, axis=1))
    np.testing.assert_array_equal(np.load(tmp_path / "l.npy"), np.repeat(np.arange(6), 5))
    assert json.loads((tmp_path / "e.json").read_text())["classes"] == [
        f"class-{c}" for c in range(6)
    ]
    (photos / "loose.png").write_bytes((photos / "class-1" / "0.png").read_bytes())
    refused = dml(
        "embed",
        photo_run,
        photos,
        "--out",
        tmp_path / "d.npy",
        "--labels",
        tmp_path / "m.npy",
        code=2,
    )
    assert "loose.png is not in any" in refused.stderr
    assert not (tmp_path / "d.npy").exists()


class Killed(BaseException):
    """Raised in place of a SIGKILL; no error handling may catch it."""


@pytest.fixture
def loads(monkeypatch, embed):
    """Count loaded images; `until` embeds, and is killed before it loads more than `most`
    images.
    """

    class Loads:
        count, most = 0, 10**9

        def until(self, most, out, **options):
            self.count, self.most = 0, most
            with pytest.raises(Killed):
                embed(out, **options)
            self.count, self.most = 0, 10**9

    loads, load = Loads(), ImageSplit.load

    def counted(self, indices, seeds=None):
        loads.count += len(indices)
        if loads.count > loads.most:
            raise Killed
        return load(self, indices, seeds)

    monkeypatch.setattr(ImageSplit, "load", counted)
    return loads


@pytest.fixture
def whole(embed, tmp_path):
    """Return the content of the file that an uninterrupted call writes."""
    embed(tmp_path / "whole.npy")
    return (tmp_path / "whole.npy").read_bytes()


def test_a_killed_call_resumes_and_loader_processes_change_nothing(embed, tmp_path, whole, loads):
    out = tmp_path / "e.npy"
    for more in (9, 9, 0):
        loads.until(more, out)
        assert not out.exists()
    assert embed(out).reused == 16
    assert loads.count == 30 - 16
    assert out.read_bytes() == whole
    embed(tmp_path / "helped.npy", workers=1)
    assert (tmp_path / "helped.npy").read_bytes() == whole


def test_the_command_says_how_many_images_it_reuses(dml, photo_run, model, photos, tmp_path):
    out = tmp_path / "e.npy"
    with pytest.raises(DmlError, match="can't write"):
        embed_folder(model, photos, out, labels=tmp_path / "missing" / "l.npy")
    assert visible(tmp_path) == [".e.npy.chunks"]
    assert "30 images were embedded already" in dml("embed", photo_run, photos, "--out", out).stderr


def flip_a_bit(content):
    place = content.rindex(b"NUMPY") + 150  # a place in the rows
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda chunk: chunk.write_bytes(chunk.read_bytes()[:-100]),
        lambda chunk: chunk.write_bytes(b""),
        lambda chunk: chunk.write_bytes(flip_a_bit(chunk.read_bytes())),
        lambda chunk: np.savez(chunk, rows=np.zeros((4, 12), np.float32)),
        lambda chunk: np.savez(chunk, rows=np.zeros((4, 12), np.float32), about=np.array("[]")),
        lambda chunk: chunk.unlink(),
    ],
    ids=["truncated", "empty", "a flipped bit", "no key", "a damaged key", "missing"],
)
def test_a_damaged_chunk_is_embedded_again(embed, tmp_path, whole, loads, damage):
    out = tmp_path / "e.npy"
    loads.until(17, out)
    damage(tmp_path / ".e.npy.chunks" / "000001.npz")
    embed(out)
    assert loads.count == 30 - 12
    assert out.read_bytes() == whole


def test_changed_images_are_embedded_again(embed, photos, tmp_path, loads):
    out = tmp_path / "e.npy"
    loads.until(17, out)
    (photos / "class-0" / "0.png").write_bytes((photos / "class-1" / "0.png").read_bytes())
    embed(out)
    assert loads.count == 30 - 12
    embed(tmp_path / "again.npy")
    assert out.read_bytes() == (tmp_path / "again.npy").read_bytes()


def test_a_bad_image_is_an_error_or_skipped(dml, photo_run, photos, tmp_path):
    for name in (
        "class-1/1.png",
        "class-2/0.png",
        "class-2/1.png",
        "class-2/2.png",
        "class-2/3.png",
    ):
        (photos / name).write_bytes(b"")
    (photos / "class-4" / "4.png").write_bytes((photos / "class-4" / "4.png").read_bytes()[:200])
    out = tmp_path / "e.npy"
    refused = dml("embed", photo_run, photos, "--out", out, code=2)
    assert "can't read the image" in refused.stderr
    assert "1.png: it is empty" in refused.stderr
    assert "--on-bad-image skip" in refused.stderr
    assert visible(tmp_path) == [".e.npy.chunks"]
    result = dml(
        "embed",
        photo_run,
        photos,
        "--out",
        out,
        "--on-bad-image",
        "skip",
        "--labels",
        tmp_path / "l.npy",
    )
    assert result.stdout == f"{out}: 24 images, 6 skipped\n"
    about = json.loads((tmp_path / "e.json").read_text())
    assert [entry["path"] for entry in about["skipped"]] == [
        "class-1/1.png", "class-2/0.png", "class-2/1.png", "class-2/2.png", "class-2/3.png",
        "class-4/4.png",
    ]  # fmt: skip
    assert len(about["paths"]) == len(np.load(out)) == len(np.load(tmp_path / "l.npy")) == 24
    for name in about["skipped"]:
        (photos / name["path"]).unlink()
    dml("embed", photo_run, photos, "--out", tmp_path / "rest.npy")
    # The images are the same, but in different batches.
    np.testing.assert_allclose(np.load(tmp_path / "rest.npy"), np.load(out), rtol=1e-5, atol=1e-6)


def test_bad_images_of_several_chunks_are_skipped(embed, photos, tmp_path):
    for number in (1, 3, 4):
        (photos / "class-0" / f"{number}.png").write_bytes(b"")
    for number in range(3):  # these files and class-0/4.png fill a chunk
        (photos / "class-1" / f"{number}.png").write_bytes(b"")
    with pytest.raises(DmlError, match=r"1\.png: it is empty.*or skip such images"):
        embed(tmp_path / "e.npy")
    result = embed(tmp_path / "e.npy", skip=True)
    assert [path for path, _ in result.skipped] == [
        "class-0/1.png", "class-0/3.png", "class-0/4.png", "class-1/0.png", "class-1/1.png",
        "class-1/2.png",
    ]  # fmt: skip
    assert len(result.paths) == len(np.load(tmp_path / "e.npy")) == 24


def test_a_skipped_image_is_an_error_again_without_skip(embed, photos, tmp_path, loads):
    (photos / "class-0" / "1.png").write_bytes(b"")
    loads.until(17, tmp_path / "e.npy", skip=True)
    with pytest.raises(DmlError, match="it is empty"):
        embed(tmp_path / "e.npy")


def test_a_second_process_cannot_write_the_same_file(dml, photo_run, photos, tmp_path):
    work = tmp_path / ".e.npy.chunks"
    work.mkdir()
    with lock_folder(work, f"writing {tmp_path / 'e.npy'}"):
        refused = dml("embed", photo_run, photos, "--out", tmp_path / "e.npy", code=2)
    assert f"another process is writing {tmp_path / 'e.npy'}" in refused.stderr


def test_nothing_is_overwritten_and_mistakes_are_reported_first(dml, photo_run, photos, tmp_path):
    def refused(folder, *options, out="e.npy"):
        return dml(
            "embed", photo_run, tmp_path / folder, *options, "--out", tmp_path / out, code=2
        ).stderr

    (tmp_path / "mine.json").write_text("mine")
    (tmp_path / "empty").mkdir()
    assert "mine.json exists already" in refused("photos", out="mine.npy")
    assert "ends in .npy" in refused("photos", out="mine.json")
    assert "expected one of them" in refused("photos", "--split", "test")
    assert "is not a folder" in refused("none")
    assert "contains no images" in refused("empty")
    for file in photos.rglob("*.png"):
        file.write_bytes(b"")
    assert "none of the 30 images" in refused("photos", "--on-bad-image", "skip")
    assert not (tmp_path / "e.npy").exists()
    assert (tmp_path / "mine.json").read_text() == "mine"


def test_a_data_set_without_an_image_reader_is_an_error(run, registry, photos):
    model = open_model(run(training={"steps": 1}).path, registry)
    assert model.input_shape == (1, 4, 4)
    with pytest.raises(DmlError, match=r"'tiny' .* has no attribute 'image_reader'"):
        model.split_of([photos / "class-0" / "0.png"])


def test_training_images_are_counted_and_the_unseen_ones_offered(dml, registry, tmp_path):
    photos = write_photos(tmp_path / "data")
    run = train_on(photos, tmp_path / "run", registry)
    (tmp_path / "link").symlink_to(photos)
    out, total = tmp_path / "e.npy", sum(1 for file in photos.rglob("*.png"))
    trained = len(
        registry.build("datasets", open_model(run, registry).recipe.dataset, {"seed": 0}).train
    )
    said = dml("embed", run, tmp_path / "link", "--out", out).stderr
    assert (
        f"{trained} of these {total} images are training images of the run: metrics on them "
        "are too high"
    ) in said
    assert f"dml embed {run} --split test --out {tmp_path / 'e-test.npy'}" in said
    other = write_photos(tmp_path / "other", seed=1)
    assert "training images" not in dml("embed", run, other, "--out", tmp_path / "o.npy").stderr
    shutil.rmtree(photos)
    assert "training images" not in dml("embed", run, other, "--out", tmp_path / "p.npy").stderr
