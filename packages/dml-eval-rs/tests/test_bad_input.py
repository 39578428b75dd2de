"""Bad input raises a clear error that says what is wrong, what should be given and how to fix
it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import ami, ari, binarize, evaluate, kmeans, knn, nmi

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
LABELS = np.array([0, 0, 1, 1, 2, 2])
CODES = np.random.default_rng(0).integers(0, 256, (6, 3), dtype=np.uint8)
CODE: Any = {"similarity": "hamming"}


class Tensor:
    """A tensor that requires a gradient."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


def with_value(row: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row:, 1] = value
    return x


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_row_that_is_not_finite_is_named(value: float, dtype: type) -> None:
    bad = with_value(3, value).astype(dtype)
    with pytest.raises(
        ValueError, match=r"embeddings row 3 holds NaN or infinity \(the first of 3"
    ):
        evaluate(bad, LABELS)
    with pytest.raises(ValueError, match="gallery row 3 holds NaN or infinity"):
        evaluate(X, LABELS, bad, LABELS)
    with pytest.raises(ValueError, match="row 3 holds NaN"):
        binarize(bad)
    with pytest.raises(ValueError, match="x row 3 holds NaN"):
        kmeans(bad, 2)
    with pytest.raises(ValueError, match="queries row 3 holds NaN"):
        knn(bad, X, 1)


def test_a_row_of_zeros_has_no_cosine() -> None:
    bad = X.copy()
    bad[4] = 0
    with pytest.raises(
        ValueError, match=r"embeddings row 4 is all zeros .* use similarity='dot' or 'euclidean'"
    ):
        evaluate(bad, LABELS)
    assert evaluate(bad, LABELS, similarity="euclidean").n_queries == 6


def test_rows_that_are_all_zeros_are_all_ties_without_the_cosine() -> None:
    zeros = np.zeros((5, 3), np.float32)
    for similarity in ("dot", "euclidean"):
        found = evaluate(zeros, [0, 1, 0, 1, 1], similarity=similarity, metrics="recall@1")  # type: ignore[arg-type]
        assert found["recall@1"] == 1 / 5
        assert knn(zeros, zeros, 3, similarity=similarity)[1].tolist() == [[0, 1, 2]] * 5  # type: ignore[arg-type]


def test_keys_that_vanish_on_either_side_of_zero_are_ties() -> None:
    # -1e-340 is -0.0 in float64.
    query, gallery = np.array([[1, 1e-170, 0]]), np.array([[0.0, -1, 0], [0, 0, 1], [0, 1, 0]])
    assert knn(query, gallery, 3)[1].tolist() == [[0, 1, 2]]


def test_the_widest_code_is_ranked_by_all_of_its_bits() -> None:
    codes = np.zeros((4, 8192), np.uint8)
    codes[1] = 255
    codes[2, -1] = 1
    distances, indices = knn(codes, codes, 4, **CODE)
    assert indices[0].tolist() == [0, 3, 2, 1]
    assert distances[0].tolist() == [0, 0, 1, 65_536]


def test_numbers_whose_products_overflow_are_refused_where_they_matter() -> None:
    huge = X.astype(np.float64) * 2.0**660
    with pytest.raises(
        ValueError,
        match=r"embeddings row 0 has an element of magnitude .*e(198|199); expected at most",
    ):
        evaluate(huge, LABELS, similarity="dot")
    assert evaluate(huge, LABELS).to_dict() == evaluate(X.astype(np.float64), LABELS).to_dict()
    assert (
        evaluate(X.astype(np.float64) * 2.0**-830, LABELS).to_dict()
        == evaluate(X.astype(np.float64), LABELS).to_dict()
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: evaluate(X, LABELS[:5]), ValueError,
         r"labels has shape \(5,\); expected \(6,\) to match embeddings \(6, 4\)"),
        (lambda: evaluate(X, LABELS[:, None]), ValueError,
         r"labels has shape \(6, 1\); expected one dimension.*use "
         r"numpy.asarray\(labels\).ravel\(\)"),
        (lambda: evaluate(X, LABELS.astype(float)), TypeError,
         "labels has dtype float64.*floats merge large ids"),
        (lambda: evaluate(X, LABELS.astype(complex)), TypeError, "labels has dtype complex128"),
        (lambda: evaluate([[1, 2], [3, 4]], [0, 0]), TypeError,
         r"embeddings has dtype int64; expected float16.*: use numpy.asarray\(embeddings, "
         r"dtype=numpy.float32\)"),
        (lambda: evaluate("x.npy", LABELS), TypeError,
         r"embeddings is the path 'x.npy'.*load_array\('x.npy'\)"),
        (lambda: evaluate(X, Path("l.npy")), TypeError,
         r"labels is the path 'l.npy'; expected an array"),
        (lambda: evaluate(LABELS, X), ValueError,
         r"embeddings has shape \(6,\); expected \(queries, dim\)"),
        (lambda: evaluate(X, np.eye(6, dtype=int)), ValueError,
         r"labels has shape \(6, 6\).*labels.argmax\(axis=1\)"),
        (lambda: evaluate(X.T, LABELS), ValueError, r"match embeddings \(4, 6\): use embeddings.T"),
        (lambda: evaluate(X.astype(complex), LABELS), TypeError, "embeddings has dtype complex128"),
        (lambda: evaluate([[1.0], [1.0, 2.0]], [0, 0]), TypeError,
         "embeddings is a list, which numpy can't read"),
        (lambda: evaluate(X[0], LABELS), ValueError,
         r"embeddings has shape \(4,\); expected \(queries, dim\)"),
        (lambda: evaluate(X[:0], LABELS[:0]), ValueError, r"embeddings has shape \(0, 4\)"),
        (lambda: evaluate(X[:, :0], LABELS), ValueError, r"embeddings has shape \(6, 0\)"),
        (lambda: evaluate(X, LABELS, X[:, :3], LABELS), ValueError,
         r"gallery has shape \(6, 3\); expected \(6, 4\)"),
        (lambda: evaluate(X, LABELS, X, LABELS[:2]), ValueError,
         r"gallery_labels has shape \(2,\); expected \(6,\)"),
        (lambda: evaluate(X, LABELS, X), ValueError, "gallery is given without gallery_labels"),
        (lambda: evaluate(X, LABELS, None, LABELS), ValueError,
         "gallery_labels is given without gallery"),
        (lambda: evaluate(X, LABELS, X, LABELS.astype(str)), TypeError,
         "labels have dtype int64 and <U21"),
        (lambda: evaluate(X, LABELS, threads=5000), ValueError,
         "threads is 5000; expected at most 4096"),
        (lambda: evaluate(np.ma.masked_less(X, 0), LABELS), TypeError,
         "embeddings has masked entries; expected an unmasked array"),
        (lambda: evaluate(X, np.ma.masked_equal(LABELS, 2)), TypeError,
         "labels has masked entries"),
        (lambda: evaluate(Tensor(), LABELS), TypeError,
         "embeddings is a Tensor, which numpy can't read"),
        (lambda: evaluate(X, LABELS, ties="random"), ValueError,
         "ties is 'random'; expected one of 'index'"),
        (lambda: evaluate(X, LABELS, similarity="l2"), ValueError,
         "similarity is 'l2'; expected one of 'cosine'"),
        (lambda: evaluate(X, LABELS, threads=0), ValueError, "threads is 0; expected at least 1"),
        (lambda: evaluate(X, LABELS, seed=-1), ValueError, "seed is -1"),
        (lambda: evaluate(X, LABELS, n_clusters=3), ValueError,
         "n_clusters is 3, but no clustering metric is requested; expected metrics with 'nmi', "
         "'ami' or 'ari'"),
        (lambda: nmi([0, 1], [0, 1], average="mean"), ValueError,
         "average is 'mean'; expected one of 'min'"),
        (lambda: ari([0, 1], [0]), ValueError, r"a has shape \(2,\) and b \(1,\)"),
        (lambda: evaluate(X, LABELS, metrics="nmi", n_clusters=7), ValueError,
         "n_clusters is 7; expected 1 to 6"),
        (lambda: evaluate(X, LABELS, metrics="nmi", n_clusters=0), ValueError,
         "n_clusters is 0; expected at least 1"),
        (lambda: evaluate(X, np.arange(6)), ValueError, "none of the 6 queries has a match"),
        (lambda: evaluate(CODES, LABELS), TypeError,
         "embeddings has dtype uint8, but no similarity is given; expected similarity='hamming' "
         "for binary codes, or"),
        (lambda: knn(X, CODES, 1), TypeError,
         "gallery has dtype uint8, but no similarity is given"),
        (lambda: evaluate(X, LABELS, **CODE), TypeError,
         r"embeddings has dtype float32; similarity='hamming' expects uint8 .*: use "
         r"binarize\(embeddings\) or numpy"),
        (lambda: knn(CODES, X, 1, **CODE), TypeError,
         r"gallery has dtype float32; .*: use binarize\(gallery\)"),
        (lambda: evaluate(CODES.astype(np.int8), LABELS, **CODE), TypeError,
         "embeddings has dtype int8; similarity='hamming' expects uint8"),
        (lambda: evaluate(CODES, LABELS, CODES[:, :2], LABELS, **CODE), ValueError,
         r"gallery has shape \(6, 2\); expected \(6, 3\) to match embeddings \(6, 3\)"),
        (lambda: evaluate(np.zeros((2, 8193), np.uint8), [0, 0], **CODE), ValueError,
         "embeddings .*1 to 8192 bytes a code|1 to 8192 bytes"),
        (lambda: binarize(X, float("nan")), ValueError, "threshold is NaN"),
        (lambda: knn(X, X, 7), ValueError, "k is 7; expected 1 to 6, the gallery's size"),
        (lambda: knn(X, X, 6, exclude_self=True), ValueError,
         "k is 6; expected 1 to 5, the gallery's size without"),
        (lambda: knn(X, None, 7), ValueError, "k is 7; expected 1 to 6, the gallery's size"),
        (lambda: knn(CODES, CODES[:2], 3, **CODE), ValueError,
         "k is 3; expected 1 to 2, the gallery's size"),
        (lambda: knn(CODES, None, 6, exclude_self=True, **CODE), ValueError,
         "k is 6; expected 1 to 5, the gallery's size without"),
        (lambda: knn(X[:1], None, 1, exclude_self=True), ValueError,
         "the gallery contains only the query, which is excluded"),
        (lambda: knn(X[:0], X, 7), ValueError, "k is 7; expected 1 to 6, the gallery's size"),
        (lambda: knn(X[:0], None, 1), ValueError,
         r"queries has shape \(0, 4\); .* at least one row"),
        (lambda: knn(X[:0, :3], X, 1), ValueError,
         r"gallery has shape \(6, 4\); expected \(6, 3\)"),
        (lambda: knn(X[:0, :0], X, 1), ValueError,
         r"queries has shape \(0, 0\); .* at least one column"),
        (lambda: knn([], X, 1), ValueError, r"queries has shape \(0,\)"),
        (lambda: knn(X, X[:0], 1), ValueError, r"gallery has shape \(0, 4\); .* at least one row"),
        (lambda: knn(X[:0], X, 1, threads=0), ValueError, "threads is 0"),
        (lambda: knn(CODES[:0], None, 1, **CODE), ValueError,
         r"queries has shape \(0, 3\); .* one row"),
        (lambda: knn(CODES, CODES[:0], 1, **CODE), ValueError, r"gallery has shape \(0, 3\)"),
        (lambda: knn(X, X, 0), ValueError, "k is 0; expected at least 1"),
        (lambda: knn(X, X, 2**70), ValueError, "k is .*; expected at most 2"),
        (lambda: knn(X, X[:4], 1, exclude_self=True), ValueError, "6 queries and 4 gallery items"),
        (lambda: knn(CODES, CODES[:, :1], 1, **CODE), ValueError,
         r"gallery has shape \(6, 1\); expected \(6, 3\)"),
        (lambda: kmeans(X, 7), ValueError, "n_clusters is 7; expected 1 to 6"),
        (lambda: kmeans(X, 2, n_init=0), ValueError, "n_init is 0"),
        (lambda: kmeans(X, 2, max_iter=0), ValueError, "max_iter is 0"),
        (lambda: nmi([0, 1], [0]), ValueError, r"a has shape \(2,\) and b \(1,\)"),
        (lambda: ami([], []), TypeError, "a has dtype float64"),
        (lambda: nmi(np.zeros(0, int), np.zeros(0, int)), ValueError, "at least 1"),
        (lambda: evaluate(X, LABELS, peers=3), TypeError, "peers is a int with rank None"),
        (lambda: evaluate(X, LABELS, similarity=np.array(["dot", "cosine"])), TypeError,
         "similarity is a ndarray"),
        (lambda: evaluate(X, LABELS, ties=["index"]), TypeError,
         "ties is a list; expected one of 'index'"),
        (lambda: binarize(X, 10**400), TypeError,
         "threshold is a int; expected a number that fits in a float"),
        (lambda: binarize(X, X), TypeError, "threshold is a ndarray"),
    ],
)  # fmt: skip
def test_errors_say_what_came_and_what_was_expected(call, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="this numpy has no StringDType")
def test_a_missing_label_is_named() -> None:
    labels = np.array(["a", np.nan, "a", "b"], dtype=np.dtypes.StringDType(na_object=np.nan))
    with pytest.raises(ValueError, match="labels has a missing value at index 1"):
        evaluate(np.eye(4, dtype=np.float32), labels)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    np.save(tmp_path / "rows.npy", np.eye(6, dtype=np.float32))
    np.save(tmp_path / "labels.npy", np.arange(6) % 2)
    return tmp_path / "rows.npy", tmp_path / "labels.npy"


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dml_eval_rs", *map(str, arguments)]
    return subprocess.run(
        command, stderr=subprocess.PIPE, text=True, timeout=120, check=False, **options
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_message(saved: tuple[Path, Path]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*saved, stdout=full)
    assert (done.returncode, done.stderr) == (
        2,
        "dml-eval: can't write the result: No space left on device\n",
    )


def test_a_closed_pipe_ends_it_quietly(saved: tuple[Path, Path]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run(*saved, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_negative_shape_and_a_pipe_are_no_files_of_arrays(
    saved: tuple[Path, Path], tmp_path: Path
) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-400, 16), }".ljust(117) + b"\n"
    (tmp_path / "negative.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    )
    os.mkfifo(tmp_path / "pipe.npy")
    reasons = {"negative.npy": "is not an intact .npy file", "pipe.npy": "is not a regular file"}
    for name, reason in reasons.items():
        done = run(tmp_path / name, saved[1], stdout=subprocess.DEVNULL)
        assert done.returncode == 2
        assert reason in done.stderr
        assert "Traceback" not in done.stderr
