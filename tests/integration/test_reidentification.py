"""Market-1501's layout, trained on and measured by the protocol of re-identification: cameras,
junk, distractors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from rich.console import Console
from torchvision import models

from dml_core import registry
from dml_eval_rs.evaluators import Evaluator
from dml_train.cli import main
from dml_train.data import factories
from dml_train.data.published.reidentification import MARKET1501
from dml_train.measure.evaluate import Embedded
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe
from dml_train.report import write_report
from dml_train.report.retrieval import NearestNeighbours
from dml_train.run_folder import RunFolder
from dml_train.trained.model import open_model
from dml_train.training.run import train

KS = (1, 5, 10)


def write_tree(root: Path) -> None:
    """Write persons seen by up to three cameras, junk and distractors; only one camera sees person
    7.
    """
    random = np.random.default_rng(0)
    frame = 0

    def write(folder: str, person: str, camera: int) -> None:
        nonlocal frame
        frame += 1
        colour = np.random.default_rng(max(int(person), 0)).integers(0, 256, 3)
        pixels = (colour + random.normal(scale=60, size=(16, 16, 3))).clip(0, 255).astype(np.uint8)
        (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / folder / f"{person}_c{camera}s1_{frame:06}_00.jpg")

    for person in range(1, 13):
        for camera in (1, 2, 3) if person != 7 else (1,):
            if person < 5:
                write("bounding_box_train", f"{person:04}", camera)
                write("bounding_box_train", f"{person:04}", camera)
            else:
                write("query", f"{person:04}", camera)
                for _ in range(1 + person % 3):
                    write("bounding_box_test", f"{person:04}", camera)
    for camera in (1, 2, 3):
        for _ in range(4):
            write("bounding_box_test", "0000", camera)
            write("bounding_box_test", "-1", camera)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, RunFolder, list[Path], list[Path]]:
    """Return the tree, a run on this tree, and the files of queries and gallery."""
    root = tmp_path_factory.mktemp("market") / "Market-1501-v15.09.15"
    write_tree(root)
    table = {"name": "market1501", "root": str(root), "resize": 16, "crop": 16, "square": True}
    document = {
        "training": {"steps": 2, "device": "cpu"},
        "dataset": table,
        "backbone": {"name": "small-conv", "widths": [8, 8]},
        "embedding": {"dim": 4},
        "sampler": {"name": "class-balanced", "classes_per_batch": 3, "images_per_class": 2},
        "loss": {"name": "norm-softmax"},
        "evaluation": {"metrics": [*(f"recall@{k}" for k in KS), "precision@5", "map"]},
        "validation": {},
        "logging": {"loggers": [{"name": "jsonl"}]},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factories.market1501, "read", replace(MARKET1501, published={}).read)
        folder = train(
            parse(document, registry()),
            root.parent / "run",
            registry=registry(),
            console=Console(quiet=True),
        )
        dataset = registry().build("datasets", table, {"seed": 0})
    return root, folder, [*dataset.test.files], [*dataset.gallery.files]


def protocol(folder: RunFolder, queries: list[Path], gallery: list[Path]) -> dict[str, np.ndarray]:
    """Compute CMC and average precision per query, image by image, as defined by the data set's
    authors.
    """

    def who(file: Path) -> tuple[int, int]:
        person, camera = re.match(r"(-?\d+)_c(\d)", file.name).groups()
        return int(person), int(camera)

    q, g = (np.load(folder.embeddings(part)).astype(np.float64) for part in ("", "gallery"))
    rows: dict[str, list[float]] = {f"recall@{k}": [] for k in KS} | {
        "map": [],
        "precision@5": [],
    }
    for query, file in zip(q, queries, strict=True):
        cosines = g @ query / np.linalg.norm(g, axis=1) / np.linalg.norm(query)
        person, camera = who(file)
        good = []
        for place in np.argsort(-cosines, kind="stable"):
            other = who(gallery[place])
            if other[0] == -1 or other == (person, camera):
                continue  # the protocol excludes these images
            good.append(other[0] == person)
        hits = np.flatnonzero(good)
        for k in KS:
            rows[f"recall@{k}"].append(float(hits[0] < k) if len(hits) else np.nan)
        precisions = [(found + 1) / (place + 1) for found, place in enumerate(hits)]
        rows["map"].append(np.mean(precisions) if precisions else np.nan)
        rows["precision@5"].append(sum(good[:5]) / 5 if len(hits) else np.nan)
    return {name: np.array(values) for name, values in rows.items()}


def dml(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def test_junk_is_left_out_and_distractors_stay(run):
    root, _, queries, gallery = run
    names = {file.name for file in (root / "bounding_box_test").iterdir()}
    assert {file.name for file in gallery} == {name for name in names if not name.startswith("-1")}
    assert sum(file.name.startswith("0000") for file in gallery) == 12
    assert {file.name for file in queries} == {file.name for file in (root / "query").iterdir()}


def test_the_run_is_measured_by_the_protocol_of_the_data_set(run):
    _, folder, queries, gallery = run
    expected, measured = protocol(folder, queries, gallery), folder.read_evaluation()
    assert (measured["n_queries"], measured["n_unmatched"]) == (
        22,
        1,
    )  # person 7 has a single camera
    with np.load(folder.per_query) as saved:
        for name, values in expected.items():
            np.testing.assert_allclose(
                saved[name], values, rtol=1e-12
            )  # the order of sums may differ
    assert measured["map"] == pytest.approx(np.nanmean(expected["map"]))
    for k in KS:
        assert measured[f"recall@{k}"] == np.nanmean(expected[f"recall@{k}"])
    assert 0.2 < measured["map"] < 0.999


def test_the_commands_show_the_metrics_of_the_protocol(run, tmp_path):
    _, folder, queries, gallery = run
    expected = protocol(folder, queries, gallery)
    mean = np.nanmean(expected["map"])
    assert re.search(rf"mAP +{mean:.4f}", dml("eval", folder.path).output)
    counted = dml(
        "eval", folder.path, "--set", "evaluation.unmatched=zero", "--out", tmp_path / "zero.json"
    )
    missed = np.nan_to_num(expected["map"]).mean()
    assert re.search(rf"mAP +{missed:.4f}", counted.output)
    groups = [
        np.array([re.search("_(c.)", file.name)[1] for file in files])
        for files in (queries, gallery)
    ]
    for name, array in zip(("groups", "gallery_groups"), groups, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    arrays = [folder.embeddings(), folder.labels()]
    others = [
        "--gallery",
        folder.embeddings("gallery"),
        "--gallery-labels",
        folder.labels("gallery"),
    ]
    cameras = [
        "--groups",
        tmp_path / "groups.npy",
        "--gallery-groups",
        tmp_path / "gallery_groups.npy",
    ]
    asked = ["--set", 'evaluation.metrics=["map"]']
    assert re.search(rf"mAP +{mean:.4f}", dml("eval", *arrays, *others, *cameras, *asked).output)
    assert not re.search(rf"mAP +{mean:.4f}", dml("eval", *arrays, *others, *asked).output)
    assert dml("eval", folder.path, *cameras).exit_code == 2
    page = write_report(folder.path, registry()).read_text(encoding="utf-8")
    row = page[page.index("mAP") :][:400]
    assert f"{mean:.4f}" in row or f"{100 * mean:.1f}" in row
    assert "Precision@5" in page


def test_reports_show_neighbours_without_those_of_the_querys_camera(run):
    _, folder, queries, gallery = run
    neighbours = NearestNeighbours.find(Evaluator(), Embedded.read(folder))
    expected = protocol(folder, queries, gallery)
    assert np.array_equal(neighbours.matched_Q, ~np.isnan(expected["map"]))
    found_Q = neighbours.right_QK[neighbours.matched_Q, 0]
    assert np.array_equal(found_Q, expected["recall@1"][neighbours.matched_Q].astype(bool))


def test_the_recipe_of_the_strong_baseline_trains_on_the_official_layout(tmp_path, monkeypatch):
    """Train for a step at a quarter of the size, from random weights in torchvision's form."""
    write_tree(tmp_path)
    torch.save(models.resnet50().state_dict(), tmp_path / "resnet50.pth")
    document = load_recipe("reid/market1501").to_dict()
    for table in (document["dataset"], document["dataset"]["augment"][0]):
        table |= {key: [64, 32] for key in ("resize", "crop", "size") if key in table}
    document["dataset"]["root"] = str(tmp_path)
    document["backbone"]["weights"] = str(tmp_path / "resnet50.pth")
    document["training"] = {"steps": 1, "device": "cpu"}
    document["sampler"] |= {"classes_per_batch": 4, "images_per_class": 2}
    document["evaluation"]["baselines"] = False
    document["schedule"] = document["checkpoints"] = {}
    monkeypatch.setattr(factories.market1501, "read", replace(MARKET1501, published={}).read)
    folder = train(parse(document, registry()), tmp_path / "run", console=Console(quiet=True))
    model = open_model(folder.path)
    assert model.input_shape == (3, 64, 32)
    assert np.load(folder.embeddings()).shape == (22, 2048)
    assert folder.read_evaluation()["n_unmatched"] == 1  # person 7 has a single camera
