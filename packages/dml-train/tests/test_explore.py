"""`dml explore`: what the page shows, in Python and in a browser."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from train_support.tiny_world import TinyPlugin

import dml_core.plugin
import dml_eval_rs.plugin
import dml_train.plugin
from dml_core import DmlError, Registry
from dml_core.plugins import Plugins
from dml_train.report import explore_page
from dml_train.report.exploration import explore_folder, explore_run
from dml_train.report.explore_page import write_explore_page
from dml_train.run_folder import RunFolder

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">"
CLASSES = [HOSTILE, "apple", "pear", "plum", "quince"]
EACH = 12


class TinyWithoutEvaluator(TinyPlugin):
    """The tiny components, without the evaluator that would hide the real one."""

    dml_evaluators = None


@pytest.fixture
def registry() -> Registry:
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core", version="0.1.0")
    plugins.register(dml_train.plugin, distribution="dml-train")
    plugins.register(dml_eval_rs.plugin, distribution="dml-eval-rs", version="0.1.0")
    plugins.register(TinyWithoutEvaluator(), distribution="tiny", version="1.0")
    return Registry(plugins)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Write images, embeddings and labels. Some items lie in the cluster of another class."""
    folder = tmp_path_factory.mktemp("explore")
    random = np.random.default_rng(0)
    labels = np.repeat(CLASSES, EACH)
    centres = random.normal(size=(len(CLASSES), 16))
    rows = np.repeat(centres, EACH, axis=0) + 0.3 * random.normal(size=(len(labels), 16))
    rows[15] = rows[30] + 0.001  # an apple that looks like a pear
    np.save(folder / "rows.npy", rows.astype(np.float32))
    np.save(folder / "labels.npy", labels)
    (folder / "images").mkdir()
    for item in range(len(labels)):
        pixels = random.integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{item:03d}.png")
    return folder / "images", folder / "rows.npy", folder / "labels.npy"


@pytest.fixture
def found(files, registry):
    return explore_folder(*files, registry)


def data_of(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_neighbours_and_ranks_are_those_of_a_plain_sort(found, files):
    rows, labels = np.load(files[1]).astype(np.float64), np.load(files[2])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    similarity = rows @ rows.T
    np.fill_diagonal(similarity, -np.inf)
    order = np.argsort(-similarity, axis=1, kind="stable")
    np.testing.assert_array_equal(found.nearest, order[:, :10])
    same = labels[order] == labels[:, None]
    np.testing.assert_array_equal(found.right, same[:, :10])
    np.testing.assert_array_equal(found.rank, same.argmax(axis=1) + 1)
    assert 15 in found.wrong
    assert found.suspects.score.argmax() in (15, 30)


def test_a_page_describes_every_item_and_class(found, tmp_path):
    data = data_of(write_explore_page(found, tmp_path / "explore.html"))
    assert data["count"] == len(found)
    assert [data["names"][label] for label in data["labels"]] == list(found.classes)
    assert data["classes"][data["names"].index("pear")][0] == EACH
    assert data["nearest"] == found.nearest.tolist()
    assert data["lists"]["duplicates"][0] == [15, 30]
    assert set(data["lists"]["wrong"]) == set(found.wrong.tolist())


def test_a_large_embedding_is_sampled_but_all_wrong_items_stay(found, tmp_path, monkeypatch):
    monkeypatch.setattr(explore_page, "MOST_ITEMS", 20)
    page = write_explore_page(found, tmp_path / "explore.html")
    data = data_of(page)
    assert "The page shows 20 of 60 items" in page.read_text()
    listed = {data["files"][item] for item in data["lists"]["wrong"]}
    assert listed == {found.files[item] for item in found.wrong}
    # Neighbours that are not on the page are numbered after the items, with label and file.
    assert max(max(near) for near in data["nearest"]) >= data["count"] == 20
    assert len(data["files"]) == len(data["labels"]) > 20
    # Counts are those of all items.
    assert sum(count for count, *_ in data["classes"]) == len(found)


def test_pictures_keep_their_size_although_the_first_is_tiny(found, tmp_path):
    shapes = [(4, 4, 3)] + [(40, 20, 3)] * (len(found) - 1)
    found = replace(found, picture=lambda item: np.zeros(shapes[item], np.uint8))
    assert data_of(write_explore_page(found, tmp_path / "explore.html"))["side"] == 40


def test_a_run_is_explored_with_its_files(dml, photo_run, tmp_path):
    run = shutil.copytree(photo_run, tmp_path / "run")
    assert dml("explore", run).stdout.strip() == str(run / "explore.html")
    data = data_of(run / "explore.html")
    assert all(Path(file).is_file() for file in data["files"])
    assert "sheet-0" in (run / "explore.html").read_text()


def test_a_separate_gallery_follows_the_queries_and_pictures_may_be_missing(
    photo_run, tmp_path, registry
):
    run = shutil.copytree(photo_run, tmp_path / "run")
    rows, labels = np.load(run / "embeddings.npy"), np.load(run / "labels.npy")
    np.save(run / "gallery_embeddings.npy", rows[::2])
    np.save(run / "gallery_labels.npy", labels[::2])
    RunFolder(run).write_manifest()
    found = explore_run(run, registry)  # the data set doesn't have this gallery
    assert (found.picture, len(found)) == (None, len(rows) + len(rows[::2]))
    # Each query at an even index finds itself in the gallery.
    assert found.nearest[: len(rows) : 2, 0].tolist() == list(range(len(rows), len(found)))
    assert (found.nearest[len(rows) :] == -1).all()
    data = data_of(write_explore_page(found, tmp_path / "explore.html"))
    assert data["names"][data["labels"][0]] == f"class {labels[0]}"


def test_a_table_holds_the_items_and_their_pictures(dml, files, tmp_path, found):
    parquet = pytest.importorskip("pyarrow.parquet", reason="a table needs pyarrow")
    images, rows, labels = files
    options = ["--images", images, "--embeddings", rows, "--labels", labels]
    dml("explore", *options, "--out", tmp_path / "e.html", "--table", tmp_path / "items.parquet")
    table = parquet.read_table(tmp_path / "items.parquet").to_pylist()
    assert [row["label"] for row in table] == list(found.classes)
    assert table[3]["neighbors"]["ids"] == found.nearest[3].tolist()
    np.testing.assert_allclose(table[3]["neighbors"]["distances"], 1 - found.scores[3], atol=1e-6)
    assert table[3]["image"]["bytes"].startswith(b"\x89PNG")
    assert (table[15]["right"], table[15]["first_match"]) == (False, found.rank[15])


def test_wrong_arguments_say_what_to_give(dml, files, photo_run, tmp_path, registry):
    images, rows, labels = files
    assert "--images FOLDER and --embeddings" in dml("explore", "--images", images, code=2).output
    assert "omit --images" in dml("explore", photo_run, "--images", images, code=2).output
    short = tmp_path / "short.npy"
    np.save(short, np.load(rows)[:10])
    with pytest.raises(DmlError, match="10 embeddings, 60 labels and 60 images"):
        explore_folder(images, short, labels, registry)
    options = ["--images", images, "--embeddings", rows, "--labels", labels]
    wrong = dml("explore", *options, "--table", tmp_path / "items.csv", code=2)
    assert "ends in .parquet" in wrong.output
    wrong = dml("explore", *options, "--out", tmp_path / "missing" / "e.html", code=2)
    assert "is not a folder" in wrong.output
    assert "(--labels)" in dml("explore", *options[:4], code=2).output  # images without a folder


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda rows, labels: (rows[:, 0], labels), "has shape"),
        (lambda rows, labels: (np.where(rows == rows[3, 3], np.nan, rows), labels), "holds NaN"),
        (lambda rows, labels: (rows.astype(np.int64), labels), "has dtype int64"),
        (lambda rows, labels: (rows, np.full(len(rows), "same")), "labels are equal"),
        (lambda rows, labels: (rows, np.stack([labels] * 2, axis=1)), "one per item"),
    ],
)
def test_arrays_that_cannot_be_compared_are_one_message(files, tmp_path, registry, change, error):
    images, rows, labels = files
    new = tmp_path / "rows.npy", tmp_path / "labels.npy"
    for path, array in zip(new, change(np.load(rows), np.load(labels)), strict=True):
        np.save(path, array)
    with pytest.raises(DmlError, match=error):
        explore_folder(images, *new, registry)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)


def wait_until(page, condition: str) -> None:
    """Wait for a condition. Playwright's `wait_for_function` needs eval, which the page forbids."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"after five seconds, not yet: {condition}")


@pytest.fixture
def visit(found, tmp_path):
    """Open the page in a browser, at an address and a width; an error in the page fails the
    test.
    """
    reason = "needs Playwright (pip install playwright) and Chromium on the PATH"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    if browser is None:
        pytest.skip(reason)
    page_file = write_explore_page(found, tmp_path / "explore.html")
    errors: list[str] = []
    with playwright.sync_playwright() as engine:
        chromium = engine.chromium.launch(executable_path=browser, args=["--no-sandbox"])

        def visit(address: str = "", width: int = 1280, scheme: str = "light"):
            size = {"width": width, "height": 800}
            context = chromium.new_context(
                viewport=size, color_scheme=scheme, has_touch=width < 600
            )
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on(
                "console",
                lambda message: errors.append(message.text) if message.type == "error" else None,
            )
            page.goto(page_file.as_uri() + address)
            return page

        yield visit
        chromium.close()
    assert errors == []


def test_links_lead_from_a_list_to_an_item_and_its_class(visit):
    page = visit("#list=wrong")
    page.click("#panel .cards a >> nth=0")
    page.wait_for_selector("#panel dl")
    assert re.search(r"#item=\d+$", page.url)
    assert page.locator("#panel ol.cards li").count() == 10
    assert page.locator("#panel ol.cards li.wrong").count() > 0
    page.click("#panel h2 a")
    page.wait_for_selector("#panel h3:has-text('Items')")
    page.go_back()
    page.wait_for_selector("#panel ol.cards")


def test_an_address_opens_the_item_that_it_names(visit):
    page = visit("#item=15")
    assert "apple" in page.inner_text("#panel h2")
    assert "015.png" in page.inner_text("#panel")
    page = visit("#item=999")  # an address of a different page
    assert "60 items" in page.inner_text("#panel")


def test_classes_are_found_by_name_and_pairs_are_compared(visit):
    page = visit("#classes")
    page.fill("#search", "PEA")
    assert page.locator("#panel .rows li").count() == 1
    page.click("#panel .rows a")
    page.wait_for_selector("#panel h3:has-text('Confused with')")
    page.click("#panel .rows a")
    page.wait_for_selector("#panel .pair")
    assert re.search(r"#pair=\d,\d$", page.url)


def test_the_map_answers_to_mouse_and_keyboard(visit):
    page = visit()
    page.focus("#map")
    before = page.evaluate("({...camera})")
    for key in ("ArrowLeft", "ArrowUp", "+"):
        page.keyboard.press(key)
    page.mouse.move(300, 300)
    page.mouse.wheel(0, -500)
    wait_until(page, "camera.zoom > 2")
    after = page.evaluate("({...camera})")
    assert before["x"] != after["x"]
    assert before["y"] != after["y"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#panel dl")


def test_a_click_on_the_map_opens_the_item_there(visit):
    page = visit("#classes")
    page.evaluate("[camera.x, camera.y] = data.points[20]; camera.zoom = 50; draw()")
    box = page.locator("#map").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#panel dl")
    assert page.url.endswith("#item=20")


def test_names_from_data_are_text(visit):
    page = visit("#class=0")
    assert page.inner_text("#panel h2") == HOSTILE
    assert page.locator("img").count() == 0
    assert "broken" not in page.title()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(visit, width, scheme):
    for address in ("", "#item=15", "#class=0", "#classes", "#list=suspects", "#list=duplicates"):
        page = visit(address, width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#map").bounding_box()["height"] > 200


def test_colours_explain_themselves(visit):
    page = visit()
    for name in ("right", "rank", "score", "class"):
        page.select_option("#colour", name)
        wait_until(page, "document.getElementById('legend').textContent === LEGENDS[colour.value]")
