"""CARS196: 16,185 photographs of 196 models of cars; the first 98 train (Krause et al. 2013; Song et al. 2016)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet, PublishedCounts
from dml_train.extras import extra

_TRAIN_CLASSES = 98  # the first ones by number
_ANNOTATIONS = "cars_annos.mat"
# The other layout has the same images, but divided into train and test for classification.
_DEVKIT = "devkit/cars_train_annos.mat"
_DEVKIT_TEST = "cars_test_annos_withlabels.mat"


def _list_parts(folder: Path) -> Parts:
    if (folder / _DEVKIT).is_file() and not (folder / "car_ims").is_dir():
        # The devkit's own annotations of the test images have no classes; a separate file has them.
        test = next(
            (f for f in (folder / _DEVKIT_TEST, folder / "devkit" / _DEVKIT_TEST) if f.is_file()), None
        )
        if test is None:
            raise DmlError(
                f"{folder} holds {_DEVKIT} but not {_DEVKIT_TEST}, without which half of the images have no class; "
                "put this file beside the folder devkit"
            )
        names = _read_class_names(folder / "devkit" / "cars_meta.mat")
        rows = [
            *_read_annotations(folder / _DEVKIT, "fname", _find_images(folder, "cars_train")),
            *_read_annotations(test, "fname", _find_images(folder, "cars_test")),
        ]
    else:
        names = _read_class_names(folder / _ANNOTATIONS)
        rows = _read_annotations(folder / _ANNOTATIONS, "relative_im_path", folder)
    train: dict[str, list[Path]] = {}
    test_classes: dict[str, list[Path]] = {}
    for path, c in rows:
        if not 1 <= c <= len(names):
            raise DmlError(f"the annotations put {path} into class {c} of {len(names)}; download them again")
        (train if c <= _TRAIN_CLASSES else test_classes).setdefault(names[c - 1], []).append(path)
    return Parts(train, test_classes)


def _find_images(folder: Path, name: str) -> Path:
    """Find the folder ``cars_train`` or ``cars_test``, which some archives nest in a folder of the same name."""
    return next((base for base in (folder / name / name, folder / name) if base.is_dir()), folder / name)


def _read_class_names(file: Path) -> list[str]:
    contents = _read_matlab(file)
    if "class_names" not in contents:
        raise DmlError(f"{file} has no class_names; expected the file of this name from the CARS196 download")
    names = [str(name) for name in contents["class_names"]]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DmlError(f"{file} has two classes with one name, {twice!r}; download it again")
    return names


def _read_annotations(file: Path, field: str, images: Path) -> list[tuple[Path, int]]:
    """Read the images of an annotation file, each with the number of its class."""
    try:
        annotations = _read_matlab(file)["annotations"]
        return [(images / str(path), int(c)) for path, c in zip(annotations[field], annotations["class"])]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DmlError(
            f"{file} has no annotations with {field} and class ({error}); expected the file of this name from "
            "the CARS196 download"
        ) from error


def _read_matlab(file: Path) -> dict[str, Any]:
    with extra("cars196", "the data set 'cars196'"):  # here, since its import is slow
        from scipy.io import loadmat

    try:
        contents: dict[str, Any] = loadmat(file, squeeze_me=True)
    except Exception as error:  # scipy's reader raises exceptions of any kind on a damaged file
        raise DmlError(
            f"can't read {file} as a MATLAB file: {type(error).__name__}: {error}; download it again"
        ) from error
    return contents


CARS196 = OfficialSet(
    name="cars196",
    title="CARS196",
    markers=(_DEVKIT, _ANNOTATIONS),
    list_parts=_list_parts,
    published={"train": PublishedCounts(8_054, 98), "test": PublishedCounts(8_131, 98)},
    archives=(Archive("CARS196.zip", "1.9 GB", "http://ftp.cs.stanford.edu/cs/cvgl/CARS196.zip"),),
    # The files of the data set's old page, which is offline; existing copies still work.
    older=(
        Archive("car_ims.tgz", "1.9 GB", md5="d5c8f0aa497503f355e17dc7886c3f14"),
        Archive(_ANNOTATIONS, "0.2 MB", md5="b407c6086d669747186bd1d764ff9dbc", unpacks=False),
    ),
)


def read_cars196(root: str) -> Parts:
    """Read CARS196 from ``cars_annos.mat`` and ``car_ims``, or from ``devkit``, ``cars_train`` and ``cars_test``.

    Classes 1 to 98 train (8,054 images), 99 to 196 test (8,131); full images, no bounding boxes.

    Source: Krause et al. 2013, 3D Object Representations for Fine-Grained Categorization; the split is that of Song
    et al. 2016, which all papers use, not that of the annotations.

    Args:
        root: the folder that holds ``cars_annos.mat`` or ``devkit``, or its parent.

    Raises:
        DmlError: if it is missing or incomplete.
    """
    return CARS196.read(root)
