"""The report of a run."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from train_support.report_world import Page, check_page, finished_run, forget_test_split
from train_support.tiny_world import HOSTILE, NAMES, TinySplit, make_registry

from dml_train.report import write_report
from dml_train.run_folder import RunFolder
from dml_train.seeds import row_seeds


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory) -> Page:
    """Return the page of an unchanged run."""
    registry = make_registry()
    return page_of(finished_run(tmp_path_factory.mktemp("runs") / "a <b>run", registry), registry)


@pytest.fixture
def run(tmp_path, registry):
    return finished_run(tmp_path / "a <b>run", registry)


def page_of(run, registry) -> Page:
    path = write_report(run, registry)
    assert path == run / "report.html"
    return Page(path)


def test_the_page_is_self_contained_and_accessible_and_every_picture_decodes(unchanged):
    check_page(unchanged)
    pictures = unchanged.all("img")
    assert len(pictures) > 20
    for attributes in pictures:
        kind, _, data = attributes["src"].partition(";base64,")
        content = base64.b64decode(data, validate=True)
        if kind == "data:image/svg+xml":
            assert b"<svg" in content
        else:
            Image.open(io.BytesIO(content)).load()


def test_hostile_names_stay_text(unchanged):
    for name in [*NAMES, "a <b>run"]:
        assert name in unchanged.text
    assert unchanged.all("b") == []


def test_metrics_are_shown_with_intervals_and_explained_and_right_and_wrong_are_also_said_in_words(
    unchanged,
):
    words = unchanged.words
    assert "Recall@1 0.5000 0.2500 to 0.7500" in words
    assert "MAP@R 0.2500 –" in words  # MAP@R lacks per-query values, so it has no interval
    assert "NMI 0.1250 –" in words
    assert "loss: from 5 to 0.125" in words
    assert "Recall@K the share of queries with a match among their K nearest items" in words
    assert "NMI mutual information of k-means clusters and labels" in words
    assert "mINP" not in words
    assert re.search(r"Class size against recall .* 8 6 0\.\d{4} 0\.\d{4} ", words)
    found = [a["class"] for a in unchanged.all("li") if a.get("class", "").startswith("card")]
    assert unchanged.text.count("✓ right") == found.count("card right") > 0
    assert unchanged.text.count("✗ wrong") == found.count("card wrong") > 0


def test_floats_are_compared_with_codes_by_a_paired_test_and_the_page_is_the_same_every_time(
    run, registry
):
    embeddings, labels = (np.load(run / f"{name}.npy") for name in ("embeddings", "labels"))

    def recall(rows):
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        similarity = rows @ rows.T
        np.fill_diagonal(similarity, -2)
        return float(
            (labels[np.argsort(-similarity, axis=1, kind="stable")[:, 0]] == labels).mean()
        )

    floats, codes = recall(embeddings), recall(np.where(embeddings > 0, 1.0, -1.0))
    difference = f"{codes - floats:+.4f}".replace("-", "−")
    words, page = page_of(run, registry).words, (run / "report.html").read_bytes()
    assert write_report(run, registry).read_bytes() == page
    assert "1 bytes per item instead of 20." in words
    assert f"Recall@1 {floats:.4f} {codes:.4f} {difference} −0.5000 to +0.5000 0.0312" in words
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('name = "exact"', 'name = "hamming"'))
    assert (
        "Floats against codes" not in page_of(run, registry).text
    )  # codes aren't compared with themselves


def test_a_note_about_weights_selected_on_the_test_split_precedes_any_metric(
    unchanged, run, registry
):
    assert "Selected on the test split" not in unchanged.words
    result = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps(result | {"selected_on": "test"}))
    RunFolder(run).write_manifest()
    words = page_of(run, registry).words
    assert words.index("Selected on the test split") < words.index("Recall@1")


def test_a_run_without_test_split_has_metrics_and_curves(run, registry):
    for name in ("embeddings.npy", "labels.npy"):
        (run / name).unlink()
    forget_test_split(run)
    result = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(
        json.dumps(result | {"split": "validation", "selected_on": "validation"})
    )
    RunFolder(run).write_manifest()
    page = page_of(run, registry)
    check_page(page)
    assert "The test split was not used" in page.words
    assert "queries of classes that were held out of training" in page.words
    assert "MAP@R 0.2500 –" in page.words
    assert "Retrieval" not in page.words


def test_a_comparison_is_shown_if_it_exists(unchanged, run, registry):
    assert "Bytes per item" not in unchanged.text
    row = {"recall@1": 0.7, "recall@10": 0.9, "map@r": 0.5, "r_precision": 0.6, "nmi": None}
    row["bytes_per_item"] = 2048
    RunFolder(run).comparison.write_text(json.dumps({"<i>raw</i>": row}))
    page = page_of(run, registry)
    assert "<i>raw</i> 0.7000 0.9000 0.6000 0.5000 – 2,048" in page.words
    assert page.all("i") == []


def test_training_images_are_shown_as_the_network_sees_them(unchanged, run, registry):
    """The hostile data set doesn't show augmented images; here it does, with the class of the
    training split.
    """
    assert "Augmentation" not in unchanged.words
    shown = []

    def augmented_picture(self, index, seed):
        shown.append((index, seed))
        return np.full((4, 4, 3), 7 * len(shown), np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TinySplit, "augmented_picture", augmented_picture, raising=False)
        page = page_of(run, registry)
    check_page(page)
    seeds = row_seeds(0, 0, np.arange(8)).tolist()
    assert shown == [(index, seed) for index in (0, 15, 31, 47) for seed in seeds]
    pictures = [a for a in page.all("img") if a["alt"].startswith("Augmentation")]
    assert len({a["src"] for a in pictures}) == 32
    assert "class 5" in page.words


def test_a_missing_data_set_leaves_a_note_and_everything_else(run, registry):
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("gone = false", "gone = true"))
    page = page_of(run, registry)
    assert f"the data set can’t be loaded: can't read the image {HOSTILE}.png" in page.text
    assert "item 0" in page.text
    assert "Worst classes" in page.text


def test_a_changed_data_set_is_not_shown_and_a_separate_gallery_is_searched(run, registry):
    labels = np.load(run / "labels.npy")
    np.save(run / "labels.npy", np.roll(labels, 1))
    RunFolder(run).write_manifest()
    assert "the data set was changed after" in page_of(run, registry).text
    np.save(run / "labels.npy", labels)
    np.save(run / "gallery_embeddings.npy", np.load(run / "embeddings.npy")[::2])
    np.save(run / "gallery_labels.npy", labels[::2])
    RunFolder(run).write_manifest()
    page = page_of(run, registry)
    assert "the data set was changed after" in page.text  # the data set does not have this gallery
    assert "✓ right" in page.text
    assert "by number of items in the gallery" in page.text
