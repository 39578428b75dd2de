"""Embeddings and labels in any container are used like numpy arrays with these numbers, and not
copied twice.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dml_eval_rs
from dml_eval_rs import Labels, Relevance, concatenate_blocks, evaluate, knn, relevance_from_labels
from dml_eval_rs.inputs.arguments import check_rows, partition

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype(np.float32)
LABELS = np.arange(12) % 4
EXPECTED = evaluate(X, LABELS)


class Dlpack:
    """An array that only supports DLPack, on a given device."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self.device != 1 and options.get("dl_device") != (1, 0):
            raise BufferError("the memory is on another device")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def copying(array: Dlpack) -> Dlpack:
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("numpy before 2.1 can't ask for a copy on the CPU")
    return array


class Explicit(Dlpack):
    """An array that raises an error instead of copying implicitly, like CuPy's."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise TypeError("implicit conversion is not allowed")


class Frame:
    """A column that only supports `to_numpy`."""

    def to_numpy(self) -> np.ndarray:
        return X


class Capsule:
    """A column that only supports Arrow's protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.array.__arrow_c_array__(requested_schema)


def pyarrow() -> Any:
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def fixed_size_list(x: np.ndarray) -> Any:
    return pyarrow().FixedSizeListArray.from_arrays(pyarrow().array(x.reshape(-1)), x.shape[1])


def polars() -> Any:
    return pytest.importorskip("polars", reason="polars is not installed")


def pandas() -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed")


def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


CONTAINERS = {
    "dlpack": lambda: Dlpack(X),
    "dlpack-of-another-device": lambda: copying(Dlpack(X, device=2)),
    "dlpack-beside-a-refusal": lambda: copying(Explicit(X, device=2)),
    "to-numpy": Frame,
    "list-of-lists": X.tolist,
    "list-of-rows": lambda: list(X),
    "list-of-blocks": lambda: [X[:5], X[5:]],
    "generator-of-blocks": lambda: (X[i : i + 5] for i in range(0, 12, 5)),
    "generator-of-rows": lambda: iter(X),
    "torch-blocks": lambda: [torch().tensor(X[:5], requires_grad=True), torch().tensor(X[5:])],
    "torch-rows": lambda: list(torch().tensor(X)),
    "loader": lambda: torch().utils.data.DataLoader(torch().tensor(X), batch_size=5),
    "arrow-fixed-size-list": lambda: fixed_size_list(X),
    "arrow-slice": lambda: fixed_size_list(np.concatenate([X[:2], X]))[2:],
    "arrow-chunks": lambda: pyarrow().chunked_array([fixed_size_list(X[:5]),
        fixed_size_list(X[5:])]),
    "arrow-list": lambda: pyarrow().array(list(X)),
    "arrow-tensor": lambda: pyarrow().FixedShapeTensorArray.from_numpy_ndarray(X),
    "arrow-capsule": lambda: Capsule(fixed_size_list(X)),
    "arrow-table": lambda: pyarrow().table({str(i): column for i, column in enumerate(X.T)}),
    "polars-array": lambda: polars().Series(X),
    "polars-list": lambda: polars().Series(list(X)).cast(polars().List(polars().Float32)),
    "polars-frame": lambda: polars().DataFrame({"embedding": X}),
    "pandas-column": lambda: pandas().Series(list(X)),
    "pandas-frame": lambda: pandas().DataFrame(X),
}  # fmt: skip


@pytest.mark.parametrize("container", CONTAINERS)
def test_embeddings_are_taken_from_any_container(container: str) -> None:
    assert evaluate(CONTAINERS[container](), LABELS) == EXPECTED


LABEL_CONTAINERS = {
    "generator": lambda: (int(label) for label in LABELS),
    "blocks": lambda: iter([LABELS[:5], LABELS[5:]]),
    "torch": lambda: torch().tensor(LABELS, dtype=torch().int16),
    "torch-blocks": lambda: [torch().tensor(LABELS[:5]), torch().tensor(LABELS[5:])],
    "dlpack": lambda: Dlpack(LABELS),
    "objects": lambda: LABELS.astype(object),
    "pandas-nullable": lambda: pandas().Series(LABELS, dtype="Int64"),
    "polars": lambda: polars().Series(LABELS),
    "arrow-chunks": lambda: pyarrow().chunked_array([LABELS[:5], LABELS[5:]]),
}


@pytest.mark.parametrize("container", LABEL_CONTAINERS)
def test_labels_are_taken_from_any_container(container: str) -> None:
    for labels in (LABEL_CONTAINERS[container](), Labels(LABEL_CONTAINERS[container]())):
        assert evaluate(X, labels) == EXPECTED
    groups = np.arange(12) % 3
    assert evaluate(X, Labels(LABELS, groups=partition(groups, "groups"))) == evaluate(
        X, Labels(LABELS, groups)
    )


def test_lists_are_taken_from_any_container() -> None:
    offsets, indices, grades = np.arange(13), (np.arange(12) + 4) % 12, np.arange(12) + 1
    expected = evaluate(
        X, Relevance(offsets, indices, grades, ignored=(offsets, indices[::-1])), metrics="ndcg@3"
    )
    forms = (np.ndarray.tolist, Dlpack, lambda x: torch().tensor(x), lambda x: pandas().Series(x))
    for form in forms:
        lists = [form(array) for array in (offsets, indices, grades, offsets, indices[::-1].copy())]
        relevance = Relevance(*lists[:3], ignored=(lists[3], lists[4]))
        assert evaluate(X, relevance, metrics="ndcg@3") == expected


def test_text_in_blocks_is_joined() -> None:
    text = [f"class {label}" for label in LABELS]
    assert evaluate(X, iter(text)) == EXPECTED
    assert evaluate(X, iter([np.array(text[:5]), np.array(text[5:], dtype=object)])) == EXPECTED


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_floats_of_ml_dtypes_are_their_float32_numbers(dtype: str) -> None:
    narrow = X.astype(
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").__dict__[dtype]
    )
    assert evaluate(narrow, LABELS) == evaluate(narrow.astype(np.float32), LABELS)
    assert evaluate(iter([narrow[:5], narrow[5:]]), LABELS) == evaluate(
        narrow.astype(np.float32), LABELS
    )


def test_dlpack_of_bfloat16_is_read_by_torch_where_it_is_loaded() -> None:
    tensor = torch().tensor(X).bfloat16()
    assert evaluate(Dlpack(tensor), LABELS) == evaluate(tensor.float().numpy(), LABELS)


@pytest.mark.gpu
def test_a_tensor_on_the_gpu_is_copied_by_blocks() -> None:
    if not torch().cuda.is_available():
        pytest.skip("there is no CUDA device; bfloat16 tensors on the CPU are copied the same way")
    for dtype in (torch().float32, torch().bfloat16):
        tensor = torch().tensor(X, dtype=dtype, requires_grad=True)
        assert evaluate(tensor.cuda(), torch().tensor(LABELS).cuda()) == evaluate(
            tensor.detach().cpu(), LABELS
        )


def test_every_function_takes_any_container() -> None:
    """All functions should use the same conversion."""
    as_lists, labels = X.tolist(), [str(label) for label in LABELS]
    codes = dml_eval_rs.binarize(X)
    calls = {
        "evaluate of codes": lambda x, y, c, i: evaluate(c, y, similarity="hamming"),
        "evaluate_ties": lambda x, y, c, i: dml_eval_rs.evaluate_ties(x, y),
        "knn": lambda x, y, c, i: knn(x, None, 2),
        "range_search": lambda x, y, c,
        i: dml_eval_rs.range_search(x, x if isinstance(x, np.ndarray) else X, 0.5),
        "index_recall": lambda x, y, c, i: dml_eval_rs.index_recall(i, x, X, 2).per_query,
        "verify": lambda x, y, c, i: dml_eval_rs.verify(x, y).to_dict(),
        "verify of codes": lambda x, y, c,
        i: dml_eval_rs.verify(c, y, similarity="hamming").to_dict(),
        "verify of labels": lambda x, y, c,
        i: dml_eval_rs.verify(x, Labels(y, np.arange(12) % 3)).to_dict(),
        "verify-pairs": lambda x, y, c, i: dml_eval_rs.verify(x, y, pairs=i).to_dict(),
        "open_set": lambda x, y, c, i: dml_eval_rs.open_set(x, y, X[:3], labels[:3]).to_dict(),
        "kmeans": lambda x, y, c, i: dml_eval_rs.kmeans(x, 3).labels,
        "nmi": lambda x, y, c, i: dml_eval_rs.nmi(y, LABELS),
    }  # fmt: skip

    pairs = np.stack([np.arange(12), (np.arange(12) + 4) % 12], axis=1)
    pairs[6:, 1] = (pairs[6:, 0] + 1) % 12
    for name, call in calls.items():
        expected = call(X, np.array(labels), codes, pairs)
        found = call(in_one_buffer(as_lists), iter(labels), iter([codes]), iter([pairs]))
        np.testing.assert_equal(found, expected, err_msg=name)


def in_one_buffer(rows: list[list[float]]) -> Iterator[np.ndarray]:
    """Yield rows in a single buffer, like data loaders."""
    buffer = np.empty(4, np.float32)
    for row in rows:
        buffer[:] = row
        yield buffer


def test_blocks_of_embeddings_and_labels_are_joined() -> None:
    blocks = ((X[i : i + 5], LABELS[i : i + 5]) for i in range(0, 12, 5))
    assert evaluate(*concatenate_blocks(blocks)) == EXPECTED
    loader = torch().utils.data.DataLoader(
        torch().utils.data.TensorDataset(torch().tensor(X).bfloat16(), torch().tensor(LABELS)),
        batch_size=5,
    )
    joined, labels = concatenate_blocks(loader)
    assert joined.dtype == np.float32
    assert np.array_equal(labels, LABELS)
    assert np.array_equal(concatenate_blocks([X[:5], X[5:]]), X)


def test_blocks_may_be_columns() -> None:
    starts = (0, 4, 8)
    blocks = [(fixed_size_list(X[i : i + 4]), pyarrow().array(LABELS[i : i + 4])) for i in starts]
    joined, labels = concatenate_blocks(blocks)
    assert np.array_equal(joined, X)
    assert np.array_equal(labels, LABELS)


def assert_same_lists(found: Relevance, expected: Relevance) -> None:
    np.testing.assert_array_equal(found.offsets, expected.offsets)
    np.testing.assert_array_equal(found.indices, expected.indices)


def test_several_labels_an_item_are_taken_from_tensors_and_columns() -> None:
    table = RNG.integers(0, 2, (12, 5))
    for form in (torch().tensor(table), Dlpack(table)):
        assert_same_lists(relevance_from_labels(form), relevance_from_labels(table))


@pytest.mark.parametrize("library", ["iterator", "polars", "pandas", "pyarrow"])
def test_sets_of_labels_are_taken_from_columns_of_lists(library: str) -> None:
    sets = [np.flatnonzero(row).tolist() for row in RNG.integers(0, 2, (12, 5))]
    columns = {
        "iterator": lambda: iter(sets),
        "polars": lambda: polars().Series(sets),
        "pandas": lambda: pandas().Series(sets),
        "pyarrow": lambda: pyarrow().array(sets),
    }
    assert_same_lists(relevance_from_labels(columns[library]()), relevance_from_labels(sets))


def rows_of(x: Any, name: str) -> np.ndarray:
    return check_rows(x, name, "cosine")


def peak(call: Any) -> tuple[Any, int]:
    """Return a call's result, and the peak of memory that it used, in bytes."""
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_conversion_holds_a_second_copy() -> None:
    big = np.ones((60_000, 128), np.float32)
    blocks = (big[start : start + 1000] for start in range(0, len(big), 1000))
    joined, most = peak(lambda: rows_of(blocks, "x"))
    assert np.array_equal(joined, big)
    assert most < 1.3 * big.nbytes  # arrays grow by a quarter
    narrow = big.astype(
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    )
    assert peak(lambda: rows_of(narrow, "x"))[1] < 1.1 * big.nbytes


IN_PLACE = {
    "arrow": fixed_size_list,
    "dlpack": Dlpack,
    "torch": lambda x: torch().tensor(x),
    "polars": lambda x: polars().Series(x),
}


@pytest.mark.parametrize("container", IN_PLACE)
def test_memory_of_other_libraries_is_read_in_place(container: str) -> None:
    held = IN_PLACE[container](np.ones((20_000, 128), np.float32))
    found, most = peak(lambda: rows_of(held, "x"))
    assert found.shape == (20_000, 128)
    assert most < 0.01 * found.nbytes


BAD = {
    "no-blocks": (lambda: iter(()), ValueError,
        "x is an empty tuple_iterator; expected at least one block"),
    "width": (lambda: iter([X, X[:, :3]]), ValueError,
        r"block 1 of x has shape \(12, 3\); expected \(n, 4\)"),
    "kind": (lambda: iter([X, X.astype(int)]), TypeError,
        "block 1 of x has dtype int64; expected float32"),
    "pairs": (lambda: iter([(X, X)]), TypeError,
        r"x has blocks of 2 arrays.*evaluate\(\*concatenate_blocks"),
    "ragged": (lambda: fill([[1.0, 2.0], [1.0]]), ValueError,
        "x row 1 has length 1; expected 2, like row 0"),
    "hole": (lambda: fill([[1.0, 2.0], None]), ValueError, "x has a missing row at index 1"),
    "text": (lambda: fill(["a", "b"]), TypeError, "x has dtype object whose entry 0 is a str"),
    "arrow-hole": (lambda: pyarrow().array([[1.0, 2.0], None],
        pyarrow().list_(pyarrow().float32(), 2)), ValueError,
                   "x has a missing row at index 1"),
    "arrow-number": (lambda: pyarrow().array([[1.0, None]],
        pyarrow().list_(pyarrow().float32(), 2)), ValueError,
                     "x has a missing number in row 0"),
    "dict": (lambda: {"a": 1}, TypeError,
        "x is a dict; expected an array, a tensor, a table's column"),
    "int4": (lambda: X.astype(pytest.importorskip("ml_dtypes").int4), TypeError,
        "x has dtype int4; expected float16"),
}  # fmt: skip


def fill(entries: list[Any]) -> np.ndarray:
    column = np.empty(len(entries), dtype=object)
    column[:] = entries
    return column


@pytest.mark.parametrize("case", BAD)
def test_the_container_that_does_not_fit_is_named(case: str) -> None:
    make, error, message = BAD[case]
    with pytest.raises(error, match=message):
        rows_of(make(), "x")


def test_labels_that_blocks_would_merge_are_refused() -> None:
    with pytest.raises(TypeError, match="block 1 of x has dtype <U1; expected int64"):
        partition(iter([np.array([1]), np.array(["1"])]), "x")
    with pytest.raises(TypeError, match="block 1 of x has dtype uint64; expected int64"):
        partition(iter([np.array([-1]), np.array([2**64 - 1], np.uint64)]), "x")
    for mixed in (iter(["1", 1]), iter([["1", 1]])):
        with pytest.raises(TypeError, match="a list whose entry 1 is 1, of type int"):
            partition(mixed, "x")
    with pytest.raises(
        TypeError, match="block 0 of array 1 is a list whose entry 1 is 1, of type int"
    ):
        concatenate_blocks([(X[:2], ["1", 1])])
    with pytest.raises(ValueError, match="expected 64-bit integers or strings"):
        partition(fill([1, 2**70]), "x")
    with pytest.raises(ValueError, match="x has a missing value at index 1"):
        partition(pandas().Series([1, None, 3], dtype="Int64"), "x")


def test_blocks_of_several_arrays_have_equal_lengths() -> None:
    with pytest.raises(ValueError, match="block 0 has arrays of lengths 12, 11"):
        concatenate_blocks([(X, LABELS[1:])])
    with pytest.raises(ValueError, match="block 1 has 1 arrays; expected 2"):
        concatenate_blocks([(X, LABELS), X])
    with pytest.raises(ValueError, match="blocks is empty"):
        concatenate_blocks([])
