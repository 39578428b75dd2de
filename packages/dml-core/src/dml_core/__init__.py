"""Hooks, registry, samplers, memory queues and schedules: what every package of the toolkit builds on.

A name is imported at its first use, so that importing the package stays fast; `__init__.pyi` lists the names. Some come
from dml-eval-rs: `Labels`, `Relevance` and `Matching` say who matches whom, `Peers` are processes that share an
evaluation, and `METRICS` lists the metrics.
"""

from importlib.metadata import version

from dml_core.lazy import lazy_names

# These functions have the names of their modules, which would otherwise take their place in this package.
from dml_core.plugins import plugins as plugins
from dml_core.registry import registry as registry

__version__ = version("dml-core")
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
