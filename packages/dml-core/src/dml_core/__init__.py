"""Hooks, the registry, samplers, memory queues and schedules, on which all packages of the toolkit
build.

Names are imported when they are first used, so that ``import dml_core`` stays fast; `__init__.pyi`
lists the names. Some names come from dml-eval-rs: use `Labels`, `Relevance` and `Matching` to
define which items match, `Peers` to share an evaluation between processes, and `METRICS` to list
the metrics.
"""

from importlib.metadata import version

from dml_core.lazy import lazy_names

# Import these functions now: otherwise, modules with equal names would hide the functions.
from dml_core.plugins import plugins as plugins
from dml_core.registry import registry as registry

__version__ = version("dml-core")
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
