"""Images to embed, in a fixed order: from a folder, tar archives, tables, or a split of a run's
data set.

To list archives and tables, only headers and metadata are read, so that a machine reads only the
images that it embeds.

Shapes: `N` images.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Registry, Split
from dml_core import registry as installed
from dml_train.data.decoding import SUFFIXES, ImageSource
from dml_train.data.image_folder import image_files
from dml_train.data.stored import TABLES, TableRow, TarMember, open_table
from dml_train.measure.embed import ImageChunks
from dml_train.trained.model import TrainedModel
from dml_train.training.build import build_dataset

SplitName = Literal["train", "test", "gallery"]


@dataclass(frozen=True, slots=True)
class ImageList:
    """Images in a fixed order: image files, images inside files, or the items of a split."""

    title: str  # the name of the list in messages: ``"photos"``
    names: Sequence[str]  # (N,) names that identify the images on all machines
    sources: Sequence[ImageSource] = ()  # (N,) images; empty for a split
    files: Sequence[Path] = ()  # (N,) the files that contain the images; empty for a split
    # The folder that contains the class folders; None unless the images are files.
    folder: Path | None = None
    split: Split | None = None
    split_name: SplitName | None = None  # the name of the split in the run's data set

    @property
    def places(self) -> list[Path]:
        """The files or folders that contain the images, which must also be visible to other
        machines.
        """
        return list(dict.fromkeys(self.files)) if self.folder is None else [self.folder]

    def chunks(self, model: TrainedModel, items: Sequence[range]) -> ImageChunks:
        """Divide images into chunks, given as ranges of indices, and prepare the images for the
        model.
        """
        chunks = [np.arange(part.start, part.stop) for part in items]
        if self.split is None:
            return model.chunks_of(self.sources, chunks)
        return ImageChunks(self.split, chunks)

    def labels(self, kept: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Return labels for the images with these names, and an entry for the description of the
        rows.

        The label of an image file is the index of the class (the first folder in its name) in all
        classes sorted by name; raise DmlError for images that aren't in a folder. For a split,
        return the labels of all items.
        """
        if self.split is not None:
            return self.split.labels, {}
        if self.folder is None:
            raise DmlError(
                f"{self.title} doesn't contain folders, which are used as labels; omit labels"
            )
        if (loose := next((name for name in kept if "/" not in name), None)) is not None:
            raise DmlError(
                f"labels are made from the names of folders in {self.folder}, but {loose} is not "
                "in any; move it into its class's folder, or don't use folders as labels",
                arguments=("labels",),
            )
        folders = [name.partition("/")[0] for name in kept]
        classes, labels = np.unique(np.array(folders, dtype=object), return_inverse=True)
        return labels.astype(np.int64), {"classes": classes.tolist()}

    def describe(self) -> dict[str, Any] | None:
        """Return the folder or the files in JSON's types; None for a split, whose rows are all
        items in order.
        """
        if self.split is not None:
            return None
        if self.folder is not None:
            return {"folder": str(self.folder.resolve())}
        return {"files": [str(file.resolve()) for file in self.places]}

    def states(self, items: Iterable[int], *, with_time: bool = True) -> list[str]:
        """Return names, file sizes and file times of images, to detect changes (images aren't
        read).
        """
        if self.split is not None:
            return [self.names[item] for item in items]
        found = [self.files[item] for item in items]
        statuses = dict.fromkeys(found, "gone")  # a file can be removed after it was listed
        for file in statuses:
            with suppress(FileNotFoundError):
                status = file.stat()
                statuses[file] = (
                    f"{status.st_size} {status.st_mtime_ns}" if with_time else str(status.st_size)
                )
        return [f"{self.names[item]} {statuses[file]}" for item, file in zip(items, found)]


def list_folder(folder: Path) -> ImageList:
    """List all images in a folder, including subfolders but not hidden paths, sorted by path.

    Raise DmlError if `folder` isn't a folder, doesn't contain an image, or a subfolder can't be
    read.
    """
    if not folder.is_dir():
        raise DmlError(
            f"{folder} is not a folder; expected a folder of images, which can contain subfolders"
        )
    paths = [file.relative_to(folder) for file in image_files(folder)]
    names = [
        path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)
    ]
    if not names:
        raise DmlError(
            f"{folder} contains no images: no file ends in {', '.join(sorted(SUFFIXES))}"
        )
    files = [folder / name for name in names]
    return ImageList(str(folder), names, files, files, folder)


def list_split(model: TrainedModel, name: SplitName, registry: Registry | None = None) -> ImageList:
    """List a split of the run's data set; raise DmlError if the data set lacks this split or files
    are missing.
    """
    dataset = build_dataset(model.recipe, registry or installed())
    split = {"train": dataset.train, "test": dataset.test, "gallery": dataset.gallery}[name]
    if split is None:
        raise DmlError(
            f"the data set {model.recipe.dataset['name']!r} doesn't define a gallery: use the test "
            "split, which contains both queries and gallery"
        )
    names = [
        f"{item} {split.class_names[label]}" for item, label in enumerate(split.labels.tolist())
    ]
    return ImageList(f"the {name} split", names, split=split, split_name=name)


_COLUMNS = ("image", "bytes", "path", "file")  # the first of these in a table is read


def open_images(path: Path) -> ImageList:
    """List the images in a folder, archive or table, or in a folder of archives or tables; raise
    DmlError if none.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in {".tar", *TABLES})
        try:
            return list_folder(path)
        except DmlError:
            if not files:
                raise
        kinds = sorted({file.suffix for file in files})
        if len(kinds) > 1:
            raise DmlError(
                f"{path} contains {' and '.join(kinds)} files; expected images or a single type"
            )
    kind = files[0].suffix
    if not all(file.is_file() for file in files) or kind not in {".tar", *TABLES}:
        raise DmlError(
            f"{path} is not a folder; expected a folder of images, which can contain subfolders, a "
            f".tar archive, or a table ({', '.join(sorted(TABLES))})"
        )
    files = [file.absolute() for file in files]
    return _list_archives(path, files) if kind == ".tar" else _list_tables(path, files)


def _list_archives(path: Path, files: Sequence[Path]) -> ImageList:
    members: list[TarMember] = []
    for file in files:
        try:
            with tarfile.open(file, "r:") as archive:
                members += [
                    TarMember(file, entry.name, entry.offset_data, entry.size)
                    for entry in archive
                    if entry.isreg() and Path(entry.name).suffix.lower() in SUFFIXES
                ]
        except (tarfile.TarError, OSError) as error:
            raise DmlError(
                f"can't read the archive {file}: {error}; expected an uncompressed tar"
            ) from error
    if not members:
        raise DmlError(
            f"{path} contains no images: no member ends in {', '.join(sorted(SUFFIXES))}"
        )
    names = [f"{member.file.name}/{member.member}" for member in members]
    return ImageList(str(path), names, members, [member.file for member in members])


def _list_tables(path: Path, files: Sequence[Path]) -> ImageList:
    """List the images in tables with cells that are encoded images, or paths relative to the
    table's folder.
    """
    rows: list[TableRow] = []
    paths: list[str] = []
    for file in files:
        table = open_table(file)
        column = next((name for name in _COLUMNS if name in table.schema.names), None)
        if column is None:
            raise DmlError(
                f"{file} has columns {', '.join(table.schema.names)}; expected encoded images in "
                "'image' or 'bytes', or paths in 'path' or 'file'"
            )
        if str(table.schema.field(column).type) in ("string", "large_string"):
            paths += [
                text
                for group in table.read_columns([column])
                for text in group.column(0).to_pylist()
            ]
        else:
            rows += [TableRow(file, row, column) for row in range(table.num_rows)]
    if rows and paths:
        raise DmlError(
            f"some tables in {path} contain images, others paths; expected one kind in all tables"
        )
    if paths:
        folder = files[0].parent
        images = [folder / name for name in paths]
        return ImageList(str(path), paths, images, images, folder)
    if not rows:
        raise DmlError(f"{path} doesn't contain images: the tables are empty")
    names = [f"{row.file.name}/{row.row}" for row in rows]
    return ImageList(str(path), names, rows, [row.file for row in rows])
