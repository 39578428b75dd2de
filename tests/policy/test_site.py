"""The site shows the repository's pages: each is listed once, links lead to copies, and code becomes cells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import staging
from links import broken_links

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    ROOT / "docs/guide/data.md": Path("guide/data.md"),
    ROOT / "SECURITY.md": Path("internals/security.md"),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("site") / "pages"
    staging.stage(out)
    return {
        staging.name(page.relative_to(out)): page.read_text(encoding="utf-8")
        for page in out.rglob("*")
        if page.suffix in {".md", ".rst"}
    }


def test_every_page_is_in_one_table_of_contents(pages):
    listed = [
        name.removeprefix("/")
        for text in pages.values()
        for table in re.findall(r"^```\{toctree\}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        for name in re.findall(r"^/.*", table, flags=re.MULTILINE)
    ]
    assert sorted(listed) == sorted(set(pages) - {"index"})


def test_relative_links_lead_to_pages_of_the_site(pages):
    for name, text in pages.items():
        outside_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for _, link in staging.LINK.findall(outside_code):
            path = link.partition("#")[0]
            if path and not re.match(r"[a-z]+:", link):
                target = (Path("/") / Path(name).parent / path).resolve().relative_to("/")
                assert target.with_suffix("").as_posix() in pages, f"{name}: {link}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](data.md#x)", "[a](data.md#x)"),
        ("[a](../../SECURITY.md)", "[a](../internals/security.md)"),
        ("[a](https://x.org/data.md)", "[a](https://x.org/data.md)"),
        ("[a](#x)", "[a](#x)"),
        ("```\n[a](../../SECURITY.md)\n```", "```\n[a](../../SECURITY.md)\n```"),
    ],
)
def test_a_link_becomes_that_of_the_copy(text, expected):
    assert staging.relink(text, ROOT / "docs/guide/plugins.md", Path("guide/plugins.md"), OUTSIDE) == expected


@pytest.mark.parametrize(
    ("repository", "expected"),
    [
        ("", "a (`examples/bare_loop.py`)"),
        ("https://x.org/y/z", "[a](https://x.org/y/z/tree/HEAD/examples/bare_loop.py)"),
    ],
)
def test_a_file_outside_the_site_needs_the_repositorys_address(repository, expected, monkeypatch):
    monkeypatch.setattr(staging, "repository", lambda: repository)
    page = (ROOT / "docs/guide/plugins.md", Path("guide/plugins.md"))
    assert staging.relink("[a](../../examples/bare_loop.py)", *page, OUTSIDE) == expected


def test_the_landing_page_begins_as_the_readme(pages):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    opening = pages["index"].partition("## Install")[0]
    assert opening.split("\n\n")[:2] == readme.split("\n\n")[:2]
    (picture,) = re.findall(r"!\[[^\]]*\]\(docs/([^)]*)\)", readme)
    assert f"]({picture})" in opening
    assert "```python\n" in opening


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the site's search")
def test_search_lists_guides_before_reference_decisions_and_changes():
    expected = [
        ["guide/data", "Data"],
        ["reference/metrics", "Metrics"],
        ["internals/architecture", "Architecture"],
        ["reference/api/dml_core", "dml_core.Split"],
        ["adr/0005-ranks", "Ranks share the evaluation"],
        ["reference/api/dml_core.testing", "dml_core.testing.LoggerContract.test_a_run_resumes"],
    ]
    program = (ROOT / "docs/site/scorer.js").read_text(encoding="utf-8") + (
        f"const found = {json.dumps(sorted(expected))};"
        "const points = ([page, title]) => Scorer.score([page, title, '', null, 5, page, 'text']);"
        "console.log(JSON.stringify(found.sort((a, b) => points(b) - points(a))));"
    )
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize("query", ["camera", "junk", "resume", "latex", "own loop"])
def test_a_guide_or_tutorial_answers_what_newcomers_search_for(pages, query):
    guides = [text.lower() for page, text in pages.items() if page.startswith(("guide/", "tutorials/"))]
    assert any(all(word in text for word in query.split()) for text in guides)
    if query in ("resume", "own loop"):  # whole tasks, so headings
        headings = [line for text in guides for line in text.splitlines() if line.startswith("#")]
        assert any(all(word in line for word in query.split()) for line in headings)


def test_a_picture_is_found_from_the_copy():
    text = staging.relink("![a\nb](docs/gallery/report.png)", ROOT / "README.md", Path("guide/readme.md"), {})
    assert text == "![a\nb](../gallery/report.png)"


def test_code_of_a_tutorial_runs():
    text = staging.BLOCK.sub(
        staging.executed, "```python\nx = 1\n```\n\n```sh\nls\n```\n\n```python\n# a.py\ny = 2\n```\n"
    )
    cells = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert cells[0] == "x = 1\n"
    assert "'ls\\n'" in cells[1]
    assert "%%writefile a.py\n# a.py\ny = 2\n" in cells[2]
    assert "```sh\nls\n```" in text
    assert "```python\n# a.py\ny = 2\n```" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('<a href="b.html">', None),
        ('<a href="b.html#here">', None),
        ('<a href="#top"><p id="top">', None),
        ('<a href="https://x.org/">', None),
        ('<a href="c.html">', "a.html: c.html leads to no file"),
        ('<a href="b.html#there">', "a.html: b.html#there leads to no element"),
        ('<script src="https://x.org/a.js">', "a.html: loads https://x.org/a.js from another host"),
        ('<img src="picture.png">', "a.html: picture.png leads to no file"),
    ],
)
def test_broken_links_are_found(body, message, tmp_path):
    (tmp_path / "a.html").write_text(body, encoding="utf-8")
    (tmp_path / "b.html").write_text('<h1 id="here">', encoding="utf-8")
    assert broken_links(tmp_path) == ([message] if message else [])
