"""Mirror images, whitening, query expansion and re-ranking of a trained network's embeddings."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch
from train_support.photo_world import train_on, write_photos
from train_support.tiny_world import make_registry, provide

from dml_core import DmlError
from dml_eval_rs.evaluators import Evaluator
from dml_train.measure.embed import embed
from dml_train.run_folder import RunFolder
from dml_train.trained.evaluation import evaluate_run
from dml_train.trained.export import EXPORTERS
from dml_train.trained.model import open_model
from dml_train.trained.search import Gallery, search
from dml_train.trained.whitening import fit_whitening, whiten
from dml_train.training.run import reopen


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train on photos in arbitrary classes, so that metrics are far from 1."""
    root = tmp_path_factory.mktemp("arbitrary")
    files = sorted(write_photos(root / "data").rglob("*.png"))
    contents = [file.read_bytes() for file in files]
    for file, index in zip(files, np.random.default_rng(0).permutation(len(files))):
        file.write_bytes(contents[index])
    return train_on(root / "data", root / "run", make_registry())


@pytest.fixture
def run_copy(trained, tmp_path):
    """Copy the run for a test that changes it."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def exact(registry):
    provide(registry, "evaluators", "of-dml-eval-rs", Evaluator)
    return {
        "evaluator": "of-dml-eval-rs",
        "options": {"metrics": ["recall@1", "map"]},
        "registry": registry,
    }


def split_rows(run, registry, split="test"):
    """Embed a split by the definition, without `flips` and whitening."""
    experiment = reopen(run, registry)[1]
    network, device = experiment.evaluated_model, experiment.device

    def rows(images):
        return network(images).detach().numpy()

    part = getattr(experiment, split, None) or experiment.dataset.test
    network.eval()
    images = part.load(np.arange(len(part)))
    assert np.allclose(embed(network, part, device=device), rows(images), atol=1e-5)
    return rows(images), rows(images.flip(3)), part.labels


def whiten_by_definition(train, rows, dim):
    train, rows = (
        x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train.astype(np.float64), rows)
    )
    mean = train.mean(axis=0)
    _, s, directions = np.linalg.svd(train - mean, full_matrices=False)
    return (rows - mean) @ (directions[:dim] / (s[:dim, None] / np.sqrt(len(train)))).T


def same_up_to_signs(a, b):
    """Compare columns up to their signs, which principal directions don't determine."""
    signs = np.sign((a * b).sum(axis=0))
    return np.allclose(a, b * signs, rtol=1e-3, atol=1e-3)


def test_a_flip_averages_the_embeddings_of_both_images(trained, registry, exact):
    plain, mirrored, labels = split_rows(trained, registry)
    found = evaluate_run(trained, flip=True, **exact)
    expected = Evaluator(metrics=["recall@1", "map"]).evaluate((plain + mirrored) / 2, labels)
    assert dict(found) == pytest.approx(dict(expected))
    assert dict(found) != dict(evaluate_run(trained, **exact))


def test_a_whitening_gives_the_training_images_a_unit_covariance():
    rows = np.random.default_rng(0).normal(size=(200, 6)) @ np.diag([4, 3, 2, 1, 1, 1]) + 2
    whitening = fit_whitening(rows.astype(np.float32), 4)
    whitened = whiten(whitening, rows.astype(np.float32))
    np.testing.assert_allclose(np.cov(whitened.T, bias=True), np.eye(4), atol=1e-4)
    assert same_up_to_signs(whitened, whiten_by_definition(rows, rows, 4))
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_array_equal(whiten(whitening, rows.astype(np.float32)), whitened)


@pytest.mark.parametrize("dim", [0, 3])
def test_a_whitening_needs_directions_that_vary(dim):
    rows = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    with pytest.raises(
        DmlError, match=f"dimension is {dim}; expected 1 to 2, the rank .* 50 training images"
    ):
        fit_whitening(np.concatenate([rows, rows], axis=1), dim)


def test_eval_learns_a_whitening_that_embed_and_search_apply(
    dml, run_copy, photos, registry, exact, tmp_path
):
    plain = open_model(run_copy, registry)
    before = evaluate_run(run_copy, **exact)
    train_rows, test_rows = (
        split_rows(run_copy, registry, split)[0] for split in ("train", "test")
    )
    labels = split_rows(run_copy, registry)[2]
    expected_rows = whiten_by_definition(train_rows, test_rows, 5)
    found = evaluate_run(run_copy, whiten=5, **exact)
    expected = Evaluator(metrics=["recall@1", "map"]).evaluate(expected_rows, labels)
    assert dict(found) == pytest.approx(dict(expected))

    model = open_model(run_copy, registry)
    assert (model.dim, model.weights != plain.weights) == (5, True)
    assert open_model(run_copy, registry, whitened=False).dim == 12
    files = sorted(photos.rglob("*.png"))
    rows = whiten_by_definition(train_rows, plain.embed_images(files), 5)
    assert same_up_to_signs(model.embed_images(files), rows)
    dml("embed", run_copy, photos, "--out", tmp_path / "photos.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "photos.npy"), model.embed_images(files))
    gallery = Gallery.of_run(model, registry)
    assert same_up_to_signs(gallery.rows, expected_rows)
    assert search(model, gallery, files[:1], registry=registry)[0].indices
    assert dict(evaluate_run(run_copy, **exact)) == dict(before)  # without the whitening

    damaged = RunFolder(run_copy).whitening
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(DmlError, match=r"is damaged .*learn it again"):
        open_model(run_copy, registry)


def test_a_whitening_of_other_weights_is_not_applied(run, registry):
    folder = run()
    evaluate_run(folder.path, whiten=3, step=8, registry=registry)
    assert open_model(folder.path, registry, step=8).dim == 3
    assert open_model(folder.path, registry).dim == 8


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), [("torch-export", "m.pt2"), ("onnx", "m.onnx")])
def test_exported_networks_whiten(dml, run_copy, registry, tmp_path, form, name):
    evaluate_run(run_copy, whiten=4, registry=registry)
    if form == "onnx":
        pytest.importorskip("onnxscript")
    dml("export", run_copy, "--to", form, "--out", tmp_path / name)
    images = torch.randn(3, 3, 16, 16)
    expected = open_model(run_copy, registry).embed(images)
    assert expected.shape == (3, 4)
    found = EXPORTERS[form].read(tmp_path / name)(images)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_the_command_adds_rows_to_the_report(dml, run_copy, registry, exact, tmp_path):
    name, out = "of-dml-eval-rs", tmp_path / "out.json"
    settings = ["--evaluator", name, "--set", 'evaluation.metrics=["recall@1", "map"]']
    said = dml(
        "eval",
        run_copy,
        "--rerank",
        "--set",
        "rerank.k1=4",
        "--set",
        "expand.k=2",
        *settings,
        "--out",
        out,
    )
    found = evaluate_run(run_copy, expand={"k": 2}, rerank={"k1": 4}, **exact)
    assert json.loads(out.read_text()) == found.to_dict()
    assert re.search(r"comparison.json: a row for the next report: expand \+ rerank", said.stderr)
    dml("eval", run_copy, "--flip", "--whiten", 4, *settings)
    rows = json.loads(RunFolder(run_copy).comparison.read_text())
    assert {key: row["bytes_per_item"] for key, row in rows.items()} == {
        "expand + rerank": 48,
        "flip + whiten 4": 16,
    }
    evaluator, labels = Evaluator(metrics=["map"]), np.load(run_copy / "labels.npy")
    expanded = evaluator.expand(np.load(run_copy / "embeddings.npy"), k=2)
    assert found["map"] == evaluator.evaluate_reranked(expanded, labels, k1=4)["map"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rerank"], "TinyEvaluator can't expand queries or re-rank; use 'exact'"),
        (["--rerank", "--evaluator", "of-dml-eval-rs"], "can't evaluate: k1 is 20; expected 1 to"),
        (["--whiten", 99], "the whitened dimension is 99; expected 1 to"),
        (
            ["--set", "rerank=3"],
            "dml eval changes only keys of the tables [evaluation], [expand] and [rerank]",
        ),
    ],
)
def test_bad_options_are_explained(dml, run_copy, exact, arguments, message):
    assert message in re.sub(r"\s+", " ", dml("eval", run_copy, *arguments, code=2).output)
    assert not RunFolder(run_copy).whitening.exists()


def test_arrays_have_no_images(dml, trained):
    arrays = [trained / "embeddings.npy", trained / "labels.npy"]
    assert "no images to flip; omit --flip" in dml("eval", *arrays, "--flip", code=2).output
