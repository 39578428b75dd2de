"""Deep metric learning losses. A loss is one function of tensors (`dml_losses.functional`) and one thin module."""

from dml_losses.instance_cross_entropy import InstanceCrossEntropy
from dml_losses.norm_softmax import NormSoftmax

__version__ = "0.1.0"

__all__ = ["InstanceCrossEntropy", "NormSoftmax", "__version__"]
