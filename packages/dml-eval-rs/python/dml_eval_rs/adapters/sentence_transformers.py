"""Evaluators of sentence-transformers, by exact counts over the whole corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Similarity
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.metrics.names import check_metrics
from dml_eval_rs.retrieval import Options, check_options, evaluate

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
        relevant_docs: query id → ids of relevant documents. Queries without any are omitted.
        mrr_at_k, ndcg_at_k, accuracy_at_k, precision_recall_at_k, map_at_k: every k of each metric.
        show_progress_bar: whether the model shows its progress.
        batch_size: texts that the model embeds at a time.
        name: prefix of the metrics' names.
        truncate_dim: dimensions of the embeddings to keep; None for all.
        query_prompt, query_prompt_name, corpus_prompt, corpus_prompt_name: as in `model.encode_query`.

    Attributes:
        evaluation: the last `Evaluation`, with per-query values, intervals and comparisons; None before.

    Raises:
        ValueError: if a k is no positive integer, a relevant document is not in the corpus, or no query has one.
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
        if not ndcg_at_k:
            raise ValueError("ndcg_at_k is empty; expected at least one k, by which models are chosen")
        self._ours = {
            f"{theirs}@{k}": f"{ours}@{k}"
            for theirs, ours, ks in (
                ("accuracy", "recall", accuracy_at_k),
                ("precision", "precision", precision_recall_at_k),
                ("recall", "ir_recall", precision_recall_at_k),
                ("ndcg", "ndcg", ndcg_at_k),
                ("mrr", "mrr", mrr_at_k),
                ("map", "map", map_at_k),
            )
            for k in ks
        }
        check_metrics(self._ours.values())
        self._primary = f"ndcg@{max(ndcg_at_k)}"
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
        self._queries, self._corpus = [queries[each] for each in names], list(corpus.values())
        offsets = np.cumsum([0, *(len(relevant_docs[each]) for each in names)])
        indices = [place[document] for each in names for document in relevant_docs[each]]
        self._relevance = Relevance(offsets, indices)
        shared: dict[str, Any] = {
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
            "convert_to_tensor": True,
            "truncate_dim": truncate_dim,
        }
        self._of_queries = {"prompt": query_prompt, "prompt_name": query_prompt_name, **shared}
        self._of_corpus = {"prompt": corpus_prompt, "prompt_name": corpus_prompt_name, **shared}

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Embed queries and corpus, and measure; `output_path` is ignored.

        Raises:
            ValueError: for a model of another similarity than the cosine, the dot product or the Euclidean distance.
        """
        similarity = _similarity_of(model)
        self.evaluation = evaluate(
            model.encode_query(self._queries, **self._of_queries),
            self._relevance,
            model.encode_document(self._corpus, **self._of_corpus),
            metrics=self._ours.values(),
            similarity=similarity,
        )
        values = {theirs: self.evaluation[ours] for theirs, ours in self._ours.items()}
        return _finish(self, model, values, similarity, epoch, steps)


class LabelEvaluator(SentenceEvaluator):
    """An evaluator of texts with labels: each text searches the others, and those of its label match.

    Args:
        texts: (n,) texts.
        labels: (n,) integers, booleans or strings.
        options: options of `dml_eval_rs.evaluate`, such as ``{"metrics": ("recall@1", "map@r")}``; by default the
            similarity is the model's.
        primary_metric: the metric by which models are chosen, one of the options' metrics.
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
        options: Options | None = None,
        *,
        primary_metric: str = "map@r",
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
        self._options = options or {}
        names = check_options(**self._options).names
        self._primary = arguments.one_of(primary_metric, "primary_metric", tuple(names))
        self._encode = {
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
            "convert_to_tensor": True,
        }

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Embed the texts, and measure; `output_path` is ignored."""
        similarity = _similarity_of(model)
        options: Options = {"similarity": similarity, **self._options}
        self.evaluation = evaluate(model.encode(self._texts, **self._encode), self._labels, **options)
        return _finish(self, model, dict(self.evaluation), similarity, epoch, steps)


def _similarity_of(model: Any) -> Similarity:
    name = getattr(model.similarity_fn_name, "value", model.similarity_fn_name)
    return cast("Similarity", arguments.one_of(name, "model.similarity_fn_name", arguments.SIMILARITIES))


def _finish(
    evaluator: Any, model: Any, metrics: dict[str, float], similarity: str, epoch: int, steps: int
) -> dict[str, float]:
    """Name the metrics as sentence-transformers does, and store them in the model's card."""
    evaluator.primary_metric = f"{similarity}_{evaluator._primary}"
    named: dict[str, float] = evaluator.prefix_name_to_metrics(
        {f"{similarity}_{name}": value for name, value in metrics.items()}, evaluator.name
    )
    evaluator.store_metrics_in_model_card_data(model, named, epoch, steps)
    return named
