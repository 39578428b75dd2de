"""The evaluators return the values of sentence-transformers' evaluators, using a tiny random
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import evaluate
from dml_eval_rs.retrieval import Options

pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed: it brings transformers"
)
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

WORDS = [f"w{i}" for i in range(60)]
RNG = np.random.default_rng(0)
CORPUS = {f"d{i}": " ".join(RNG.choice(WORDS, 6)) for i in range(50)}
QUERIES = {f"q{i}": " ".join(RNG.choice(WORDS, 4)) for i in range(20)}
RELEVANT = {
    query: set(RNG.choice(list(CORPUS), 1 + i % 7, replace=False))
    for i, query in enumerate(QUERIES)
}
RELEVANT["q3"] = set()  # both libraries exclude this query


@pytest.fixture(scope="module")
def model() -> Any:
    import tokenizers
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding

    torch.manual_seed(0)
    vocabulary = {word: i for i, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_information_retrieval_has_their_names_and_figures(
    model: Any, similarity: str, tmp_path: Path
) -> None:
    from sentence_transformers.evaluation import InformationRetrievalEvaluator as Theirs

    from dml_eval_rs.adapters.sentence_transformers import InformationRetrievalEvaluator

    model.similarity_fn_name = similarity
    options: dict[str, Any] = {
        "name": "tiny",
        "ndcg_at_k": [3, 10],
        "mrr_at_k": [2, 10],
        "map_at_k": [4, 100],
    }
    right = Theirs(QUERIES, CORPUS, RELEVANT, **options)
    ours = InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT, **options)
    expected, found = right(model, str(tmp_path / "theirs")), ours(model, str(tmp_path / "ours"))
    assert found.keys() == expected.keys()
    assert ours.primary_metric == right.primary_metric
    assert {name: pytest.approx(value, abs=1e-12) for name, value in found.items()} == expected
    files = [next((tmp_path / folder).iterdir()) for folder in ("theirs", "ours")]
    assert files[0].name == files[1].name
    headers, rows = zip(*(file.read_text().splitlines() for file in files))
    assert headers[0] == headers[1]
    expected_row, row = (np.array(line.split(","), float) for line in rows)
    np.testing.assert_allclose(row, expected_row, rtol=0, atol=1e-12)
    assert ours.evaluation is not None
    assert ours.evaluation.n_queries == 19
    assert ours.evaluation.confidence_interval("ndcg@10").low > 0


def test_texts_with_labels_search_one_another(model: Any) -> None:
    from dml_eval_rs.adapters.sentence_transformers import LabelEvaluator

    model.similarity_fn_name = "cosine"
    texts, labels = list(CORPUS.values()), [f"class {i % 5}" for i in range(50)]
    options: Options = {"metrics": ("recall@1", "recall@5", "nmi")}
    evaluator = LabelEvaluator(texts, labels, options, name="own", primary_metric="recall@5")
    found = evaluator(model, epoch=1, steps=2)
    expected = evaluate(model.encode(texts), labels, **options)
    assert found == {f"own_cosine_{name}": value for name, value in expected.items()}
    assert evaluator.primary_metric == "own_cosine_recall@5"
    assert evaluator.evaluation == expected


def test_errors_say_what_came_and_what_was_expected(model: Any) -> None:
    from dml_eval_rs.adapters.sentence_transformers import (
        InformationRetrievalEvaluator,
        LabelEvaluator,
    )

    with pytest.raises(
        ValueError, match="lists document 'd99' for query 'q0', which is not in the corpus"
    ):
        InformationRetrievalEvaluator(QUERIES, CORPUS, {"q0": {"d99"}})
    with pytest.raises(ValueError, match="no query has a relevant document"):
        InformationRetrievalEvaluator(QUERIES, CORPUS, {})
    with pytest.raises(ValueError, match=r"metric 'mrr@2.5' has K '2.5'"):
        InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT, mrr_at_k=(2.5,))
    with pytest.raises(ValueError, match="write_predictions is True; expected none"):
        InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT, write_predictions=True)
    with pytest.raises(ValueError, match=r"labels has shape \(1,\); expected \(2,\)"):
        LabelEvaluator(["a", "b"], [1])
    with pytest.raises(ValueError, match="primary_metric is 'map'; expected one of 'recall@1'"):
        LabelEvaluator(["a", "b"], [1, 1], primary_metric="map")
    model.similarity_fn_name = "manhattan"
    with pytest.raises(
        ValueError, match=r"model\.similarity_fn_name is 'manhattan'; expected one of 'cosine'"
    ):
        LabelEvaluator(["w1", "w2"], [1, 1])(model)
