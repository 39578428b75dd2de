"""If the data set is changed when a run is resumed, an error should be raised that counts the
changes.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from train_support.photo_world import photo_document, write_photos
from train_support.tiny_world import make_registry

from dml_core import DmlError
from dml_train.recipe.checking import parse
from dml_train.report import write_report
from dml_train.trained.evaluation import embed_split
from dml_train.trained.images import list_split
from dml_train.trained.model import open_model
from dml_train.trained.search import Gallery
from dml_train.training.run import train


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos")


@pytest.fixture
def train_photos(photos, out, quiet):
    """Train on the images, or resume."""
    registry = make_registry()

    def train_photos(force=False, **dataset):
        document = photo_document(photos)
        document["dataset"] |= dataset
        return train(
            parse(document, registry),
            out,
            resume=True,
            force=force,
            registry=registry,
            console=quiet,
        )

    return train_photos


@pytest.fixture
def unfinished(train_photos):
    folder = train_photos()
    folder.evaluation.unlink()
    return folder


def images(photos, part, count):
    """Return the first images of the first `count` classes of a part."""
    registry = make_registry()
    dataset = registry.build("datasets", photo_document(photos)["dataset"], {"seed": 0})
    split = getattr(dataset, part)
    return [split.files[int(np.flatnonzero(split.labels == c)[0])] for c in range(count)]


def add(photos):
    for file in [*images(photos, "train", 3), *images(photos, "test", 1)]:
        shutil.copy(file, file.with_name("added.png"))
    return "train: of 15 images, 3 added\n  test: of 15 images, 1 added"


def remove(photos):
    images(photos, "test", 1)[0].unlink()
    return "test: of 15 images, 1 removed"


def replace(photos):
    one, other = images(photos, "train", 2)
    other.write_bytes(one.read_bytes() + b"\0")
    return "train: of 15 images, 1 with a different size"


def move(photos):
    one, other = images(photos, "train", 2)
    one.rename(other.with_name("moved.png"))
    return "train: of 15 images, 1 added, 1 removed"


@pytest.mark.parametrize("change", [add, remove, replace, move])
def test_changed_images_are_counted_and_force_resumes(unfinished, photos, train_photos, change):
    expected = change(photos)
    before = unfinished.data.read_bytes()
    with pytest.raises(
        DmlError, match="the data set differs from the data set of the run"
    ) as refused:
        train_photos()
    assert f"\n  {expected}\nResume with" in str(refused.value)
    assert refused.value.arguments == ("force",)
    assert unfinished.data.read_bytes() == before
    train_photos(force=True)
    assert unfinished.data.read_bytes() != before
    unfinished.evaluation.unlink()
    train_photos()  # no error: the run now records the changed data


def test_a_cache_a_touched_file_and_a_moved_folder_are_no_change(
    unfinished, photos, train_photos, tmp_path
):
    expected = unfinished.embeddings().read_bytes()
    images(photos, "train", 1)[0].touch()
    assert train_photos(cache=str(tmp_path / "cache")).embeddings().read_bytes() == expected
    assert any((tmp_path / "cache").iterdir())
    unfinished.evaluation.unlink()
    before = unfinished.data.read_bytes()
    photos.rename(tmp_path / "moved")
    train_photos(root=str(tmp_path / "moved"), force=True)
    assert unfinished.data.read_bytes() == before


def test_rows_without_files_are_compared_by_their_classes_and_order(run):
    folder = run()
    folder.evaluation.unlink()
    with np.load(folder.data) as stored:
        arrays = dict(stored)
    np.savez(folder.data, **{name: array[::-1] for name, array in arrays.items()})
    with pytest.raises(DmlError, match="train: of 48 images, some in a different order"):
        run(resume=True)
    arrays["train_classes"][:2] = arrays["train_classes"][-1]
    arrays["test_items"] = np.append(arrays["test_items"], np.uint64(1000))
    for field in ("sizes", "classes"):
        arrays[f"test_{field}"] = np.append(arrays[f"test_{field}"], arrays[f"test_{field}"][-1:])
    np.savez(folder.data, **arrays)
    message = r"train: of 48 images, 2 with a different class\n  test: of 49 images, 1 removed"
    with pytest.raises(DmlError, match=message):
        run(resume=True)


def test_a_damaged_fingerprint_is_one_message_and_a_missing_one_is_written(run):
    folder = run()
    expected = folder.data.read_bytes()
    folder.evaluation.unlink()
    folder.data.write_bytes(expected[:-30])
    message = r"data\.npz, the fingerprint of the run's data, is corrupt.* Remove it"
    with pytest.raises(DmlError, match=message):
        run(resume=True)
    folder.data.unlink()
    assert run(resume=True).data.read_bytes() == expected


def test_omitted_images_are_listed_when_the_run_starts_and_never_again(
    photos, train_photos, out, caplog
):
    images(photos, "train", 1)[0].write_bytes(b"no image")
    registry = make_registry()
    folder = train_photos(on_bad_image="skip")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "omitted 1 of 30 images that can't be decoded"
    ]
    caplog.clear()
    write_report(out, registry)
    embed_split(out, "train", registry=registry)
    Gallery.of_run(open_model(out, registry), registry)
    list_split(open_model(out, registry), "test", registry)
    folder.evaluation.unlink()
    train_photos(on_bad_image="skip")
    assert not caplog.records
