"""Deep metric learning losses. A loss is one function of tensors (`dml_losses.functional`) and one thin module.

A name is imported at its first use, so that importing the package stays fast. `__init__.pyi` lists the names.
"""

from importlib.metadata import version

from dml_core.lazy import lazy_names

__version__ = version("dml-losses")
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
