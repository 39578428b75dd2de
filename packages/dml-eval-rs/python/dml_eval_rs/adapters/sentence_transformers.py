"""Evaluators for sentence-transformers that count exactly over the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Similarity
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.metrics.names import check_metrics
from dml_eval_rs.retrieval import Options, check_options, evaluate

try:
    from sentence_transformers.sentence_transformer import evaluation
except ModuleNotFoundError:  # sentence-transformers before version 6
    from sentence_transformers import evaluation


class InformationRetrievalEvaluator(evaluation.InformationRetrievalEvaluator):
    """An evaluator with the arguments, names, files and values of sentence-transformers' evaluator.

    If scores are equal, the order of the corpus decides; in sentence-transformers, the lower id
    ranks first.

    Args:
        args, kwargs: see sentence-transformers. `score_functions` and `write_predictions` can't be
            used, because the corpus is sorted by the model's similarity.

    Attributes:
        evaluation: the last `Evaluation`, to be used for per-query values, intervals and
            comparisons, or None.

    Raises:
        ValueError: if an argument can't be used, k is not a positive integer, a relevant document
            is not in the corpus, or none of the queries has a relevant document.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.evaluation: Evaluation | None = None
        for name in ("score_functions", "write_predictions"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; expected none: it is not used"
                )
        theirs = {
            "accuracy": ("recall", self.accuracy_at_k),
            "precision": ("precision", self.precision_recall_at_k),
            "recall": ("ir_recall", self.precision_recall_at_k),
            "ndcg": ("ndcg", self.ndcg_at_k),
            "mrr": ("mrr", self.mrr_at_k),
            "map": ("map", self.map_at_k),
        }
        self._names = {
            f"{name}@k": {k: f"{ours}@{k}" for k in ks} for name, (ours, ks) in theirs.items()
        }
        self._metrics = check_metrics(
            [name for names in self._names.values() for name in names.values()]
        )
        place = {document: i for i, document in enumerate(self.corpus_ids)}
        offsets, indices = [0], list[int]()
        for query in self.queries_ids:
            for document in self.relevant_docs[query]:
                if document not in place:
                    came = f"relevant_docs lists document {document!r} for query {query!r}"
                    raise ValueError(
                        f"{came}, which is not in the corpus; expected ids of the corpus"
                    )
                indices.append(place[document])
            offsets.append(len(indices))
        if not indices:
            raise ValueError("no query has a relevant document; expected relevant_docs by query id")
        self._relevance = Relevance(offsets, indices)

    def compute_all_metrics(
        self,
        model: Any,
        corpus_model: Any = None,
        corpus_embeddings: Any = None,
        output_path: str | None = None,
    ) -> dict[str, dict[str, dict[int, float]]]:
        """Embed queries and corpus, measure, and return similarity → metric → k → value.

        Raises:
            ValueError: if the model's similarity is not cosine, dot product or Euclidean.
        """
        similarity = _similarity_of(model)
        prompts = {"prompt_name": self.query_prompt_name, "prompt": self.query_prompt}
        queries = self.embed_inputs(model, self.queries, "query", **prompts)
        if corpus_embeddings is None:
            prompts = {"prompt_name": self.corpus_prompt_name, "prompt": self.corpus_prompt}
            embedder = model if corpus_model is None else corpus_model
            corpus_embeddings = self.embed_inputs(embedder, self.corpus, "document", **prompts)
        options: Options = {"metrics": self._metrics, "similarity": similarity}
        self.evaluation = found = evaluate(queries, self._relevance, corpus_embeddings, **options)
        named = self._names.items()
        return {
            similarity: {
                theirs: {k: found[name] for k, name in by_k.items()} for theirs, by_k in named
            }
        }

    compute_metrices = compute_all_metrics  # the method's name before version 6


class LabelEvaluator(evaluation.SentenceEvaluator):
    """An evaluator for labelled texts: texts search the other texts, and match if labels are equal.

    Args:
        texts: (n,) texts.
        labels: (n,) integers, booleans or strings.
        options: options of `dml_eval_rs.evaluate`, for example
            ``{"metrics": ("recall@1", "map@r")}``; by default, the model's similarity is used.
        primary_metric: the metric used to choose models; must be in the metrics of `options`.
        batch_size, show_progress_bar: passed to ``model.encode``.
        name: prefix for the metrics' names.

    Attributes:
        evaluation: the last `Evaluation`, or None.

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
        self._labels = arguments.partition(labels, "labels", len(self._texts), "text")
        self._options = options or {}
        names = check_options(**self._options).names
        self._primary = arguments.one_of(primary_metric, "primary_metric", tuple(names))
        self._encode = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Embed the texts, then return the metrics; `output_path` is ignored."""
        similarity = _similarity_of(model)
        options: Options = {"similarity": similarity, **self._options}
        embeddings = model.encode(self._texts, convert_to_tensor=True, **self._encode)
        self.evaluation = evaluate(embeddings, self._labels, **options)
        self.primary_metric = f"{similarity}_{self._primary}"
        values = {f"{similarity}_{name}": value for name, value in self.evaluation.items()}
        named: dict[str, float] = self.prefix_name_to_metrics(values, self.name)
        self.store_metrics_in_model_card_data(model, named, epoch, steps)
        return named


def _similarity_of(model: Any) -> Similarity:
    name = getattr(model.similarity_fn_name, "value", model.similarity_fn_name)
    return cast(
        "Similarity", arguments.one_of(name, "model.similarity_fn_name", arguments.SIMILARITIES)
    )
