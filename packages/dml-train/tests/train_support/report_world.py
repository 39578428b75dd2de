"""Tests of reports share these: data with hostile names, small evaluators, finished runs, and a page's tags."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import dml_core.plugin
from dml_core import Component, DmlError, Plugins, Registry, hookimpl
from dml_train import plugin
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from train_support.tiny_world import TinyDataset

HOSTILE = '<script>alert("1")</script>'
NAMES = [HOSTILE, "a & b", '" onerror="alert(1)', "$x^2$", "{{ 7 * 7 }}", "ünïcode ✓"]


class Measurement(dict):
    """Recall@1 of each query, with a fixed interval and a test that only subtracts."""

    def __init__(self, right: np.ndarray) -> None:
        super().__init__({"recall@1": float(right.mean())})
        self.per_query = {"recall@1": right}

    def confidence_interval(self, name, level):
        return SimpleNamespace(low=0.25, high=0.75)

    def compare(self, other, name):
        difference = float((self.per_query[name] - other.per_query[name]).mean())
        return SimpleNamespace(
            difference=difference, p_value=0.03125, interval=SimpleNamespace(low=-0.5, high=0.5)
        )

    def to_dict(self):
        return dict(self)


class NearestBySorting:
    """A minimal evaluator: search and Recall@1 by sorting."""

    def __init__(self, metrics: Sequence[str] = ("recall@1",)) -> None:
        self.metrics = metrics

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
        return Measurement(
            (np.asarray(labels if alone else gallery_labels)[nearest[:, 0]] == labels).astype(np.float64)
        )

    def restore(self, metrics, per_query):
        return Measurement(per_query["recall@1"])

    def bytes_per_item(self, dim):
        return 4 * dim


class SignsBySorting(NearestBySorting):
    """The same for the embeddings' signs."""

    def nearest(self, queries, gallery, k, *, exclude_self=False):
        return super().nearest(
            *(np.where(x > 0, 1.0, -1.0) for x in (queries, gallery)), k, exclude_self=exclude_self
        )

    def bytes_per_item(self, dim):
        return -(-dim // 8)


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
        yield Component("hamming", SignsBySorting, "signs by sorting")

    @hookimpl
    def dml_backbones(self):
        return plugin.dml_backbones()

    @hookimpl
    def dml_losses(self):
        yield Component("tiny", lambda: None, "nothing")

    @hookimpl
    def dml_loggers(self):
        return plugin.dml_loggers()


def report_registry() -> Registry:
    """Return a registry with all components of the runs below."""
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core")
    plugins.register(ReportPlugin(), distribution="report")
    return Registry(plugins)


def finished_run(folder: Path, registry: Registry, *, seed: int = 0, **result: object) -> Path:
    """Write the files of a finished run that reports read: six classes of eight items.

    Args:
        folder: the new folder.
        registry: of `report_registry`.
        seed: of the embeddings.
        result: further keys of evaluation.json.
    """
    folder.mkdir(parents=True)
    document = {
        "training": {"steps": 40, "seed": seed},
        "dataset": {"name": "hostile"},
        "backbone": {"name": "small-conv"},
        "embedding": {"dim": 5},
        "sampler": {"name": "class-balanced", "classes_per_batch": 2, "images_per_class": 2},
        "loss": {"name": "tiny"},
        "evaluation": {"name": "exact", "metrics": ["recall@1", "map@r", "nmi"]},
    }
    (folder / "recipe.toml").write_text(parse(document, registry).to_toml())
    labels = HostileDataset().test.labels
    np.save(folder / "labels.npy", labels)
    random = np.random.default_rng(seed)
    centres, noise = random.normal(size=(6, 5)), random.normal(size=(len(labels), 5))
    np.save(folder / "embeddings.npy", centres[labels] + noise)
    figures = {
        "recall@1": 0.5,
        "map@r": 0.25,
        "nmi": 0.125,
        "step": 40,
        "n_queries": 48,
        "n_unmatched": 0,
    }
    (folder / "evaluation.json").write_text(json.dumps(figures | result))
    lines = [{"step": s, "loss": 5.0 / s, "optimizer.lr": 0.1} for s in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    RunFolder(folder).write_manifest()
    return folder


def forget_test_split(run: Path) -> None:
    """Change a finished run into one that didn't use its test split."""
    recipe = run / "recipe.toml"
    text = recipe.read_text().replace("test = true", "test = false")
    text = text.replace("class_fraction = 0.0", "class_fraction = 0.5")
    recipe.write_text(re.sub(r"(\[evaluation\][^\[]*)every = 0\.0", r"\1every = 1.0", text))


class Page(html.parser.HTMLParser):
    """The tags of a page with their attributes, and its text."""

    VOID = frozenset({"meta", "img", "source", "br", "hr", "input", "link"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == []

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += " "  # separates cells

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def check_page(page: Page) -> None:
    """Check the rules for every page: self-contained, no scripts, readable without eyes or mouse."""
    assert page.all("script") == page.all("link") == page.all("iframe") == page.all("object") == []
    sources = [a["src"] for a in page.all("img")] + [a["srcset"] for a in page.all("source")]
    assert all(
        source.startswith(("data:image/png;", "data:image/jpeg;", "data:image/svg+xml;"))
        for source in sources
    )
    assert "url(" not in page.source
    assert "@import" not in page.source
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.all("html") == [{"lang": "en"}]
    assert all(attributes["alt"] for attributes in page.all("img"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in page.all("a"):  # to a place on the page, or to a file beside it
        assert attributes["href"][0] in "#."
        assert attributes["href"][0] == "." or attributes["href"][1:] in ids
    for _, attributes in page.tags:  # scrolling elements have a name and can be focused by keyboard
        if attributes.get("class") in ("scroll", "found"):
            assert attributes["tabindex"] == "0"
            assert attributes.get("aria-label") or attributes["aria-labelledby"] in ids
    headings = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4", "h5", "h6")]
    assert headings[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))
