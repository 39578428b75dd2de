"""Sphinx's settings for the site: use `make docs` to stage and build the pages."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

project = "dml"
author = "The dml authors"
copyright = "The dml authors, Apache-2.0"
release = metadata.version("dml-train")
html_title = f"dml {release}"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

# Pages.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 6  # as on a forge
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900
nb_execution_in_temp = True
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables, too

# Functions and classes. The docstrings have names in single backticks: `knn` is a link where it
# names something public.
default_role = "py:obj"
autosummary_generate = False
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),  # a name in backticks may be an argument, an option or an expression
    # Names that aren't public here: other projects', and the annotations' own.
    (r"py:.*", r"(?!dml_\w+\.[A-Z]\w*$).*"),
]
suppress_warnings = ["ref.python"]  # `Evaluation` is a name in two packages: the first is linked

# Appearance: files must not be loaded from other hosts.
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["../../site/shown"]  # pages that the tutorials' code writes during the build
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sphinx = False
html_copy_source = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_exclude = ".linenos, .gp, .go"


def escape_bars(app, what, name, item, options, lines):  # type: ignore[no-untyped-def]  # Sphinx's event
    """Escape the bars of norms, |P|, which reStructuredText takes for substitutions."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
        lines[number] = "".join(parts)


def drop_docs_of_types(app, what, name, item, options, lines):  # type: ignore[no-untyped-def]
    """Drop the docstring that a constant inherits from the type, such as `dict`."""
    if what == "data" and item.__doc__ == type(item).__doc__:
        lines.clear()


def setup(app):  # type: ignore[no-untyped-def]
    """Connect the events."""
    app.connect("autodoc-process-docstring", drop_docs_of_types)
    app.connect("autodoc-process-docstring", escape_bars)
