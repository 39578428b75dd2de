"""Write the site's pages from the repository's.

The pages in docs/ are plain Markdown that reads well on a forge. Sphinx needs more: pages from
outside docs/, tables of contents, and code to run. This script copies every page and adds these, so
that Sphinx's syntax is not used in pages.

- Links to a page of the site become links between the copies. A link to another file of the
  repository becomes an address below `repository` (`[tool.site]` in pyproject.toml), or, while that
  is empty, the file's path.
- In a tutorial, Python blocks become cells that Sphinx runs, and so do shell blocks, which stay
  visible as they are. A Python block that begins with `# NAME.py` is written to that file.
- A section has an index page with tables of contents.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import tomllib
from pathlib import Path

from sections import CHILDREN, MODULES, OUTSIDE, SECTIONS, SHOWN

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURE = re.compile(r"(!\[[^\]]*\]\()([^)\s:]+\.png)(?=\))")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w/]+\.py)\n")  # the first line of a block that is a file
# Prints the output when complete: the cell's stream would be cut anywhere. Progress, on stderr, is
# shown only when a command fails. The notebook's way to draw isn't the commands'.
SHELL = """import os, subprocess
done = subprocess.run(
    ["sh", "-e", "-c", {!r}], capture_output=True, text=True,
    env={{key: value for key, value in os.environ.items() if key != "MPLBACKEND"}},
)
assert done.returncode == 0, done.stderr
print(done.stdout, end="")"""
NOTEBOOK = """---
file_format: mystnb
kernelspec:
  name: python3
---
"""


def stage(out: Path) -> None:
    """Write all pages into an empty folder `out`."""
    shutil.rmtree(out, ignore_errors=True)
    copies = staged_paths()
    for page, copy in copies.items():
        target = out / copy
        target.parent.mkdir(parents=True, exist_ok=True)
        text = relink(page.read_text(encoding="utf-8"), page, copy, copies)
        if copy.parts[0] == "tutorials":
            text = NOTEBOOK + BLOCK.sub(executed, text)
            for file, shown in SHOWN.get(name(copy), {}).items():
                text += "\n" + cell(
                    "%%sh -e", f'cp -r "{file}" "$SITE_SHOWN/{shown}"\n', "remove-cell"
                )
        if copy == Path("index.md"):
            text += contents([f"{folder}/index" for folder in SECTIONS], hidden=True)
        text += contents(CHILDREN.get(name(copy), []), hidden=True)
        target.write_text(text, encoding="utf-8")
    for picture in DOCS.rglob("*.png"):
        shutil.copy(picture, out / picture.relative_to(DOCS))
    (out / "reference" / "api").mkdir()
    for module in MODULES:
        (out / "reference" / "api" / f"{module}.rst").write_text(listing(module), encoding="utf-8")
    below = {child for children in CHILDREN.values() for child in children}
    pages = {name(page.relative_to(out)) for page in out.rglob("*.md")} - below
    for folder, section in SECTIONS.items():
        mine = section.ordered({page for page in pages if page.startswith(f"{folder}/")})
        text = f"# {section.title}\n\n{section.purpose}\n" + contents(mine)
        (out / folder / "index.md").write_text(text, encoding="utf-8")


def name(page: Path) -> str:
    """Return the name of a page in tables of contents."""
    return page.with_suffix("").as_posix()


def staged_paths() -> dict[Path, Path]:
    """Return all pages of the site, with the path in the site."""
    pages = {page: page.relative_to(DOCS) for page in sorted(DOCS.rglob("*.md"))}
    pages = {page: copy for page, copy in pages.items() if copy.parts[0] != "site"}
    return pages | {ROOT / name: Path(copy) for name, copy in OUTSIDE.items()}


def relink(text: str, page: Path, copy: Path, copies: dict[Path, Path]) -> str:
    """Return a page's text with relative links that can be used in the copy."""

    def replaced(found: re.Match[str]) -> str:
        label, link = found.groups()
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return found[0]
        target = (page.parent / path).resolve()
        if target in copies:
            return f"[{label}]({os.path.relpath(copies[target], copy.parent)}{mark}{anchor})"
        place = target.relative_to(ROOT).as_posix()
        if repository():
            return f"[{label}]({repository()}/tree/HEAD/{place}{mark}{anchor})"
        return label if place in label else f"{label} (`{place}`)"

    def moved(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve().relative_to(DOCS)
        return f"{found[1]}{Path(os.path.relpath(target, copy.parent)).as_posix()}"

    outside_code = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    outside_code[::2] = [LINK.sub(replaced, PICTURE.sub(moved, part)) for part in outside_code[::2]]
    return "".join(outside_code)


def repository() -> str:
    """Return the address of the repository; "" by default."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(settings["tool"]["site"]["repository"]).rstrip("/")


def executed(block: re.Match[str]) -> str:
    """Return a block of a tutorial as cells that Sphinx runs."""
    language, code = block.groups()
    if file := FILE.match(code):
        return (
            f"{block[0]}\n\n{cell(f'%%writefile {file[1]}', code, 'remove-input, remove-output')}"
        )
    if language == "sh":
        return f"{block[0]}\n\n{cell(SHELL.format(code), '', 'remove-input')}"
    return f"```{{code-cell}} ipython3\n{code}```"


def cell(magic: str, code: str, tags: str) -> str:
    """Return a cell that a reader doesn't see."""
    return f"```{{code-cell}} ipython3\n:tags: [{tags}]\n{magic}\n{code}```"


def contents(names: list[str], hidden: bool = False) -> str:
    """Return a table of contents; "" if pages are not given."""
    options = ":hidden:" if hidden else ":maxdepth: 1"
    pages = "\n".join(f"/{name}" for name in names)
    return f"\n```{{toctree}}\n{options}\n\n{pages}\n```\n" if names else ""


def listing(module: str) -> str:
    """Return the page of a module's public names: a table, then all in full."""
    title = f"Functions and classes of {module}"
    parts = [
        title,
        "=" * len(title),
        "",
        f".. currentmodule:: {module}",
        "",
        ".. autosummary::",
        "",
    ]
    items = {name: getattr(importlib.import_module(module), name) for name in public_names(module)}
    # The page of the package that defines a name describes it.
    ours = (module.split(".")[0], "builtins")
    taken = sorted(name for name, item in items.items() if _package_of(item, module) not in ours)
    names = sorted(items.keys() - set(taken), key=str.lower)
    parts += [f"   {name}" for name in names]
    if taken:
        parts += ["", f"Names of other packages that it offers, too: {', '.join(taken)}."]
    for name in names:
        kind = (
            "class"
            if inspect.isclass(items[name])
            else "function"
            if callable(items[name])
            else "data"
        )
        parts += ["", f".. auto{kind}:: {name}"]
        # Pair losses inherit `forward` from a class that isn't public.
        bases = items[name].__mro__[1:] if kind == "class" else ()
        if any(base.__name__ == "Module" for base in bases):
            parts += ["   :inherited-members: Module"]
    return "\n".join(parts) + "\n"


def _package_of(item: object, module: str) -> str:
    return str(getattr(item, "__module__", module)).split(".")[0]


def public_names(module: str) -> list[str]:
    """Return the names that a module offers; of the module of hooks, the hooks."""
    loaded = importlib.import_module(module)
    offered = getattr(loaded, "__all__", [name for name in dir(loaded) if name.startswith("dml_")])
    return [name for name in offered if not name.startswith("_")]
