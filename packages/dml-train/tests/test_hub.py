"""Folders for the Hugging Face Hub can be written and opened again, also in the layout of the
client's cache.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from dml_core import DmlError
from dml_train.trained.evaluation import evaluate_run
from dml_train.trained.export import export
from dml_train.trained.hub import CARD, CONFIG, WEIGHTS, find_hub_folder
from dml_train.trained.model import open_model


@pytest.fixture(scope="module")
def shared(photo_run, model, tmp_path_factory):
    """Export a network to a folder in the form of the Hub."""
    from train_support.tiny_world import make_registry

    folder = tmp_path_factory.mktemp("hub") / "photos-12"
    assert export(model, "hub", folder, make_registry()) < 1e-6
    return folder


def test_the_folder_embeds_as_the_run_does(dml, shared, model, photos, registry, tmp_path):
    assert sorted(path.name for path in shared.iterdir()) == sorted([CARD, CONFIG, WEIGHTS])
    opened = open_model(shared, registry)
    files = sorted(photos.rglob("*.png"))
    np.testing.assert_array_equal(opened.embed_images(files), model.embed_images(files))
    assert (opened.dim, opened.step, opened.input_shape) == (
        model.dim,
        model.step,
        model.input_shape,
    )
    dml("embed", shared, photos, "--out", tmp_path / "photos.npy")
    dml("search", shared, files[3], "--index", tmp_path / "photos.npy", "-k", 2)
    said = dml("search", shared, files[3], code=2).output
    assert "no embeddings to search in" in said


def test_the_command_writes_it_and_keeps_an_existing_folder(dml, photo_run, tmp_path):
    out = tmp_path / "hub"
    assert (
        "differ from dml embed's by at most"
        in dml("export", photo_run, "--form", "hub", "--out", out).stdout
    )
    assert "exists already" in dml("export", photo_run, "--to", "hub", "--out", out, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


def test_the_card_has_metrics_data_and_recipe_but_no_path_of_this_machine(shared, photo_run, model):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(shared / CARD)
    result = json.loads((photo_run / "evaluation.json").read_text())
    assert {each.metric_type: each.metric_value for each in card.data.eval_results} == {
        "recall@1": result["recall@1"]
    }
    assert (card.data.library_name, card.data.tags[2]) == ("dml-train", "tiny")
    assert (
        f"| Recall@1 | {result['recall@1']:.4f} | 0.2500 to 0.7500 |" in card.text
    )  # TinyEvaluation's interval
    assert 'open_model("hf:OWNER/photos-12")' in card.text
    assert '[backbone]\nname = "small-conv"' in card.text
    assert "- crop: the middle 16 x 16" in card.text
    root = model.recipe.dataset["root"]
    for file in (CARD, CONFIG):
        text = (shared / file).read_text()
        assert root not in text
        assert str(photo_run) not in text


def test_a_network_is_opened_by_name_from_the_cache(
    shared, model, photos, registry, tmp_path, monkeypatch
):
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder, commit = (
        tmp_path / "models--someone--photos",
        "0123456789abcdef0123456789abcdef01234567",
    )
    (folder / "refs").mkdir(parents=True)
    for name in ("main", "v1"):
        (folder / "refs" / name).write_text(commit)
    (folder / "blobs").mkdir()
    (folder / "snapshots" / commit).mkdir(parents=True)
    for file in shared.iterdir():  # the client stores contents once, and links to them
        shutil.copy(file, folder / "blobs" / f"etag-of-{file.name}")
        (folder / "snapshots" / commit / file.name).symlink_to(f"../../blobs/etag-of-{file.name}")
    files = sorted(photos.rglob("*.png"))
    for name in ("hf:someone/photos", "hf:someone/photos@v1"):
        np.testing.assert_array_equal(
            open_model(name, registry).embed_images(files), model.embed_images(files)
        )
    for name in ("hf:someone/other", "hf:someone/photos@v2", "hf:not/a/name"):
        with pytest.raises(DmlError, match=f"can't get {name} from the Hub or from the cache"):
            open_model(name, registry)


def test_a_whitening_is_shared(photo_run, photos, registry, tmp_path):
    run = shutil.copytree(photo_run, tmp_path / "run")
    evaluate_run(run, whiten=5, registry=registry)
    whitened = open_model(run, registry)
    assert export(whitened, "hub", tmp_path / "hub", registry) < 1e-6
    files = sorted(photos.rglob("*.png"))
    opened = open_model(tmp_path / "hub", registry)
    assert opened.dim == 5
    np.testing.assert_array_equal(opened.embed_images(files), whitened.embed_images(files))
    assert "a PCA whitening to 5 numbers" in (tmp_path / "hub" / CARD).read_text()


def changed(**keys):
    return lambda folder: (folder / CONFIG).write_text(
        json.dumps({**json.loads((folder / CONFIG).read_text()), **keys})
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / CONFIG).write_text("{"), "config.json is corrupt"),
        (changed(library_name="timm"), "has library_name 'timm'; expected 'dml-train'"),
        (changed(recipe=None), "has recipe None; expected a dict"),
        (lambda folder: (folder / WEIGHTS).unlink(), "doesn't contain the network's weights"),
        (
            lambda folder: (folder / WEIGHTS).write_bytes(b"{}"),
            "doesn't contain the network's weights",
        ),
        (
            changed(input_shape=[1, 16, 16]),
            "doesn't contain the network's weights: .*size mismatch",
        ),
    ],
)
def test_a_damaged_folder_is_explained(shared, registry, tmp_path, damage, message):
    folder = shutil.copytree(shared, tmp_path / "hub")
    damage(folder)
    with pytest.raises(DmlError, match=message):
        open_model(folder, registry)


def test_other_steps_and_other_folders(shared, registry, photo_run, tmp_path):
    with pytest.raises(DmlError, match="has the weights of a single step"):
        open_model(shared, registry, step=3)
    assert find_hub_folder(photo_run) is None
    with pytest.raises(DmlError, match="is not a run's folder"):
        open_model(tmp_path, registry)
