"""The page that is made of a run's folder."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from tiny_world import TinyDataset

import dml_core.plugin
from dml_core import Component, DmlError, Plugins, Registry, hookimpl
from dml_train import backbones, loggers
from dml_train.embedding import Embedded
from dml_train.recipe import parse
from dml_train.report import COMPARISON, write_report
from dml_train.report.figures import curves, map_of_pictures, principal_plane, thumbnail
from dml_train.report.retrieval import Search

HOSTILE = '<script>alert("1")</script>'
NAMES = [HOSTILE, "a & b", '" onerror="alert(1)', "$x^2$", "{{ 7 * 7 }}", "ünïcode ✓"]


class NearestBySorting:
    """Enough of an evaluator: search and Recall@1 by sorting, with intervals."""

    def __init__(self, nmi: bool = False) -> None:
        self.nmi = nmi

    def nearest(self, queries, gallery, k, *, exclude_self=False):
        rows, others = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, gallery))
        similarity = rows @ others.T
        if exclude_self:
            np.fill_diagonal(similarity, -2.0)
        indices = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(similarity, indices, axis=1), indices

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        alone = gallery is None
        _, nearest = self.nearest(embeddings, embeddings if alone else gallery, 1, exclude_self=alone)
        right = (np.asarray(labels if alone else gallery_labels)[nearest[:, 0]] == labels).astype(np.float64)
        return SimpleNamespace(
            per_query={"recall@1": right},
            confidence_interval=lambda name, level: SimpleNamespace(low=0.25, high=0.75),
            to_dict=lambda: {"recall": {"1": float(right.mean())}},
        )

    def bytes_per_item(self, dim):
        return 4 * dim


class HostileDataset(TinyDataset):
    """The tiny data with names that would break a careless page, and pictures of two sizes."""

    def __init__(self, gone: bool = False, seed: int = 0) -> None:
        if gone:
            raise DmlError(f"can't read the image {HOSTILE}.png")
        super().__init__(seed=seed)
        self.test.class_names = NAMES
        self.test.picture = lambda i: np.full((200, 150, 3) if i % 2 else (4, 4, 3), i, dtype=np.uint8)


class ReportPlugin:
    @hookimpl
    def dml_datasets(self):
        yield Component("hostile", HostileDataset, "hostile names")

    @hookimpl
    def dml_evaluators(self):
        yield Component("exact", NearestBySorting, "by sorting")

    @hookimpl
    def dml_backbones(self):
        return backbones.components()

    @hookimpl
    def dml_losses(self):
        yield Component("tiny", lambda: None, "nothing")

    @hookimpl
    def dml_loggers(self):
        return loggers.components()


@pytest.fixture
def registry():
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core")
    plugins.register(ReportPlugin(), distribution="report")
    return Registry(plugins)


@pytest.fixture
def run(tmp_path, registry):
    """A finished run's folder, but for what training itself leaves."""
    folder = tmp_path / "a <b>run"
    folder.mkdir()
    document = {
        "training": {"steps": 40},
        "dataset": {"name": "hostile"},
        "backbone": {"name": "small-conv"},
        "embedding": {"dim": 5},
        "sampler": {"name": "class-balanced", "classes_per_batch": 2, "images_per_class": 2},
        "loss": {"name": "tiny"},
        "evaluation": {"name": "exact", "nmi": True},
    }
    (folder / "recipe.toml").write_text(parse(document, registry).to_toml())
    labels = HostileDataset().test.labels
    np.save(folder / "labels.npy", labels)
    random = np.random.default_rng(0)
    np.save(
        folder / "embeddings.npy", random.normal(size=(6, 5))[labels] + random.normal(size=(len(labels), 5))
    )
    (folder / "evaluation.json").write_text(
        json.dumps(
            {
                "recall": {"1": 0.5},
                "map_at_r": 0.25,
                "nmi": 0.125,
                "step": 40,
                "n_queries": 48,
                "n_unmatched": 0,
            }
        )
    )
    lines = [{"step": s, "loss": 5.0 / s, "optimizer.lr": 0.1} for s in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class Page(html.parser.HTMLParser):
    """The tags of a page with their attributes, and its text."""

    VOID = frozenset({"meta", "img", "source", "br", "hr", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += " "  # cells stand apart

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(run, registry) -> Page:
    path = write_report(run, registry)
    assert path == run / "report.html"
    return Page(path.read_text(encoding="utf-8"))


# --- the page -------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_from_elsewhere(run, registry):
    page = page_of(run, registry)
    assert page.all("script") == page.all("link") == page.all("iframe") == []
    sources = [a["src"] for a in page.all("img")] + [a["srcset"] for a in page.all("source")]
    assert sources
    assert all(re.match(r"data:image/(png|jpeg|svg\+xml);base64,", source) for source in sources)
    assert all(a["href"].startswith("#") for a in page.all("a"))
    assert "url(" not in (run / "report.html").read_text()


def test_every_picture_decodes(run, registry):
    for attributes in page_of(run, registry).all("img"):
        kind, _, data = attributes["src"].partition(";base64,")
        content = base64.b64decode(data, validate=True)
        if kind == "data:image/svg+xml":
            assert b"<svg" in content
        else:
            Image.open(io.BytesIO(content)).load()


def test_hostile_names_stay_text(run, registry):
    page = page_of(run, registry)
    for name in [*NAMES, "a <b>run"]:
        assert name in page.text
    assert page.all("b") == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_the_page_is_accessible(run, registry):
    page = page_of(run, registry)
    assert page.all("html") == [{"lang": "en"}]
    assert all(attributes["alt"] for attributes in page.all("img"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in page.all("a"):
        assert attributes["href"][1:] in ids
    for _, attributes in page.tags:  # what scrolls can be reached by keyboard and has a name
        if attributes.get("class") in ("scroll", "found"):
            assert attributes["tabindex"] == "0"
            assert attributes.get("aria-label") or attributes["aria-labelledby"] in ids
    assert next(tag for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)) == "h1"


def test_right_and_wrong_are_told_in_words(run, registry):
    page = page_of(run, registry)
    found = [a["class"] for a in page.all("li") if a.get("class", "").startswith("card")]
    assert page.text.count("✓ right") == found.count("card right") > 0
    assert page.text.count("✗ wrong") == found.count("card wrong") > 0


def test_figures_and_their_intervals_are_shown(run, registry):
    text = " ".join(page_of(run, registry).text.split())
    assert "Recall@1 0.5000 0.2500 to 0.7500" in text
    assert "MAP@R 0.2500 –" in text  # the evaluator here has no value of it for each query
    assert "NMI 0.1250 –" in text
    assert "loss: from 5 to 0.125" in text


def test_a_comparison_is_shown_where_there_is_one(run, registry):
    assert "Bytes an item" not in page_of(run, registry).text
    row = {
        "recall": {"1": 0.7, "10": 0.9},
        "map_at_r": 0.5,
        "r_precision": 0.6,
        "nmi": None,
        "bytes_per_item": 2048,
    }
    (run / COMPARISON).write_text(json.dumps({"<i>raw</i>": row}))
    page = page_of(run, registry)
    assert "<i>raw</i> 0.7000 0.9000 0.5000 0.6000 – 2,048" in " ".join(page.text.split())
    assert page.all("i") == []


def test_the_page_is_the_same_every_time(run, registry):
    first = write_report(run, registry).read_bytes()
    assert write_report(run, registry).read_bytes() == first


def test_without_the_data_set_there_is_a_note_and_all_else(run, registry):
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("gone = false", "gone = true"))
    page = page_of(run, registry)
    assert f"the data set can’t be had: can't read the image {HOSTILE}.png" in page.text
    assert "item 0" in page.text
    assert "Worst classes" in page.text


def test_data_that_have_changed_are_not_shown_as_the_runs(run, registry):
    np.save(run / "labels.npy", np.roll(np.load(run / "labels.npy"), 1))
    assert "it has changed since" in page_of(run, registry).text


def test_a_gallery_of_its_own_is_searched(run, registry):
    np.save(run / "gallery_embeddings.npy", np.load(run / "embeddings.npy")[::2])
    np.save(run / "gallery_labels.npy", np.load(run / "labels.npy")[::2])
    assert "it has changed since" in page_of(run, registry).text  # the data set has no such gallery
    assert "✓ right" in page_of(run, registry).text


def test_a_run_that_has_not_ended_is_refused(run, registry):
    (run / "evaluation.json").unlink()
    with pytest.raises(DmlError, match=r"has no evaluation\.json yet"):
        write_report(run, registry)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("name", ["evaluation.json", "metrics.jsonl", "embeddings.npy", "recipe.toml"])
def test_a_damaged_file_is_named(run, registry, name):
    (run / name).write_bytes(b"{{{ damaged")
    with pytest.raises(DmlError, match=re.escape(name)):
        write_report(run, registry)


def test_a_folder_that_is_no_run_is_refused(tmp_path, registry):
    with pytest.raises(DmlError, match="not a run's folder"):
        write_report(tmp_path, registry)


# --- its parts ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(data=st.data(), alone=st.booleans())
def test_worst_classes_are_those_of_a_plain_count(data, alone):
    number = data.draw(st.integers(2, 14))
    labels = data.draw(arrays(np.int64, number, elements=st.integers(0, 4)))
    gallery_labels = labels if alone else data.draw(arrays(np.int64, 6, elements=st.integers(0, 4)))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    queries, gallery = random.normal(size=(number, 3)), random.normal(size=(len(gallery_labels), 3))
    embedded = Embedded(queries, labels) if alone else Embedded(queries, labels, gallery, gallery_labels)
    search = Search.of(NearestBySorting(), embedded)

    expected = {}
    for q in range(number):
        others = [g for g in range(len(gallery_labels)) if not (alone and g == q)]
        if not any(gallery_labels[g] == labels[q] for g in others):
            continue
        space = queries if alone else gallery
        nearest = max(others, key=lambda g: space[g] @ queries[q] / np.linalg.norm(space[g]))
        expected.setdefault(int(labels[q]), []).append(bool(gallery_labels[nearest] == labels[q]))
    wrong = {label: sum(right) / len(right) for label, right in expected.items() if not all(right)}
    worst = search.worst_classes()
    assert {w.label: w.recall for w in worst} == wrong
    assert [w.recall for w in worst] == sorted(w.recall for w in worst)
    for w in worst:
        assert w.items == len(expected[w.label])
        assert labels[w.query] == w.label
        assert 1 <= w.times <= w.items - sum(expected[w.label])
        assert gallery_labels[w.taken_for] != w.label
    for kind in (True, False):
        for example in search.examples(kind):
            assert example.right[0] is kind


def test_the_principal_plane_is_that_of_the_singular_vectors():
    random = np.random.default_rng(1)
    embeddings = random.normal(size=(40, 6)) * [5, 3, 1, 1, 1, 1]
    points, share = principal_plane(embeddings.astype(np.float32))
    rows = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    rows -= rows.mean(axis=0)
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    # The rows were rounded to float32.
    np.testing.assert_allclose(np.abs(points), np.abs(left[:, :2] * values[:2]), atol=1e-5)
    assert share == pytest.approx((values[:2] ** 2).sum() / (values**2).sum(), abs=1e-5)


@pytest.mark.parametrize(
    "embeddings", [np.ones((3, 4)), np.array([[1.0], [-1.0]]), np.zeros((2, 2))], ids=str
)
def test_embeddings_with_little_to_show_have_a_plane(embeddings):
    points, share = principal_plane(embeddings)
    assert points.shape == (len(embeddings), 2)
    assert np.isfinite(points).all()
    assert 0.0 <= share <= 1.0 + 1e-12
    assert map_of_pictures(points, lambda i: np.zeros((4, 4, 3), dtype=np.uint8)).alt


def test_long_curves_are_means_of_equal_stretches():
    lines = [{"step": s, "loss": float(s)} for s in range(1, 1001)] + [
        {"step": 1000, "evaluation/recall/1": 0.5}
    ]
    (figure,) = curves(lines)  # one point is no curve
    assert figure.caption == "loss, means of 3 steps: from 1 to 1000."
    assert curves([]) == []


def test_thumbnails_are_small_and_drawings_are_left_as_they_are():
    drawing = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    kept = Image.open(io.BytesIO(base64.b64decode(thumbnail(drawing).partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(kept), drawing)
    photograph = np.zeros((600, 300, 3), dtype=np.uint8)
    assert Image.open(io.BytesIO(base64.b64decode(thumbnail(photograph).partition(",")[2]))).size == (48, 96)
