# The public names, and their modules. `__init__.py` reads this table, and imports a name when it is
# first used.
from dml_losses.ada_face import AdaFace as AdaFace
from dml_losses.arc_face import ArcFace as ArcFace
from dml_losses.broad_face import BroadFace as BroadFace
from dml_losses.contrastive import Contrastive as Contrastive
from dml_losses.cos_face import CosFace as CosFace
from dml_losses.cross_batch_memory import CrossBatchMemory as CrossBatchMemory
from dml_losses.curricular_face import CurricularFace as CurricularFace
from dml_losses.heated_up_softmax import HeatedUpSoftmax as HeatedUpSoftmax
from dml_losses.info_nce import InfoNCE as InfoNCE
from dml_losses.instance_cross_entropy import InstanceCrossEntropy as InstanceCrossEntropy
from dml_losses.koleo import KoLeo as KoLeo
from dml_losses.matryoshka import Matryoshka as Matryoshka
from dml_losses.memvir import MemVir as MemVir
from dml_losses.multi_similarity import MultiSimilarity as MultiSimilarity
from dml_losses.norm_softmax import NormSoftmax as NormSoftmax
from dml_losses.proxy_anchor import ProxyAnchor as ProxyAnchor
from dml_losses.proxy_nca import ProxyNCA as ProxyNCA
from dml_losses.ranked_list import RankedListLoss as RankedListLoss
from dml_losses.ranks.global_batch import GlobalBatch as GlobalBatch
from dml_losses.ranks.sharded_classes import ShardedClasses as ShardedClasses
from dml_losses.recall_at_k_surrogate import RecallAtKSurrogate as RecallAtKSurrogate
from dml_losses.sampled_classes import SampledClasses as SampledClasses
from dml_losses.siglip import SigLIP as SigLIP
from dml_losses.smooth_ap import SmoothAP as SmoothAP
from dml_losses.soft_triple import SoftTriple as SoftTriple
from dml_losses.softmax import Softmax as Softmax
from dml_losses.softmax import VirtualSoftmax as VirtualSoftmax
from dml_losses.sub_center_arc_face import SubCenterArcFace as SubCenterArcFace
from dml_losses.sum_of_losses import SumOfLosses as SumOfLosses
from dml_losses.sup_ap import SupAP as SupAP
from dml_losses.sup_con import SupCon as SupCon
from dml_losses.triplet import Triplet as Triplet

__version__: str
