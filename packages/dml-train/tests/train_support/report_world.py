"""Finished runs on data with hostile names, and the tags of a page."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
from pathlib import Path

import numpy as np

from dml_core import Registry
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from train_support.tiny_world import HostileDataset


def finished_run(folder: Path, registry: Registry, *, seed: int = 0, **result: object) -> Path:
    """Write the files of a finished run that reports read: six classes of eight items, drawn by the
    seed.

    Further keys go into evaluation.json.
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
    """Change a finished run into a run that didn't use the test split."""
    recipe = run / "recipe.toml"
    text = recipe.read_text().replace("test = true", "test = false")
    text = text.replace("class_fraction = 0.0", "class_fraction = 0.5")
    recipe.write_text(re.sub(r"(\[evaluation\][^\[]*)every = 0\.0", r"\1every = 1.0", text))


class Page(html.parser.HTMLParser):
    """The tags and text of a page."""

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
        """Return the text, with all whitespace reduced to single spaces."""
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
    """Check that a page is self-contained, does not use scripts, and can be read without eyes or
    mouse.
    """
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
    for attributes in page.all(
        "a"
    ):  # links lead to a place on the page, or to a file in the folder
        assert attributes["href"][0] in "#."
        assert attributes["href"][0] == "." or attributes["href"][1:] in ids
    for _, attributes in page.tags:  # scrolling elements have a name and can be focused by keyboard
        if attributes.get("class") in ("scroll", "found"):
            assert attributes["tabindex"] == "0"
            assert attributes.get("aria-label") or attributes["aria-labelledby"] in ids
    headings = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4", "h5", "h6")]
    assert headings[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))
