"""Deep metric learning losses: a function of tensors per loss (`dml_losses.functional`), and a thin
module around it.

Names are imported when they are first used, so that ``import dml_losses`` stays fast; see
`__init__.pyi` for the list.
"""

from importlib.metadata import version

from dml_core.lazy import lazy_names

__version__ = version("dml-losses")
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
