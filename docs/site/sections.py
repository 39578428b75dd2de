"""The site's sections, the order of the pages, and the pages that are not files of docs/."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A kind of page: title, purpose, and patterns that order the pages; others follow by name."""

    title: str
    purpose: str
    order: tuple[str, ...]

    def ordered(self, names: set[str]) -> list[str]:
        """Return the names of the section's pages in order."""
        found: list[str] = []
        for pattern in (*self.order, "*"):
            found += sorted(name for name in fnmatch.filter(names, pattern) if name not in found)
        return found


SECTIONS = {
    "tutorials": Section(
        "Tutorials",
        "Each takes minutes, from nothing to a result. Their code ran when this site was built.",
        (
            "*/measure",
            "*/your-images",
            "*/serve",
            "*/your-own-loss",
            "*/a-papers-table",
            "*/verification-thresholds",
            "*/index-recall",
        ),
    ),
    "guide": Section(
        "Guides",
        "How to do one thing.",
        (
            "*/readme",
            "*/using",
            "*/data",
            "*/models",
            "*/recipes",
            "*/which-loss",
            "*/report",
            "*/protocols",
            "*/reproduce",
            "*/papers-claims",
            "*/coming-from-*",
        ),
    ),
    "reference": Section(
        "Reference",
        "Definitions, options, functions and classes.",
        (
            "*/metrics",
            "*/verification",
            "*/losses",
            "*/recipe-tables",
            "*/python",
            "*/platforms",
            "*/packages/*",
        ),
    ),
    "internals": Section(
        "Explanation",
        "Why it is built this way, and what keeps it right.",
        ("*/architecture", "*/evaluator-exactness", "*/evaluator-speed"),
    ),
    "adr": Section("Decisions", "Each with its context and consequences.", ()),
    "gallery": Section("Gallery", "What the pages that `dml` writes look like.", ()),
}

PACKAGES = {
    "dml-core": "dml_core",
    "dml-eval-rs": "dml_eval_rs",
    "dml-losses": "dml_losses",
    "dml-train": "dml_train",
}

# A file outside docs/ → the page in the site.
OUTSIDE = {
    "README.md": "guide/readme.md",
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "SECURITY.md": "internals/security.md",
    "CODE_OF_CONDUCT.md": "internals/code-of-conduct.md",
}
for _package in PACKAGES:
    OUTSIDE[f"packages/{_package}/README.md"] = f"reference/packages/{_package}.md"
    OUTSIDE[f"packages/{_package}/CHANGELOG.md"] = f"reference/changes/{_package}.md"

# A tutorial → the files and folders that are written by the code and shown: the file, and the name
# in the gallery.
SHOWN = {
    "tutorials/your-images": {
        "runs/mine/report.html": "report.html",
        "found.html": "search.html",
        "photos": "photos",  # which the search page shows
    },
    "tutorials/your-own-loss": {"side-by-side.html": "side-by-side.html"},
}

# List the public names of these modules.
MODULES = (
    "dml_core",
    "dml_core.hookspecs",
    "dml_core.testing",
    "dml_eval_rs",
    "dml_losses",
    "dml_losses.functional",
    "dml_train",
)

# A page → the pages below, which should not be listed by the section.
CHILDREN = {
    f"reference/packages/{package}": [
        *(f"reference/api/{module}" for module in MODULES if module.split(".")[0] == name),
        f"reference/changes/{package}",
    ]
    for package, name in PACKAGES.items()
}
