"""Evaluators of sentence-transformers, by exact counts over the whole corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.retrieval import SIMILARITIES, Similarity, evaluate

try:
    from sentence_transformers.base.evaluation import SentenceEvaluator
except ModuleNotFoundError:  # before version 6
    from sentence_transformers.evaluation import SentenceEvaluator


class InformationRetrievalEvaluator(SentenceEvaluator):
    """An evaluator with the arguments, names and figures of sentence-transformers' evaluator of this name.

    Of equal scores, the document that comes first in the corpus ranks first; there, the one with the lower id. Writes
    no files.

    Args:
        queries: id → text.
        corpus: id → text.
        relevant_docs: query id → ids of relevant documents. Queries without any are left out.
        mrr_at_k, ndcg_at_k, accuracy_at_k, precision_recall_at_k, map_at_k: every k of each metric.
        show_progress_bar: whether the model shows its progress.
        batch_size: texts that the model embeds at a time.
        name: prefix of the metrics' names.
        truncate_dim: dimensions of the embeddings to keep; None for all.
        query_prompt, query_prompt_name, corpus_prompt, corpus_prompt_name: as in `model.encode_query`.

    Attributes:
        evaluation: the last `Evaluation`, with per-query values, intervals and comparisons; None before.

    Raises:
        TypeError: if a k is no integer.
        ValueError: if a relevant document is not in the corpus, or no query has one.
    """

    def __init__(
        self,
        queries: Mapping[str, Any],
        corpus: Mapping[str, Any],
        relevant_docs: Mapping[str, set[str]],
        *,
        mrr_at_k: Sequence[int] = (10,),
        ndcg_at_k: Sequence[int] = (10,),
        accuracy_at_k: Sequence[int] = (1, 3, 5, 10),
        precision_recall_at_k: Sequence[int] = (1, 3, 5, 10),
        map_at_k: Sequence[int] = (100,),
        show_progress_bar: bool = False,
        batch_size: int = 32,
        name: str = "",
        truncate_dim: int | None = None,
        query_prompt: str | None = None,
        query_prompt_name: str | None = None,
        corpus_prompt: str | None = None,
        corpus_prompt_name: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.evaluation: Evaluation | None = None
        self._mrr = arguments.counts(mrr_at_k, "mrr_at_k")
        self._ndcg = arguments.counts(ndcg_at_k, "ndcg_at_k")
        self._accuracy = arguments.counts(accuracy_at_k, "accuracy_at_k")
        self._precision = arguments.counts(precision_recall_at_k, "precision_recall_at_k")
        self._map = arguments.counts(map_at_k, "map_at_k")
        if not self._ndcg:
            raise ValueError("ndcg_at_k is empty; expected at least one k, by which models are chosen")
        names = [each for each in queries if relevant_docs.get(each)]
        if not names:
            raise ValueError(
                f"none of the {len(queries)} queries has a relevant document; expected relevant_docs by query id"
            )
        place = {each: i for i, each in enumerate(corpus)}
        for each in names:
            for document in relevant_docs[each]:
                if document not in place:
                    raise ValueError(
                        f"relevant_docs lists document {document!r} for query {each!r}, which is not in the corpus; "
                        "expected ids of the corpus"
                    )
        self._queries = [queries[each] for each in names]
        self._corpus = list(corpus.values())
        lists = [sorted(place[document] for document in relevant_docs[each]) for each in names]
        self._sizes = np.array([len(items) for items in lists])
        self._relevant = np.concatenate([[0], np.cumsum(self._sizes)]), np.concatenate(lists)
        self._options = {
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
            "convert_to_tensor": True,
            "truncate_dim": truncate_dim,
        }
        self._prompts = (
            {"prompt": query_prompt, "prompt_name": query_prompt_name},
            {"prompt": corpus_prompt, "prompt_name": corpus_prompt_name},
        )

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Embed queries and corpus, and measure; `output_path` is ignored.

        Raises:
            ValueError: for a model of another similarity than the cosine, the dot product or the Euclidean distance.
        """
        similarity = _similarity_of(model)
        found = evaluate(
            model.encode_query(self._queries, **self._prompts[0], **self._options),
            gallery=model.encode_document(self._corpus, **self._prompts[1], **self._options),
            relevant=self._relevant,
            similarity=similarity,
            recall_at=self._accuracy,
            precision_at=self._precision,
            average_precision_at=self._map,
            ndcg_at=self._ndcg,
        )
        self.evaluation = found
        metrics = {f"accuracy@{k}": found.recall[k] for k in self._accuracy}
        for k in self._precision:
            metrics[f"precision@{k}"] = found.precision[k]
            metrics[f"recall@{k}"] = float((found.per_query[f"precision@{k}"] * k / self._sizes).mean())
        metrics |= {f"ndcg@{k}": found.ndcg[k] for k in self._ndcg}
        reciprocal_Q = found.per_query["reciprocal_rank"]
        metrics |= {f"mrr@{k}": float(_cut(reciprocal_Q, k).mean()) for k in self._mrr}
        metrics |= {f"map@{k}": found.average_precision_at[k] for k in self._map}
        self.primary_metric = f"{similarity}_ndcg@{max(self._ndcg)}"
        return _finish(self, model, metrics, similarity, epoch, steps)


class LabelEvaluator(SentenceEvaluator):
    """An evaluator of texts with labels: each text searches the others, and those of its label match.

    Args:
        texts: (n,) texts.
        labels: (n,) integers, booleans or strings.
        options: options of `dml_eval_rs.evaluate`, such as ``{"recall_at": (1, 10)}``; the similarity is the model's.
        primary_metric: the metric by which models are chosen, a name of `Evaluation.per_query`.
        batch_size: texts that the model embeds at a time.
        show_progress_bar: whether the model shows its progress.
        name: prefix of the metrics' names.

    Attributes:
        evaluation: the last `Evaluation`; None before.

    Raises:
        TypeError, ValueError: as `evaluate`, or if the lengths differ.
    """

    def __init__(
        self,
        texts: Sequence[Any],
        labels: npt.ArrayLike,
        options: Mapping[str, Any] | None = None,
        *,
        primary_metric: str = "map_at_r",
        batch_size: int = 32,
        show_progress_bar: bool = False,
        name: str = "",
    ) -> None:
        super().__init__()
        self.name = name
        self.evaluation: Evaluation | None = None
        self._texts = list(texts)
        self._labels = arguments.partition(labels, "labels")
        if len(self._labels) != len(self._texts):
            raise ValueError(
                f"labels has shape {self._labels.shape}; expected ({len(self._texts)},), one for each text"
            )
        self._options = dict(options or {})
        self._primary = primary_metric
        self._encode = {
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
            "convert_to_tensor": True,
        }
        known = evaluate(np.eye(2), [0, 0], **self._options).means
        if primary_metric not in known:
            raise ValueError(
                f"primary_metric is {primary_metric!r}; expected one of {', '.join(map(repr, known))}"
            )

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Embed the texts, and measure; `output_path` is ignored."""
        similarity = _similarity_of(model)
        embeddings = model.encode(self._texts, **self._encode)
        self.evaluation = evaluate(embeddings, self._labels, **{"similarity": similarity, **self._options})
        self.primary_metric = f"{similarity}_{self._primary}"
        return _finish(self, model, dict(self.evaluation.means), similarity, epoch, steps)


def _similarity_of(model: Any) -> Similarity:
    name: Any = getattr(model.similarity_fn_name, "value", model.similarity_fn_name)
    if name not in SIMILARITIES:
        raise ValueError(
            f"the model's similarity is {name!r}; expected one of {', '.join(map(repr, SIMILARITIES))}: set "
            "model.similarity_fn_name"
        )
    checked: Similarity = name
    return checked


def _cut(reciprocal_Q: npt.NDArray[np.float64], k: int) -> npt.NDArray[np.float64]:
    """Return the reciprocal ranks up to k, and 0 beyond."""
    return np.where(reciprocal_Q >= 1 / k, reciprocal_Q, 0.0)


def _finish(
    evaluator: Any, model: Any, metrics: dict[str, float], similarity: str, epoch: int, steps: int
) -> dict[str, float]:
    """Name the metrics as sentence-transformers does, and store them in the model's card."""
    named: dict[str, float] = evaluator.prefix_name_to_metrics(
        {f"{similarity}_{name}": value for name, value in metrics.items()}, evaluator.name
    )
    evaluator.store_metrics_in_model_card_data(model, named, epoch, steps)
    return named
