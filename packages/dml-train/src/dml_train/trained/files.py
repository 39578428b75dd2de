"""Image files of a user: finding them in a folder, and embedding them chunk by chunk."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from dml_core import DmlError
from dml_train.data.decoding import SUFFIXES
from dml_train.data.image_folder import image_files
from dml_train.measure.chunks import ImageChunks
from dml_train.measure.embed import EmbeddedChunk, embed_chunks
from dml_train.trained.model import TrainedModel


def find_images(folder: Path) -> list[Path]:
    """Find the images in a folder and its subfolders: their paths relative to it, sorted.

    Hidden files and folders, and files without an image's suffix, are omitted.

    Raises:
        DmlError: if it isn't a folder, holds no image, or a folder below it can't be read.
    """
    if not folder.is_dir():
        raise DmlError(f"{folder} is not a folder; expected one with images in it or in its subfolders")
    images = [file.relative_to(folder) for file in image_files(folder)]
    images = [path for path in images if not any(part.startswith(".") for part in path.parts)]
    if not images:
        raise DmlError(f"{folder} holds no images: no file in it ends in {', '.join(sorted(SUFFIXES))}")
    return images


def embed_files(
    model: TrainedModel, chunks: Sequence[Sequence[Path]], *, skip: bool = False, workers: int = 0
) -> Generator[EmbeddedChunk, None, None]:
    """Embed image files chunk by chunk. An embedding depends on its chunk only by rounding.

    Args:
        model: embeds the images.
        chunks: the files, see `split_chunks`.
        skip: whether to omit images that can't be decoded; otherwise they are an error.
        workers: number of processes that load ahead.

    Raises:
        DmlError: if a file can't be decoded, or an embedding isn't finite, with the path.
    """
    files = [*chain(*chunks)]
    ends = np.cumsum([0, *map(len, chunks)]).tolist()
    items = [np.arange(begin, end) for begin, end in pairwise(ends)]
    source = ImageChunks(model.split_of(files), items, names=files)
    with closing(
        embed_chunks(model.network, source, device=model.device, precision=model.precision, workers=workers)
    ) as embedded_chunks:
        for embedded in embedded_chunks:
            if embedded.bad and not skip:
                raise DmlError(f"{embedded.bad[0].reason}; or skip such images", arguments=("skip",))
            yield embedded
