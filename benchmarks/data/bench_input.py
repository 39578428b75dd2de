"""Measure images per second from files to batches: `image-folder`, with and without a cache, and
torchvision.

    python benchmarks/data/bench_input.py [BATCHES] [ROUNDS] [--tables]

With --tables, measure the data set `table` instead, on the same files in Parquet, Arrow and tar, as
ratios to `image-folder`. "Uncached" is a Parquet table that is much larger than the cache of row
groups: every image is read with its row group. "Plain" is a table without a dictionary of images.

The plain loader uses `torchvision.datasets.ImageFolder` and `torchvision.transforms` in torch's
`DataLoader`, as in torchvision's documentation. Both loaders read synthetic JPEG files, as large as
CUB's and CARS196's photographs, and prepare images as the papers do: resize to 256 × 256, crop 224
× 224, mirror, normalise. They take turns, and a ratio is the median over the rounds. If loader
processes are not used, the benchmark measures CPU time, which other work on the machine affects
least. With loader processes, it measures wall-clock time from the first to the last batch: use a
quiet machine.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import statistics
import tarfile
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from dml_train.data import stored
from dml_train.data.batches import StepBatches, load_ahead
from dml_train.data.factories import image_folder, table

BATCH = 64
# Images per row group, and the columns with a dictionary: by default, pyarrow also tries a
# dictionary of images.
PARQUET: dict[str, tuple[int, bool | list[str]]] = {
    "4 plain.parquet": (4, ["label"]),
    "16.parquet": (16, True),
    "100.parquet": (100, True),
}
CROPS = {
    "random": [transforms.Resize((256, 256)), transforms.RandomCrop(224)],
    "resized": [transforms.Resize((256, 256)), transforms.RandomResizedCrop(224, scale=(0.5, 1.0))],
}
NORMALISE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def draw_photographs(folder: Path, count: int = 240) -> None:
    """Write smooth colours with grain, which are about as large, and as slow to decode, as
    photographs.
    """
    for i in range(count):
        random = np.random.default_rng(i)
        width, height = ((500, 375), (700, 480), (375, 500))[i % 3]
        coarse = Image.fromarray(
            random.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        )
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(
            np.float32
        )
        grained = (smooth + random.normal(0.0, 6.0, smooth.shape)).clip(0, 255).astype(np.uint8)
        place = folder / ("train" if i % 12 else "test") / f"class {i % 12}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grained).save(place / f"{i}.jpg", quality=90)


class Shuffled:
    """Sampler of random batches."""

    def __init__(self, items: int, batches: int) -> None:
        random = np.random.default_rng(0)
        self.batches = [random.choice(items, BATCH, replace=False) for _ in range(batches)]

    def __len__(self) -> int:
        return len(self.batches)

    def batch_at(self, epoch: int, position: int) -> np.ndarray:
        return self.batches[position]


def load_plain(folder: Path, crop: str, sampler: Shuffled, workers: int) -> Iterator[torch.Tensor]:
    steps = [*CROPS[crop], transforms.RandomHorizontalFlip(), transforms.ToTensor(), NORMALISE]
    dataset = torchvision.datasets.ImageFolder(folder / "train", transforms.Compose(steps))
    batches = [indices.tolist() for indices in sampler.batches]
    for images, _ in DataLoader(dataset, batch_sampler=batches, num_workers=workers):
        yield images


def load_ours(
    folder: Path, crop: str, sampler: Shuffled, workers: int, cache: str | None
) -> Iterator[torch.Tensor]:
    dataset = image_folder(str(folder), square=True, train_crop=crop, min_area=0.5, cache=cache)
    batches = StepBatches(dataset.train, sampler, seed=0)
    for batch in load_ahead(batches, range(len(sampler)), workers, pin=False):
        yield batch.images


def write_tables(folder: Path) -> dict[str, Path]:
    """Write the images of a folder into tables in random order, and an archive."""
    files = np.random.default_rng(0).permutation(sorted(folder.glob("*/*/*.jpg")))
    content = pa.table(
        {
            "image": [file.read_bytes() for file in files],
            "label": [file.parent.name for file in files],
            "split": [file.parts[-3] for file in files],
        }
    )
    paths = {name: folder.with_name(name) for name in (*PARQUET, "all.arrow", "all.tar")}
    for name, (rows, dictionary) in PARQUET.items():
        pq.write_table(content, paths[name], row_group_size=rows, use_dictionary=dictionary)
    with pa.ipc.new_stream(paths["all.arrow"], content.schema) as out:
        out.write_table(content, max_chunksize=100)
    with tarfile.open(paths["all.tar"], "w") as archive:
        for row, (file, split) in enumerate(zip(files, content["split"].to_pylist())):
            archive.add(file, f"{row}.jpg")
            about = json.dumps({"label": file.parent.name, "split": split}).encode()
            entry = tarfile.TarInfo(f"{row}.json")
            entry.size = len(about)
            archive.addfile(entry, io.BytesIO(about))
    return paths


def load_table(path: Path, sampler: Shuffled, cached: int) -> Iterator[torch.Tensor]:
    stored._MOST_CACHED = cached
    dataset = table(str(path), square=True, train_crop="random")
    for batch in load_ahead(
        StepBatches(dataset.train, sampler, seed=0), range(len(sampler)), 0, pin=False
    ):
        yield batch.images


def compare_tables(folder: Path, batches: int, rounds: int) -> None:
    paths, most = write_tables(folder), stored._MOST_CACHED
    sampler = Shuffled(220, batches)
    loaders = {"image-folder": partial(load_ours, folder, "random", sampler, 0, None)}
    for name, path in paths.items():
        loaders[name] = partial(load_table, path, sampler, most)
    for name in PARQUET:
        loaders[f"{name}, uncached"] = partial(load_table, paths[name], sampler, 0)
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, load in loaders.items():
            times[name].append(measure_cost(load(), 0))
    print(f"{'':<24}{'images/s, median':>18}{'over image-folder':>20}")
    for name, seconds in times.items():
        ratio = statistics.median(f / t for f, t in zip(times["image-folder"], seconds))
        print(f"{name:<24}{1.0 / statistics.median(seconds):>18,.0f}{ratio:>20.2f}", flush=True)


def measure_cost(batches: Iterator[torch.Tensor], workers: int) -> float:
    """Measure seconds per image after the first batch: CPU time, or wall-clock time with loader
    processes.
    """
    now = time.perf_counter if workers else time.process_time
    images = 0
    start = None
    for batch in batches:
        if start is None:
            start = now()
        else:
            images += len(batch)
    assert start is not None
    return (now() - start) / images


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("batches", type=int, nargs="?", default=8)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--tables", action="store_true", help="measure the data set table")
    arguments = parser.parse_args()
    batches, rounds = arguments.batches, arguments.rounds
    torch.set_num_threads(1)
    print(
        f"{platform.processor() or platform.machine()}, one thread a process, torch "
        f"{torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}; "
        f"{batches} batches of {BATCH}, median of {rounds} rounds"
    )
    if arguments.tables:
        with tempfile.TemporaryDirectory() as place:
            draw_photographs(Path(place) / "images")
            compare_tables(Path(place) / "images", batches, rounds)
        return
    print(f"{'':<26}{'images/s, median':^40}{'over the plain loader':^26}")
    print(
        f"{'crop':<10}{'processes':<16}{'torchvision':>12}{'dml':>12}{'dml, cached':>16}"
        f"{'dml':>12}{'cached':>12}"
    )
    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place) / "images", str(Path(place) / "cache")
        draw_photographs(folder)
        for crop, workers in (("random", 0), ("resized", 0), ("random", 2)):
            # Each process loads four batches before the clock starts, which is negligible in a long
            # run.
            sampler = Shuffled(220, 6 * batches if workers else batches)
            loaders = {
                "plain": partial(load_plain, folder, crop, sampler, workers),
                "ours": partial(load_ours, folder, crop, sampler, workers, None),
                "cached": partial(load_ours, folder, crop, sampler, workers, cache),
            }
            times: dict[str, list[float]] = {name: [] for name in loaders}
            for _ in range(rounds):
                for name, load in loaders.items():
                    times[name].append(measure_cost(load(), workers))
            speeds = [1.0 / statistics.median(times[name]) for name in loaders]
            ratios = [
                statistics.median(p / t for p, t in zip(times["plain"], times[name]))
                for name in ("ours", "cached")
            ]
            print(
                f"{crop:<10}{workers or 'its own':<16}"
                f"{speeds[0]:>12,.0f}{speeds[1]:>12,.0f}{speeds[2]:>16,.0f}"
                f"{ratios[0]:>12.2f}{ratios[1]:>12.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
