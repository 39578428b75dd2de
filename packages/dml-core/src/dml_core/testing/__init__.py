"""Contracts of components: tests to inherit when you write a loss, a data set or another component.

    from dml_core.testing import LossContract

    class TestMyLoss(LossContract):
        def make_loss(self, num_classes, embedding_dim):
            return MyLoss()

pytest collects the inherited tests. These modules don't need pytest themselves.
"""

from dml_core.testing.data import DatasetContract as DatasetContract
from dml_core.testing.data import SamplerContract as SamplerContract
from dml_core.testing.evaluation import EvaluatorContract as EvaluatorContract
from dml_core.testing.evaluation import LoggerContract as LoggerContract
from dml_core.testing.losses import LossContract as LossContract
from dml_core.testing.networks import BackboneContract as BackboneContract
from dml_core.testing.ranks import RanksContract as RanksContract
