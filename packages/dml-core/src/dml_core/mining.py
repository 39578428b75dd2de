"""A sampler whose batches contain hard negatives, which are mined between epochs.

Shapes: `N` items, `C` classes per batch, `K` images per class, `k` mined negatives per item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dml_core.samplers import ClassBalancedSampler, EpochSampler, check_at_least

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dml_core.protocols.evaluation import MiningEvaluator

_STREAM = 3  # a stream of random numbers that `dml_core.samplers` doesn't use


class HardNegativeSampler(EpochSampler):
    """A sampler of balanced batches that also contain classes which the network confuses.

    Until negatives are mined, this sampler draws the batches of `ClassBalancedSampler`. Afterwards,
    the first ⌊C / (1 + M)⌋ classes of such a batch (at least 1) are anchors. The first image of an
    anchor class adds M of the k mined negatives, drawn at random, with K − 1 other images of a
    negative's class. A batch will not contain a class twice: a negative will be skipped if its
    class is present, and the other classes of the balanced batch fill the rest. Note that all
    classes are anchors equally often, but classes with hard negatives are added more often.

    Source: Xiong et al. 2021, Approximate Nearest Neighbor Negative Contrastive Learning, for
    negatives from the complete data set that are refreshed as the network learns (found
    approximately; here exactly); Smirnov et al. 2017, Doppelganger Mining for Face Representation
    Learning, for batches of similar classes.

    Args:
        labels: integers of shape (N,), the classes of the items.
        classes_per_batch: C, from 2 to the number of classes.
        images_per_class: K, at least 1.
        negatives_per_anchor: M, from 1 to `candidates`. Default: 1.
        candidates: k, the number of negatives to mine per item, from 1 to N − 1. Default: 10.
        below: by default (None), mine the k nearest items of other classes. Use ``"hardest"`` to
            mine only negatives that are less similar than the item's least similar positive
            (semi-hard compared with all positives: Schroff et al. 2015, FaceNet, Eq. 4), or
            ``"easiest"``: less similar than the item's most similar positive.
        margin: the required difference, at least 0, to skip mislabelled images (Moreira et al.
            2024, NV-Retriever).
        mine_from: the first epoch to mine negatives for; 0 mines with the initial weights.
            Default: 1.
        mine_every: the number of epochs between minings, at least 1. Default: 1.
        seed: at least 0, the default. A batch depends only on seed, epoch, position and negatives.
        batches_per_epoch: see `ClassBalancedSampler`.

    Raises:
        ValueError: see `ClassBalancedSampler`; also if a number is out of range, or a margin is
            given without `below`.
    """

    def __init__(
        self,
        labels: npt.ArrayLike | Sequence[int],
        classes_per_batch: int,
        images_per_class: int,
        negatives_per_anchor: int = 1,
        candidates: int = 10,
        below: Literal["hardest", "easiest"] | None = None,
        margin: float = 0.0,
        mine_from: int = 1,
        mine_every: int = 1,
        seed: int = 0,
        batches_per_epoch: int | None = None,
    ) -> None:
        super().__init__(labels, seed)
        self._balanced = ClassBalancedSampler(
            self.labels, classes_per_batch, images_per_class, seed, batches_per_epoch
        )
        self.classes_per_batch, self.images_per_class = classes_per_batch, images_per_class
        self.negatives_per_anchor = check_at_least(1, negatives_per_anchor=negatives_per_anchor)
        self.candidates = check_at_least(1, candidates=candidates)
        self.mine_from = check_at_least(0, mine_from=mine_from)
        self.mine_every = check_at_least(1, mine_every=mine_every)
        if classes_per_batch < 2:
            raise ValueError(
                f"classes_per_batch is {classes_per_batch}; expected at least 2, for an anchor and "
                "a negative"
            )
        if candidates >= len(self.labels):
            raise ValueError(
                f"candidates is {candidates}; expected at most {len(self.labels) - 1}, the number "
                "of other items"
            )
        if negatives_per_anchor > candidates:
            raise ValueError(
                f"negatives_per_anchor is {negatives_per_anchor}; expected at most candidates, "
                f"{candidates}"
            )
        if below not in (None, "hardest", "easiest"):
            raise ValueError(f"below is {below!r}; expected 'hardest', 'easiest', or None")
        if not 0 <= margin < np.inf:
            raise ValueError(f"margin is {margin}; expected a finite number of at least 0")
        if margin and below is None:
            raise ValueError(f"margin is {margin} and below is None; set below, or use margin=0")
        self.below, self.margin = below, margin
        _, self._class_of = np.unique(self.labels, return_inverse=True)
        order = np.argsort(self._class_of, kind="stable")
        self._members = np.split(order, np.flatnonzero(np.diff(self._class_of[order])) + 1)
        self._negatives: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._balanced)

    @property
    def negatives(self) -> npt.NDArray[np.int64] | None:
        """The negatives in use, (N, k), padded with -1; None if negatives haven't been mined
        yet.
        """
        return self._negatives

    def mines_before(self, epoch: int) -> bool:
        """Tell whether negatives should be mined before `epoch`, which counts from 0."""
        return epoch >= self.mine_from and (epoch - self.mine_from) % self.mine_every == 0

    def find_negatives(
        self, evaluator: MiningEvaluator, embeddings: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        """Find negatives in embeddings (N, D) by the sampler's rule: (N, k) int64, padded with
        -1.
        """
        _, negatives = evaluator.hard_negatives(
            embeddings, self.labels, self.candidates, below=self.below, margin=self.margin
        )
        return negatives

    def set_negatives(self, negatives: npt.NDArray[np.int64] | None) -> None:
        """Use these negatives from now on.

        Args:
            negatives: integers of shape (N, k): items of other classes than the row's, or -1. None:
                draw balanced batches.

        Raises:
            ValueError: if shape or dtype are wrong, an index is outside -1 to N − 1, or an item has
                the row's class.
        """
        if negatives is None:
            self._negatives = None
            return
        array, count = np.asarray(negatives), len(self.labels)
        if array.ndim != 2 or len(array) != count or array.dtype.kind not in "iu":
            raise ValueError(
                f"negatives has shape {array.shape} and dtype {array.dtype}; expected ({count}, k) "
                "integers"
            )
        array_Nk = array.astype(np.int64)
        if array_Nk.size and not -1 <= array_Nk.min() <= array_Nk.max() < count:
            raise ValueError(
                f"negatives has indices from {array_Nk.min()} to {array_Nk.max()}; expected -1 to "
                f"{count - 1}"
            )
        own_Nk = (array_Nk >= 0) & (self.labels[array_Nk] == self.labels[:, None])
        if own_Nk.any():
            item = int(own_Nk.any(axis=1).argmax())
            raise ValueError(
                f"negatives of item {item} include an item of the same class; expected items of "
                "other classes"
            )
        self._negatives = array_Nk

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Draw the batch's (C * K,) int64 indices: anchor classes, then classes of negatives, then
        other classes.
        """
        balanced = self._balanced.batch_at(epoch, position)
        if self._negatives is None:
            return balanced
        rows_CK = balanced.reshape(self.classes_per_batch, self.images_per_class)
        anchors = max(1, self.classes_per_batch // (1 + self.negatives_per_anchor))
        random = self._random(epoch, _STREAM, position)
        chosen = {int(self._class_of[row[0]]): row for row in rows_CK[:anchors]}
        for anchor in rows_CK[:anchors, 0]:
            brought = 0
            for item in random.permutation(self._negatives[anchor]).tolist():
                label = int(self._class_of[item])
                if brought == self.negatives_per_anchor or len(chosen) == self.classes_per_batch:
                    break
                if item >= 0 and label not in chosen:
                    chosen[label] = self._draw_class(item, random)
                    brought += 1
        for row in rows_CK[anchors:]:
            if len(chosen) < self.classes_per_batch:
                chosen.setdefault(int(self._class_of[row[0]]), row)
        return np.concatenate([*chosen.values()])

    def _draw_class(self, item: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Draw K images of the item's class, the item first; images only repeat if the class has
        fewer than K.
        """
        members = self._members[self._class_of[item]]
        others = random.permutation(members[members != item])
        drawn = [np.array([item]), others]
        while sum(map(len, drawn)) < self.images_per_class:
            drawn.append(random.permutation(members))
        return np.concatenate(drawn)[: self.images_per_class]

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the negatives, with the settings and data that they depend on."""
        return super().state_dict() | {"negatives": self._negatives}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved position and the saved negatives.

        Raises:
            ValueError: see `EpochSampler.load_state_dict`.
        """
        super().load_state_dict(state)
        self.set_negatives(state["negatives"])

    def _identity(self) -> dict[str, int]:
        return (
            super()._identity()
            | {name: getattr(self, name) for name in ("classes_per_batch", "images_per_class")}
            | {"negatives_per_anchor": self.negatives_per_anchor, "candidates": self.candidates}
        )
