"""`dml search` in a run's items, a folder or a file of embeddings: results, printed and as a
page.
"""

from __future__ import annotations

import json
import re
import shutil
from urllib.parse import unquote

import numpy as np
import pytest
from train_support.photo_world import write_photos
from train_support.report_world import Page, check_page

from dml_train.trained.images import list_folder
from dml_train.trained.model import open_model
from dml_train.trained.search import Gallery, search


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="module")
def photos(world):
    return write_photos(world / "photos", seed=1)


@pytest.fixture(scope="module")
def query(world):
    return write_photos(world / "queries", classes=1, each=1, seed=2) / "class-0" / "0.png"


def embedded(model, files):
    return model.network(model.reader.of_images(files).load(np.arange(len(files)))).detach().numpy()


def rows_of(result):
    """Return the score and the name in each line of the printed table."""
    return re.findall(r"^ *\d+ +(-?[\d.]+) +(\S.*?) *$", result.stdout, flags=re.MULTILINE)


def test_the_nearest_of_a_folder_are_those_of_a_plain_sort(dml, photo_run, model, photos, query):
    files = sorted(photos.rglob("*.png"))
    rows = embedded(model, [query, *files])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    similarity = rows[1:] @ rows[0]
    expected = [
        files[i].relative_to(photos).as_posix() for i in np.argsort(-similarity, kind="stable")[:4]
    ]
    found = rows_of(dml("search", photo_run, query, "--gallery", photos, "-k", "4"))
    assert [name for _, name in found] == expected
    # Scores are printed to four digits, and rounded differently in batches of a different size.
    np.testing.assert_allclose(
        [float(score) for score, _ in found], np.sort(similarity)[::-1][:4], atol=1e-4
    )


def test_in_python_a_gallery_needs_no_console_and_paths_may_be_strings(
    photo_run, registry, photos, query
):
    model = open_model(str(photo_run), registry)
    gallery = Gallery.of_folder(model, str(photos))
    (result,) = search(model, gallery, [str(query)], k=4, registry=registry)
    assert result.query == query
    assert len(result.indices) == len(result.scores) == 4
    assert result.score == "similarity (exact)"
    assert search(model, gallery, [], registry=registry) == []


def test_codes_are_compared_by_their_hamming_distance(
    dml, photo_run, model, photos, query, tmp_path
):
    files = sorted(photos.rglob("*.png"))
    rows = embedded(model, [query, *files]) > 0
    differ = (rows[1:] != rows[0]).sum(axis=1)
    order = np.argsort(differ, kind="stable")[:7]
    expected = [(str(differ[i]), files[i].relative_to(photos).as_posix()) for i in order]
    result = dml("search", photo_run, query, "--gallery", photos, "-k", "7", "--codes")
    assert rows_of(result) == expected
    assert "Hamming distance" in result.stdout
    dml("embed", photo_run, photos, "--codes", "--out", tmp_path / "c.npy")
    assert (
        rows_of(dml("search", photo_run, query, "--index", tmp_path / "c.npy", "-k", "7"))
        == expected
    )


def test_a_file_of_embeddings_gives_the_results_of_its_folder(
    dml, photo_run, photos, query, tmp_path
):
    dml("embed", photo_run, photos, "--out", tmp_path / "e.npy")
    direct = dml("search", photo_run, query, "--gallery", photos)
    assert dml("search", photo_run, query, "--index", tmp_path / "e.npy").stdout == direct.stdout
    (tmp_path / "e.json").unlink()
    bare = dml("search", photo_run, query, "--index", tmp_path / "e.npy")
    assert "so the rows have no names" in bare.stderr
    names = list_folder(photos).names
    rows = [(score, names[int(name.removeprefix("row "))]) for score, name in rows_of(bare)]
    assert rows == rows_of(direct)


def test_without_a_gallery_the_runs_own_items_are_searched(dml, photo_run, query):
    found = rows_of(dml("search", photo_run, query, "-k", "100"))
    assert len(found) == 15  # half of the classes, five images per class
    assert all(re.fullmatch(r"class-\d/\d\.png", name) for _, name in found)
    assert [float(score) for score, _ in found] == sorted(
        (float(score) for score, _ in found), reverse=True
    )


def test_a_query_in_the_gallery_does_not_find_itself(dml, photo_run, photos):
    both = [photos / "class-2" / "3.png", photos / "class-3" / ".." / "class-4" / "1.png"]
    result = dml("search", photo_run, *both, "--gallery", photos, "-k", "30")
    tables = result.stdout.split("nearest to ")[1:]
    for table, itself in zip(tables, ("class-2/3.png", "class-4/1.png")):
        lines = table.splitlines()[1:]
        assert sum(".png" in line for line in lines) == 29
        assert not any(line.endswith(f" {itself}") for line in lines)


def test_the_page_shows_queries_and_their_results(dml, photo_run, photos, query, tmp_path):
    shutil.copytree(photos, tmp_path / "gallery")
    (tmp_path / "gallery" / "class-0" / "0.png").rename(tmp_path / "gallery" / '<b>"x" & y.png')
    (tmp_path / "gallery" / "bad.png").write_bytes(b"")
    out = tmp_path / "found.html"
    refused = dml(
        "search", photo_run, query, "--gallery", tmp_path / "gallery", "--html", out, code=2
    )
    assert "it is empty" in refused.stderr
    assert not out.exists()
    result = dml(
        "search", photo_run, query, photos / "class-1" / "0.png", "--gallery", tmp_path / "gallery",
        "-k", "30",
        "--html", out, "--on-bad-image", "skip",
    )  # fmt: skip
    assert "1 images skipped" in result.stderr
    page = Page(out)
    check_page(page)
    assert len(page.all("img")) == 2 + 2 * 30
    links = [attributes["href"] for attributes in page.all("a") if attributes["href"][0] == "."]
    assert len(links) == 2 + 2 * 30
    assert all((tmp_path / unquote(link)).is_file() for link in links)
    assert page.all("b") == []
    assert page.words.count('<b>"x" & y.png') == 2
    assert (
        "exists already"
        in dml("search", photo_run, query, "--gallery", photos, "--html", out, code=2).stderr
    )


def test_control_characters_in_names_are_escaped(dml, photo_run, photos, query, tmp_path):
    shutil.copytree(photos / "class-0", tmp_path / "gallery" / "[red]")
    (tmp_path / "gallery" / "[red]" / "0.png").rename(
        tmp_path / "gallery" / "[red]" / "\x1b[31m\udcff.png"
    )
    out = tmp_path / "found.html"
    result = dml("search", photo_run, query, "--gallery", tmp_path / "gallery", "--html", out)
    assert r"[red]/\x1b[31m\udcff.png" in result.stdout
    assert "\x1b" not in result.stdout
    assert r"\udcff.png" in Page(out).text


def test_a_run_with_missing_data_is_searched_without_names(photo_run, registry, query, tmp_path):
    moved = tmp_path / "run"
    shutil.copytree(photo_run, moved)
    recipe = moved / "recipe.toml"
    recipe.write_text(re.sub(r'root = ".*"', 'root = "gone"', recipe.read_text()))
    model = open_model(moved, registry)
    gallery = Gallery.of_run(model, registry)
    assert "Without names and pictures" in gallery.note
    (result,) = search(model, gallery, [query], k=3, registry=registry)
    assert [gallery.names[index] for index in result.indices] == [
        f"item {index}" for index in result.indices
    ]


def test_each_mistake_is_one_message(dml, photo_run, photos, query, tmp_path):
    index = tmp_path / "e.npy"
    dml("embed", photo_run, photos, "--out", index)

    def refusal(*arguments):
        result = dml("search", *arguments, code=2)
        assert result.stdout == ""
        return result.stderr

    assert "expected one of them" in refusal(
        photo_run, query, "--gallery", photos, "--index", index
    )
    assert "none.png doesn't exist" in refusal(photo_run, tmp_path / "none.png")
    (tmp_path / "text.png").write_text("text")
    assert "can't read the image" in refusal(photo_run, tmp_path / "text.png", "--index", index)
    assert "is not a folder" in refusal(photo_run, query, "--gallery", tmp_path / "none")
    assert "as a .npy file" in refusal(photo_run, query, "--index", query)
    np.save(tmp_path / "wide.npy", np.zeros((3, 13)))
    assert "expected floats (N, 12) or uint8 (N, 2)" in refusal(
        photo_run, query, "--index", tmp_path / "wide.npy"
    )
    about = json.loads(index.with_suffix(".json").read_text())
    for change, message in (
        ({"weights": "other"}, "was embedded with different weights"),
        ({"paths": about["paths"][1:]}, "names 29 images, but"),
        ({"paths": None}, "e.json is damaged"),
    ):
        index.with_suffix(".json").write_text(json.dumps(about | change))
        assert message in refusal(photo_run, query, "--index", index)
    unfinished = tmp_path / "run"
    shutil.copytree(photo_run, unfinished)
    (unfinished / "evaluation.json").unlink()
    assert "has no embeddings to search in" in refusal(unfinished, query)
