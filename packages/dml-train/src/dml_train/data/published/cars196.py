"""CARS196: 16,185 photographs of 196 models of cars, as full images; bounding boxes aren't used.

Source: Krause et al. 2013, 3D Object Representations for Fine-Grained Categorization; the split is
from Song et al. 2016, as in all papers, and not from the annotations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet
from dml_train.extras import extra

_TRAIN_CLASSES = 98  # the first classes by number
_ANNOTATIONS = "cars_annos.mat"
# The second layout contains these images, but divided into train and test for classification.
_DEVKIT = "devkit/cars_train_annos.mat"
_DEVKIT_TEST = "cars_test_annos_withlabels.mat"


def _list_parts(folder: Path) -> Parts:
    """Read ``cars_annos.mat`` and ``car_ims``, or ``devkit``, ``cars_train`` and ``cars_test``."""
    if (folder / _DEVKIT).is_file() and not (folder / "car_ims").is_dir():
        # In the devkit, the annotations of the test images don't give classes, which are in a
        # separate file.
        test = next(
            (f for f in (folder / _DEVKIT_TEST, folder / "devkit" / _DEVKIT_TEST) if f.is_file()),
            None,
        )
        if test is None:
            raise DmlError(
                f"{folder} contains {_DEVKIT} but not {_DEVKIT_TEST}, which gives the classes of "
                "half of the images; put this file next to the folder devkit"
            )
        meta, lists = folder / "devkit" / "cars_meta.mat", []
        for file, part in ((folder / _DEVKIT, "cars_train"), (test, "cars_test")):
            # In some archives, the folder is nested in a folder of the same name.
            images = folder / part / part if (folder / part / part).is_dir() else folder / part
            lists.append((file, "fname", images))
    else:
        meta = folder / _ANNOTATIONS
        lists = [(meta, "relative_im_path", folder)]
    (names,) = read_matlab(meta, "class_names")
    train: dict[str, list[Path]] = {}
    test_classes: dict[str, list[Path]] = {}
    for file, column, images in lists:
        for name, c in zip(*read_matlab(file, "annotations", column, "class")):
            path = images / str(name)
            if not 1 <= c <= len(names):
                raise DmlError(
                    f"the annotations put {path} into class {c} of {len(names)}; download them "
                    "again"
                )
            (train if c <= _TRAIN_CLASSES else test_classes).setdefault(
                str(names[c - 1]), []
            ).append(path)
    return Parts(train, test_classes)


def read_matlab(file: Path, variable: str, *fields: str) -> list[Any]:
    """Read a variable in a MATLAB file, or only some fields; raise a `DmlError` if the file lacks
    them.
    """
    with extra("cars196", "the data set 'cars196'"):  # imported here, since the import is slow
        from scipy.io import loadmat

    try:
        value = loadmat(file, squeeze_me=True)[variable]
        return [value[field] for field in fields] if fields else [value]
    except Exception as error:  # scipy may raise any exception for a damaged file
        raise DmlError(
            f"can't read {' and '.join(fields or [variable])} in {file}: {type(error).__name__}: "
            f"{error}; expected the MATLAB file of this name from the CARS196 download: download "
            "it again"
        ) from error


CARS196 = OfficialSet(
    name="cars196",
    title="CARS196",
    markers=(_DEVKIT, _ANNOTATIONS),
    list_parts=_list_parts,
    published={"train": (8_054, 98), "test": (8_131, 98)},
    archives=(Archive("CARS196.zip", "1.9 GB", "http://ftp.cs.stanford.edu/cs/cvgl/CARS196.zip"),),
)
