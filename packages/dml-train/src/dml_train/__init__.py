"""Train embeddings and use them from Python, with a function per `dml` command.

    import dml_train

    recipe = dml_train.load_recipe("glyphs-tiny", {"training.steps": 20})
    run = dml_train.train(recipe, "runs/tiny")
    model = dml_train.open_model(run.path)

A name is imported when it is first used, so that importing the package stays fast. `__init__.pyi`
lists the names; see docs/reference/python.md in the repository for explanations and examples.
"""

from __future__ import annotations

from importlib.metadata import version

from dml_core.lazy import lazy_names

__version__ = version("dml-train")
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
