"""CARS196: 16,185 photographs of 196 models of cars; the first 98 train (Krause et al. 2013; Song et al. 2016)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dml_core import DmlError
from dml_train.data.official import Archive, OfficialSet, Published
from dml_train.data.parts import Parts

_TRAINED = 98  # classes, by their number
_ANNOTATIONS = "cars_annos.mat"


def _list(folder: Path) -> Parts:
    file = folder / _ANNOTATIONS
    contents = _read_matlab(file)
    try:
        names = [str(name) for name in contents["class_names"]]
        annotations = contents["annotations"]
        rows = [(str(path), int(c)) for path, c in zip(annotations["relative_im_path"], annotations["class"])]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DmlError(
            f"{file} doesn't hold class_names, and annotations with relative_im_path and class ({error}); "
            "expected the file of that name of the CARS196 download"
        ) from error
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DmlError(f"{file} has two classes with one name, {twice!r}; download it again")
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    for path, c in rows:
        if not 1 <= c <= len(names):
            raise DmlError(f"{file} puts {path} into class {c} of {len(names)}; download it again")
        (train if c <= _TRAINED else test).setdefault(names[c - 1], []).append(folder / path)
    return Parts(train, test)


def _read_matlab(file: Path) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DmlError(
            f"to read {file.name}, which is MATLAB's, scipy is needed: pip install 'dml-train[cars196]'"
        ) from error
    try:
        contents: dict[str, Any] = loadmat(file, squeeze_me=True)
    except Exception as error:  # scipy's reader raises whatever it stumbles over
        raise DmlError(
            f"can't read {file} as MATLAB's: {type(error).__name__}: {error}; download it again"
        ) from error
    return contents


CARS196 = OfficialSet(
    name="cars196",
    title="CARS196",
    markers=(_ANNOTATIONS,),
    list_parts=_list,
    published={"train": Published(8_054, 98), "test": Published(8_131, 98)},
    archives=(Archive("CARS196.zip", "1.9 GB", "http://ftp.cs.stanford.edu/cs/cvgl/CARS196.zip"),),
    # Where the first page of the data set had them, which is gone; who has them still can use them.
    older=(
        Archive("car_ims.tgz", "1.9 GB", md5="d5c8f0aa497503f355e17dc7886c3f14"),
        Archive(_ANNOTATIONS, "0.2 MB", md5="b407c6086d669747186bd1d764ff9dbc", unpacks=False),
    ),
)


def read_cars196(root: str) -> Parts:
    """CARS196 as it is downloaded: ``cars_annos.mat`` and ``car_ims``.

    Classes 1 to 98 train (8,054 images), 99 to 196 test (8,131); whole images, no bounding boxes.

    Source: Krause et al. 2013, 3D Object Representations for Fine-Grained Categorization; the split is that of Song
    et al. 2016, which all papers take, and not that of the annotations.

    Args:
        root: the folder that holds ``cars_annos.mat``, or the one that holds that folder.

    Raises:
        DmlError: if it isn't there, or isn't whole; if scipy isn't installed, which reads the annotations.
    """
    return CARS196.read(root)
