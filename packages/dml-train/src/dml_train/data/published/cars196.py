"""CARS196: 16,185 photographs of 196 models of cars; the first 98 train (Krause et al. 2013; Song et al. 2016)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet, Published

_TRAINED = 98  # classes, by their number
_ANNOTATIONS = "cars_annos.mat"
# The other form, in which train and test are those of classification, and the two together the same images.
_DEVKIT = "devkit/cars_train_annos.mat"
_DEVKIT_TEST = "cars_test_annos_withlabels.mat"


def _list(folder: Path) -> Parts:
    if (folder / _DEVKIT).is_file() and not (folder / "car_ims").is_dir():
        # The file for the test is handed out beside the devkit: its own has no classes.
        test = next(
            (f for f in (folder / _DEVKIT_TEST, folder / "devkit" / _DEVKIT_TEST) if f.is_file()), None
        )
        if test is None:
            raise DmlError(
                f"{folder} holds {_DEVKIT} and not {_DEVKIT_TEST}, without which half of the images have no class; "
                "put it beside the folder devkit"
            )
        names = _class_names(folder / "devkit" / "cars_meta.mat")
        rows = [
            *_annotated(folder / _DEVKIT, "fname", _images(folder, "cars_train")),
            *_annotated(test, "fname", _images(folder, "cars_test")),
        ]
    else:
        names = _class_names(folder / _ANNOTATIONS)
        rows = _annotated(folder / _ANNOTATIONS, "relative_im_path", folder)
    train: dict[str, list[Path]] = {}
    test_classes: dict[str, list[Path]] = {}
    for path, c in rows:
        if not 1 <= c <= len(names):
            raise DmlError(f"the annotations put {path} into class {c} of {len(names)}; download them again")
        (train if c <= _TRAINED else test_classes).setdefault(names[c - 1], []).append(path)
    return Parts(train, test_classes)


def _images(folder: Path, name: str) -> Path:
    """``cars_train``, which some archives pack into a folder of its own name."""
    return next((base for base in (folder / name / name, folder / name) if base.is_dir()), folder / name)


def _class_names(file: Path) -> list[str]:
    contents = _read_matlab(file)
    if "class_names" not in contents:
        raise DmlError(
            f"{file} doesn't hold class_names; expected the file of that name of the CARS196 download"
        )
    names = [str(name) for name in contents["class_names"]]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DmlError(f"{file} has two classes with one name, {twice!r}; download it again")
    return names


def _annotated(file: Path, field: str, images: Path) -> list[tuple[Path, int]]:
    """The images that a file of annotations names, each with the number of its class."""
    try:
        annotations = _read_matlab(file)["annotations"]
        return [(images / str(path), int(c)) for path, c in zip(annotations[field], annotations["class"])]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DmlError(
            f"{file} doesn't hold annotations with {field} and class ({error}); expected the file of that name of "
            "the CARS196 download"
        ) from error


def _read_matlab(file: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # here, since it takes a while to import and no other data set needs it

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
    markers=(_DEVKIT, _ANNOTATIONS),
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
    """CARS196 as it is downloaded: ``cars_annos.mat`` and ``car_ims``, or ``devkit``, ``cars_train`` and ``cars_test``.

    Classes 1 to 98 train (8,054 images), 99 to 196 test (8,131); whole images, no bounding boxes.

    Source: Krause et al. 2013, 3D Object Representations for Fine-Grained Categorization; the split is that of Song
    et al. 2016, which all papers take, and not that of the annotations.

    Args:
        root: the folder that holds ``cars_annos.mat`` or ``devkit``, or the one that holds that folder.

    Raises:
        DmlError: if it isn't there, or isn't whole.
    """
    return CARS196.read(root)
