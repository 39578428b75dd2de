"""Files of arrays: all formats can be read back; files with too few or too many bytes raise an
error.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import evaluate_shards, load_array
from dml_eval_rs.inputs.files import save_array

TYPES = {"f": np.float32, "u8": np.uint8, "i8": np.int8, "i": np.int32, "b": np.uint8}
SUFFIXES = [".fbin", ".u8bin", ".i8bin", ".ibin", ".fvecs", ".bvecs", ".ivecs"]
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def encode(suffix: str, array: np.ndarray) -> bytes:
    """Encode as the benchmarks define the format, one row after the other."""
    n, d = array.shape
    if suffix.endswith("bin"):
        return struct.pack("<II", n, d) + b"".join(row.tobytes() for row in array)
    return b"".join(struct.pack("<i", d) + row.tobytes() for row in array)


@given(
    st.sampled_from(SUFFIXES),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 2**32),
    st.data(),
)
def test_files_are_read_back_and_wrong_sizes_are_refused(
    tmp_path_factory: Any, suffix: str, n: int, d: int, seed: int, data: Any
) -> None:
    dtype = TYPES[suffix.removesuffix("bin").removesuffix("vecs")[1:]]
    array = np.random.default_rng(seed).integers(0, 127, (n, d)).astype(dtype)
    path = tmp_path_factory.mktemp("files") / f"x{suffix}"
    content = encode(suffix, array)
    save_array(path, array)
    assert path.read_bytes() == content
    found = load_array(path)
    assert found.dtype == dtype
    assert found.tolist() == array.tolist()
    assert [*path.parent.iterdir()] == [path]
    wrong = (
        content[: data.draw(st.integers(0, len(content) - 1))]
        if data.draw(st.booleans())
        else content + b"x"
    )
    row = len(content) // n
    if suffix.endswith("bin") or len(wrong) % row or not wrong:
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=rf"x{suffix} has [\d,]+ bytes.*; expected"):
            load_array(path)


def test_a_row_of_another_length_and_distances_after_indices(tmp_path: Path) -> None:
    rows = encode(".fvecs", X)
    (tmp_path / "x.fvecs").write_bytes(rows[:16] + struct.pack("<i", 2) + rows[20:])
    with pytest.raises(ValueError, match=r"x.fvecs row 1 has length 2; expected 3, like row 0"):
        load_array(tmp_path / "x.fvecs")
    truth = np.arange(6, dtype=np.int32).reshape(2, 3)
    (tmp_path / "truth.ibin").write_bytes(
        encode(".ibin", truth) + truth.astype(np.float32).tobytes()
    )
    assert load_array(tmp_path / "truth.ibin").tolist() == truth.tolist()
    (tmp_path / "none.fbin").write_bytes(struct.pack("<II", 0, 3))
    assert load_array(tmp_path / "none.fbin").shape == (0, 3)


def test_arrays_stay_mapped_and_shards_read_every_format(tmp_path: Path) -> None:
    labels, names = [0, 0, 1, 1], ["x.npy", "x.fbin", "x.fvecs"]
    found = []
    for name in names:
        save_array(tmp_path / name, X)
        array = load_array(tmp_path / name)
        base = array.base
        assert isinstance(array, np.memmap) or isinstance(base, np.memmap)
        assert not array.flags.writeable
        found.append(evaluate_shards([tmp_path / name], labels))
    assert found[0] == found[1] == found[2]


def test_columns_of_parquet_are_read_by_name(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    fixed = pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 3)
    parquet.write_table(
        pyarrow.table({"x": X.tolist(), "fixed": fixed, "y": ["a", "b", "c", "d"]}), path
    )
    assert load_array(f"{path}:x").tolist() == load_array(f"{path}:fixed").tolist() == X.tolist()
    assert load_array(f"{path}:y").tolist() == ["a", "b", "c", "d"]
    with pytest.raises(
        ValueError, match=r"has the columns x, fixed, y; expected the name of one of them: .*:NAME"
    ):
        load_array(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="is not an intact Parquet file"):
        load_array(path)


def test_hdf5_is_mapped_if_it_lies_in_one_piece(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py, of the extra hdf5, isn't installed")
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["train"] = X
        file.create_dataset("test", data=X, chunks=(2, 3), compression="gzip")
    for part, is_mapped in (("train", True), ("test", False)):
        found = load_array(f"{path}:{part}")
        assert isinstance(found, np.memmap) == is_mapped
        assert found.tolist() == X.tolist()
    with pytest.raises(ValueError, match=r"has the data sets test, train; expected .*, not base"):
        load_array(f"{path}:base")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not an intact HDF5 file"):
        load_array(f"{path}:train")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.hdf5").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(
        ImportError, match=r"h5py isn't installed: use pip install 'dml-eval-rs\[hdf5\]'"
    ):
        load_array(tmp_path / "x.hdf5")
