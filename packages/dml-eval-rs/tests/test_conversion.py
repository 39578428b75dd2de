"""Tensors, columns and lists can be used, or raise an error that says how to fix the input."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from eval_support.every_function import calls_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, integer_dtypes, unsigned_integer_dtypes

from dml_eval_rs import Labels, binarize, evaluate, nmi
from dml_eval_rs.inputs import arguments

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype(np.float32)
TEXT = ["cat", "dog", "cat", "owl", "dog", "owl"]
EXPECTED = evaluate(X, TEXT)


class Column:
    """A table's column, which numpy reads as an array of objects."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array(self.values, dtype=object)


def pandas_column(dtype: str) -> object:
    return pytest.importorskip("pandas", reason="pandas is not installed").Series(TEXT, dtype=dtype)


def polars_column(dtype: str) -> object:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return polars.Series(TEXT, dtype=getattr(polars, dtype))


def arrow_column(encoded: bool) -> object:
    array = pytest.importorskip("pyarrow", reason="pyarrow is not installed").array(TEXT)
    return array.dictionary_encode() if encoded else array


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array(TEXT, dtype=object),
        lambda: Column(TEXT),
        lambda: tuple(TEXT),
        lambda: [np.str_(label) for label in TEXT],
        lambda: pandas_column("object"),
        lambda: pandas_column("string"),
        lambda: pandas_column("category"),
        lambda: polars_column("String"),
        lambda: polars_column("Categorical"),
        lambda: arrow_column(encoded=False),
        lambda: arrow_column(encoded=True),
    ],
    ids=[
        "objects", "column", "tuple", "numpy-strings", "pandas-object", "pandas-string",
        "pandas-category",
        "polars-string", "polars-categorical", "arrow", "arrow-dictionary",
    ],
)  # fmt: skip
def test_labels_of_text_are_taken_from_any_column(make: Any) -> None:
    assert evaluate(X, make()) == evaluate(X, Labels(make())) == EXPECTED
    some = Column(TEXT[:5]) if isinstance(make(), Column) else make()[:5]
    assert evaluate(X, TEXT, X[:5], some) == evaluate(X, TEXT, X[:5], TEXT[:5])
    assert nmi(make(), TEXT) == 1


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([1, "1", 1, "1", 2, 2], TypeError, "labels is a list whose entry 0 is 1, of type int"),
        (["1", 1, "1", 1, "2", "2"], TypeError, "labels is a list whose entry 1 is 1, of type int"),
        (["a", True, "a", "b", "b", "b"], TypeError, "entry 1 is True, of type bool"),
        (["a", b"a", "a", "b", "b", "b"], TypeError,
         "entry 1 is b'a', of type bytes; expected entries of type str"),
        (Column(["a", 1, "a", "b", "b", "b"]), TypeError,
         "labels has dtype object whose entry 1 is 1, of type int"),
        (Column([1, 1, True, 2, 3, 3]), TypeError,
         r"numpy.asarray\(labels\).astype\(int\) if all are integers"),
        (Column(["a", None, "a", "b", "b", "b"]), ValueError,
         "labels has a missing value at index 1"),
        (Column(["a", "a", float("nan"), "b", "b", "b"]), ValueError,
         "labels has a missing value at index 2"),
        (["a", "a", None, "b", "b", "b"], ValueError, "labels has a missing value at index 2"),
    ],
)  # fmt: skip
def test_the_first_label_that_is_no_string_is_named(
    labels: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        evaluate(X, labels)  # type: ignore[arg-type]


NULS = ["a", "a\0", "a", "a\0", "b", "b"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array(NULS, dtype=object),
        lambda: NULS,
        lambda: tuple(NULS),
        lambda: deque(NULS),
        lambda: [np.str_(label) for label in NULS],
        lambda: iter(NULS),
        lambda: iter([NULS[:1], NULS[1:]]),
        lambda: pytest.importorskip("polars", reason="polars is not installed").Series(NULS),
    ],
    ids=["objects", "list", "tuple", "deque", "numpy-strings", "iterator", "blocks", "polars"],
)
def test_strings_that_differ_in_their_end_alone_stay_apart(make: Callable[[], Any]) -> None:
    if hasattr(np.dtypes, "StringDType"):
        assert evaluate(X, make()) == evaluate(X, [0, 1, 0, 1, 2, 2])
    else:
        with pytest.raises(ValueError, match="ends in NUL"):
            evaluate(X, make())


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 1 rejects such strings")
def test_final_nuls_of_groups_galleries_and_junk_count_too() -> None:
    numbers = [0, 1, 0, 1, 2, 2]
    assert evaluate(X, NULS, X[::-1], ["a", "b", "a", "a\0", "b", "a"]) == evaluate(
        X, numbers, X[::-1], [0, 2, 0, 1, 2, 0]
    )
    halves = [0, 0, 0, 1, 1, 1]
    assert evaluate(X, Labels(halves, NULS)) == evaluate(X, Labels(halves, numbers))
    for junk, number in ((["a"], [0]), ("a", 0), (("a\0", "b"), (1, 2))):
        assert evaluate(X, NULS, X, Labels(NULS, junk=junk), exclude=range(6)) == evaluate(
            X, numbers, X, Labels(numbers, junk=number), exclude=range(6)
        )


def test_bytes_that_end_in_nul_are_refused_as_numpy_would_merge_them() -> None:
    with pytest.raises(
        ValueError, match=r"labels has the bytes b'a\\x00' at index 1, whose NUL .*label\.hex"
    ):
        evaluate(X, [label.encode() for label in NULS])


def test_text_that_is_not_unicode_is_named() -> None:
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy 1 stores lone surrogates")
    with pytest.raises(ValueError, match="isn't valid Unicode"):
        evaluate(X, np.array(["a", "\ud800", "a", "b", "b", "b"], dtype=object))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors_are_refused(layout: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rows = torch.nested.nested_tensor([torch.ones(4)] * 6, layout=getattr(torch, layout))
    with pytest.raises(TypeError, match=r"embeddings is a nested tensor.*to_padded_tensor"):
        evaluate(rows, [0, 1, 0, 1, 2, 2])


MATRIX, CODES, IDS = (
    np.eye(6, 4) + 0.1,
    np.arange(12, dtype=np.uint8).reshape(6, 2),
    np.array([0, 1, 0, 1, 2, 2]),
)


@pytest.mark.parametrize("name", calls_of(MATRIX, CODES, IDS, MATRIX, CODES, IDS))
@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script:FutureWarning", "ignore:.*torch.jit.script:DeprecationWarning"
)
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "functionalize"])
def test_tensors_inside_transforms_are_refused(name: str, transform: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    func = pytest.importorskip("torch.func", reason="torch is not installed")

    def call(x: Any) -> Any:
        zeros = 0 * x.long()
        codes, labels = (torch.tensor(CODES) + zeros[:, :1]).byte(), torch.tensor(IDS) + zeros[:, 0]
        calls_of(x, codes, labels, MATRIX, CODES, IDS)[name]()
        return x.sum()

    x = torch.tensor(MATRIX)
    transformed = {
        "grad": lambda: func.grad(call)(x),
        "jvp": lambda: func.jvp(call, (x,), (x,)),
        "vmap": lambda: func.vmap(call)(torch.stack([x, x])),
        "functionalize": lambda: func.functionalize(call)(x),
    }
    with pytest.raises(
        TypeError, match=r"is a tensor without readable numbers .*outside torch\.func"
    ):
        transformed[transform]()


def test_tensors_of_any_floating_dtype_are_taken_without_their_gradient() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    labels = torch.tensor([0, 1, 0, 1, 2, 2])
    for dtype in ("float64", "float32", "float16", "bfloat16", "float8_e5m2"):
        tensor = torch.tensor(X).to(getattr(torch, dtype))
        expected = evaluate(tensor.double().numpy(), labels.numpy())
        assert evaluate(tensor, labels) == expected
        assert evaluate(tensor.requires_grad_(), labels) == expected
    assert np.array_equal(binarize(torch.tensor(X).bfloat16().requires_grad_()), binarize(X))
    codes, code = binarize(X), {"similarity": "hamming"}
    assert evaluate(torch.tensor(codes), labels, **code) == evaluate(codes, labels.numpy(), **code)


NESTED = r"embeddings is a nested tensor.*to_padded_tensor"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda _, x: x.to("meta"), "embeddings is a tensor on meta, which has no numbers"),
        (
            lambda _, x: x.to_sparse(),
            "embeddings is a tensor of layout torch.sparse_coo.*to_dense()",
        ),
        (lambda _, x: x.int(), "embeddings has dtype int32; expected float16"),
        (lambda torch, x: torch.nested.nested_tensor([*x], layout=torch.strided), NESTED),
        (lambda torch, x: torch.nested.nested_tensor([*x], layout=torch.jagged), NESTED),
    ],
    ids=["elsewhere", "sparse", "integers", "nested", "jagged"],
)
def test_other_tensors_are_errors_with_the_remedy(change: Any, remedy: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(TypeError, match=remedy):
        evaluate(change(torch, torch.tensor(X)), TEXT)


def test_a_gallery_that_is_the_queries_is_warned_of() -> None:
    codes, own = binarize(X), np.arange(len(X))
    with pytest.warns(
        UserWarning, match="gallery is embeddings, so each query finds itself first; omit gallery"
    ) as warned:
        assert evaluate(X, TEXT, X.copy(), TEXT)["recall@1"] == 1
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="gallery is embeddings"):
        evaluate(codes, TEXT, codes, TEXT, similarity="hamming")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(X, TEXT, X[::-1], TEXT)
        evaluate(X, TEXT, X[:5], TEXT[:5])
        # When items are excluded, a query can't find itself, so warnings should not be raised.
        assert evaluate(X, TEXT, X.copy(), TEXT, exclude=own) == evaluate(X, TEXT)
        evaluate(X, Labels(TEXT, own), X.copy(), Labels(TEXT, own))


@st.composite
def integer_labels(draw: st.DrawFn) -> np.ndarray:
    """Draw integers near a point in the dtype's range, which is often one of the ends."""
    dtype = draw(integer_dtypes(endianness="=") | unsigned_integer_dtypes(endianness="="))
    limits = np.iinfo(dtype)
    point = draw(st.sampled_from([limits.min, limits.max]) | st.integers(limits.min, limits.max))
    width = draw(st.integers(0, 200))
    near = st.integers(max(point - width, limits.min), min(point + width, limits.max))
    return draw(arrays(dtype, st.integers(1, 40), elements=near))


@given(integer_labels())
def test_integer_labels_are_encoded_by_their_rank(labels: np.ndarray) -> None:
    (codes,) = arguments.encode(labels)
    assert codes.dtype == np.uint32
    np.testing.assert_array_equal(codes, np.unique(labels, return_inverse=True)[1])
