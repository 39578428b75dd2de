"""The search back end returns the results of mteb's search, for tasks of a table of embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import evaluate, knn

pytest.importorskip("mteb", reason="mteb is not installed: it brings transformers and datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

N_QUERIES, N_DOCUMENTS, DIM = 40, 300, 8
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 10, N_QUERIES + N_DOCUMENTS)
X = (RNG.normal(size=(10, DIM))[LABELS] + RNG.normal(size=(len(LABELS), DIM))).astype(np.float32)
QUERIES, DOCUMENTS = range(N_QUERIES), range(N_QUERIES, len(X))


def name(item: int) -> str:
    """Return an id. mteb sorts equal scores by id, in descending order, so here by row."""
    return f"i{9999 - item}"


CANDIDATES = {
    name(query): [name(item) for item in RNG.choice(DOCUMENTS, 1 + query, replace=False)]
    for query in QUERIES
}


def table(x: Any, similarity: Any = "cosine") -> Any:
    """Make a model of mteb that returns row i of an array for the text "i"."""
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction
    from mteb.similarity_functions import select_similarity

    class Table(AbsEncoder):  # type: ignore[misc]
        def __init__(self) -> None:
            stated = None if similarity is None else ScoringFunction(similarity)
            self.mteb_model_meta = ModelMeta.create_empty(
                {"name": "own/table", "revision": "1", "similarity_fn_name": stated}
            )

        def encode(self, inputs: Any, **_: Any) -> Any:
            return x[[int(text) for batch in inputs for text in batch["text"]]]

        def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
            function = self.mteb_model_meta.similarity_fn_name or ScoringFunction.COSINE
            return select_similarity(embeddings1, embeddings2, function)

    return Table()


def task(queries: Any, documents: Any, labels: Any, *, keeps: bool = False, **options: Any) -> Any:
    """Make a task whose items match if labels are equal; if `keeps`, a query matches itself."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    unknown = ("date", "domains", "task_subtypes", "license", "annotations_creators", "dialect")
    unknown += ("sample_creation", "bibtex_citation", "reference")

    def rows(items: Any) -> Any:
        return Dataset.from_list([{"id": name(item), "text": str(item)} for item in items])

    def relevant(query: int) -> dict[str, int]:
        found = [item for item in documents if labels[item] == labels[query]]
        return {name(item): 1 for item in found if keeps or item != query}

    class Items(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name="Items", description="own", dataset={"path": "own", "revision": "1"},
            type="Retrieval", category="t2t", eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="ndcg_at_10", modalities=["text"], **dict.fromkeys(unknown),
        )  # fmt: skip
        ignore_identical_ids = options.get("ignore_identical_ids", False)
        skip_first_result = options.get("skip_first_result", False)

        def load_data(self, *_: Any, **__: Any) -> None:
            self.dataset = {"default": {"test": {
                "queries": rows(queries), "corpus": rows(documents),
                "relevant_docs": {name(query): relevant(query) for query in queries},
                "top_ranked": options.get("top_ranked"),
            }}}  # fmt: skip
            self.data_loaded = True

    return Items()


def measure(model: Any, items: Any) -> dict[str, float]:
    """Return the scores that are numbers."""
    found = items.evaluate(model, "test", encode_kwargs={"show_progress_bar": False})["default"]
    return {
        score: value
        for score, value in found.items()
        if isinstance(value, float) and not math.isnan(value)
    }


def rounded(x: Any) -> Any:
    return np.round(16 * x).astype(np.int8)


def as_bfloat16(x: Any) -> Any:
    import torch

    return torch.from_numpy(x).bfloat16()


FORMS: dict[str, Any] = {
    "float32": lambda x: x,
    "float64": lambda x: x.astype(np.float64),
    "float16": lambda x: x.astype(np.float16),
    "int8": rounded,
    "int32": lambda x: rounded(x).astype(np.int32),
    "bool": lambda x: x > 0,
    "bfloat16 tensor": as_bfloat16,
}


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("top_ranked", [None, CANDIDATES], ids=["corpus", "candidates"])
def test_the_scores_are_those_of_their_search(similarity: str, top_ranked: Any) -> None:
    from dml_eval_rs.adapters.mteb import SearchEncoderWrapper

    model = table(X, similarity)
    items = task(QUERIES, DOCUMENTS, LABELS, top_ranked=top_ranked)
    expected, found = measure(model, items), measure(SearchEncoderWrapper(model), items)
    assert found.keys() == expected.keys()
    assert 0.1 < found["ndcg_at_10"] < 1
    for score, value in found.items():
        # nAUC sorts queries by scores, which they round differently.
        assert value == pytest.approx(expected[score], abs=1e-5), score


@pytest.mark.parametrize("top_ranked", [None, CANDIDATES], ids=["corpus", "candidates"])
@pytest.mark.parametrize("form", FORMS)
def test_documents_and_scores_are_theirs_for_any_array(form: str, top_ranked: Any) -> None:
    from mteb.models import search_wrappers

    from dml_eval_rs.adapters.mteb import SearchEncoderWrapper

    x = FORMS[form](X)
    # Their search of candidates doesn't convert integers, and fails.
    fails = top_ranked is not None and form in ("int8", "int32", "bool")
    models = table(x.astype(np.float32) if fails else x), table(x)
    items = task(QUERIES, DOCUMENTS, LABELS)
    items.load_data()
    data = items.dataset["default"]["test"]
    options: dict[str, Any] = {"task_metadata": items.metadata, "hf_split": "test"}
    options |= {"hf_subset": "default", "encode_kwargs": {"show_progress_bar": False}}
    found: list[Any] = []
    wrappers = search_wrappers.SearchEncoderWrapper, SearchEncoderWrapper
    for wrapper in (make(model) for make, model in zip(wrappers, models, strict=True)):
        wrapper.index(data["corpus"].select([7, 3]), **options)  # a task that fails here
        wrapper.index(data["corpus"], **options)
        found.append(wrapper.search(data["queries"], top_k=12, top_ranked=top_ranked, **options))
    expected, ours = found
    assert ours.keys() == expected.keys() == CANDIDATES.keys()
    for query, scores in expected.items():
        n = 12 if top_ranked is None else min(12, len(CANDIDATES[query]))
        assert len(ours[query]) == len(scores) == n
        # Rounding may swap documents that tie: then the scores are equal.
        values, expected_values = (sorted(each.values()) for each in (ours[query], scores))
        np.testing.assert_allclose(values, expected_values, rtol=0, atol=2e-6)
        cut = min(expected_values) + 2e-6
        assert {d for d, s in ours[query].items() if s > cut} == {
            d for d, s in scores.items() if s > cut
        }


def test_copies_are_dropped_by_id_or_by_rank_as_the_task_says() -> None:
    """If copies have different labels and queries are relevant, dropping rank 1 adds matches."""
    from dml_eval_rs.adapters.mteb import SearchEncoderWrapper

    x, rows = X.copy(), range(len(X))
    x[1:80:2] = x[0:80:2]
    model = SearchEncoderWrapper(table(x))
    by_id = measure(model, task(rows, rows, LABELS, ignore_identical_ids=True))
    by_rank = measure(model, task(rows, rows, LABELS, keeps=True, skip_first_result=True))
    expected = evaluate(x, LABELS, metrics=("recall@1",))["recall@1"]
    # mteb rounds to five digits.
    assert by_id["hit_rate_at_1"] == pytest.approx(expected, abs=1e-5)
    second = knn(x, x, 2)[1]
    different = LABELS[second[:80, 0]] != LABELS[second[:80, 1]]
    assert different.sum() > 40
    assert by_rank["hit_rate_at_1"] > by_id["hit_rate_at_1"] + 0.05


def index_of(x: Any, **options: Any) -> Any:
    from dml_eval_rs.adapters.mteb import ExactSearchIndex

    index = ExactSearchIndex(table(x), **options)
    index.add_documents(x, [f"i{item}" for item in range(len(x))])
    return index


def test_documents_can_be_added_in_parts_and_cleared() -> None:
    from dml_eval_rs.adapters.mteb import ExactSearchIndex

    model = table(X)
    index = ExactSearchIndex(model, threads=1)
    for part in np.array_split(np.arange(len(X)), 3):
        index.add_documents(X[part], [f"i{item}" for item in part])
    scores, found = index.search(X[:5], 7, model.similarity)
    expected_scores, expected = knn(X[:5], X, 7)
    assert found == expected.tolist()
    assert scores == expected_scores.tolist()
    index.clear()
    with pytest.raises(ValueError, match="there are no documents; expected add_documents"):
        index.search(X[:5], 7, model.similarity)


def test_more_results_than_documents_returns_all_and_ties_are_sorted_by_place() -> None:
    x = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0)
    scores, found = index_of(x).search(x[2:3], 1000, table(x).similarity)
    assert found == [[2, 3, 0, 1, 4, 5]]
    assert scores == [[1, 1, 0, 0, 0, 0]]


def test_candidates_are_places_in_the_list_and_an_empty_list_finds_nothing() -> None:
    x = np.eye(4, dtype=np.float32)[[0, 0, 1, 2]] + np.float32(0.1)
    lists = {"a": ["i3", "i2", "i2", "i0"], "b": [], "c": ["i1"]}
    with pytest.warns(UserWarning, match="top_ranked has no documents for query 'b'"):
        scores, found = index_of(x).search(
            x[:3], 3, table(x).similarity, lists, {0: "a", 1: "b", 2: "c"}
        )
    assert found == [[3, 1, 0], [], [0]]
    assert [len(row) for row in scores] == [3, 0, 1]
    assert scores[0] == sorted(scores[0], reverse=True)


def test_the_cosine_of_zeros_is_zero_as_in_mteb() -> None:
    """The embedding of an empty text may be zero."""
    x = np.array([[1, 0], [0, 0], [-1, 0], [0, 1]], np.float32)
    model = table(x)
    scores, found = index_of(x).search(x, 4, model.similarity)
    assert found == [[0, 1, 3, 2], [0, 1, 2, 3], [2, 1, 3, 0], [3, 0, 1, 2]]
    theirs = np.take_along_axis(np.asarray(model.similarity(x, x)), np.array(found), axis=1)
    assert np.array_equal(scores, theirs)


def test_errors_say_what_came_and_what_was_expected() -> None:
    from dml_eval_rs.adapters.mteb import ExactSearchIndex, SearchEncoderWrapper

    model = table(X)
    for similarity in ("MaxSim", "manhattan", None):
        with pytest.raises(ValueError, match=f"similarity is {similarity!r}; expected one of"):
            SearchEncoderWrapper(table(X, similarity))
    assert index_of(X).search(X[:2], 3, model.similarity) == index_of(
        X, similarity="cosine"
    ).search(X[:2], 3, table(X, None).similarity)
    index = index_of(X)
    with pytest.raises(ValueError, match="340 documents have 1 ids; expected one id each"):
        index.add_documents(X, ["i0"])
    with pytest.raises(ValueError, match=r"document embeddings has shape \(5, 68, 8\)"):
        ExactSearchIndex(model).add_documents(X.reshape(5, -1, DIM), ["a"] * 5)
    with pytest.raises(ValueError, match="query_idx_to_id is None; expected query ids"):
        index.search(X[:1], 3, model.similarity, {"a": ["i0"]})
    with pytest.raises(ValueError, match="lists document 'i999' for query 'a', which was not"):
        index.search(X[:1], 3, model.similarity, {"a": ["i0", "i999"]}, {0: "a"})
    with pytest.raises(ValueError, match=r"similarity function returns 100 for a pair whose cos"):
        index.search(X[:1], 3, lambda a, b: 100 * model.similarity(a, b))
