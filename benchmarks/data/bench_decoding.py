"""Measure the time saved when JPEG files are decoded to a fraction of the size, and the change of
embeddings.

    python benchmarks/data/bench_decoding.py [SCENES]

Photographs of four sizes show scenes of overlapping discs with texture and grain, in two views per
scene. A reduced image keeps at least `REDUCED_SIDE` times the resized side. For values of
`REDUCED_SIDE`, the table shows images per second of CPU time on a single core, from file to input;
the cosine between the embedding and the embedding of the image decoded in full size; and how often
the nearest neighbour is the same for both kinds of embeddings. The network is EfficientNet-Lite0
with ImageNet's weights (dml-train[lite0]).
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image, ImageDraw

from dml_train.data import preparation
from dml_train.networks.backbones import TimmModel

WIDTHS = (500, 768, 2000, 4000)  # half of 768 × 576 is exactly 4 × 72 pixels high
CROPS = {72: 64, 256: 224}
FULL = 10**6
SIDES = {"twice": 2, "4 times": 4, "8 times": 8, "full": FULL}
DISCS = 3000


def draw_view(scene: int, view: int) -> Image.Image:
    """Draw a photograph of 4000 × 3000 pixels: the scene's discs, which the view moves and
    lights.
    """
    of_scene, of_view = np.random.default_rng(scene), np.random.default_rng([scene, view])
    width, height = 4000, 3000
    radii = (
        0.004**-2 - of_scene.random(DISCS) * (0.004**-2 - 0.25**-2)
    ) ** -0.5  # density ~ radius ** -3
    centres = of_scene.uniform(-0.1, 1.1, (DISCS, 2)) * (1.0, 0.75)
    colours = of_scene.integers(0, 256, (12, 3))[of_scene.integers(0, 12, DISCS)]
    zoom, light = of_view.uniform(0.9, 1.15), of_view.uniform(0.8, 1.2)
    centres = (centres + of_view.uniform(-0.05, 0.05, 2) - (0.5, 0.375)) * zoom + (0.5, 0.375)
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    for (x, y), radius, colour in zip(centres * width, radii * zoom * width, colours):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=tuple(colour.tolist()))
    pixels = np.asarray(image, dtype=np.float32) * np.float32(light)
    for cells in (40, 160, 1000):
        texture = Image.fromarray(of_scene.integers(0, 256, (cells, cells), dtype=np.uint8))
        shade = np.asarray(
            texture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32
        )
        pixels += 0.12 * (shade - 128.0)[..., None]
    pixels += of_view.normal(0.0, 4.0, (height, width, 1)).astype(np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def load(files: list[Path], resize: int, side: int) -> tuple[torch.Tensor, float]:
    """Load images reduced to at least `side` times `resize` pixels; also return the CPU seconds."""
    preparation.REDUCED_SIDE = side
    prepare = preparation.Preparation(resize=resize, crop=CROPS[resize], normalize="half")
    begin = time.process_time()
    images = [prepare.make_batch([prepare.load_resized(file)]) for file in files]
    return torch.cat(images), time.process_time() - begin


@torch.no_grad()
def embed(network: torch.nn.Module, images: torch.Tensor) -> npt.NDArray[np.float64]:
    pooled = torch.cat([network(chunk).mean((2, 3)) for chunk in torch.split(images, 16)])
    return torch.nn.functional.normalize(pooled.double()).numpy()


def nearest(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    similarity = rows @ rows.T
    np.fill_diagonal(similarity, -2.0)
    return similarity.argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenes", type=int, nargs="?", default=24)
    scenes = parser.parse_args().scenes
    torch.set_num_threads(1)
    network = TimmModel(3, model="tf_efficientnet_lite0", weights="efficientnet-lite0").eval()
    print(
        f"{platform.processor() or platform.machine()}, one core; torch {torch.__version__}, "
        f"Pillow {PIL.__version__}; {2 * scenes} "
        f"photographs\n{'':35}{'cosine with full size':^24}{'same':>10}\n"
        f"{'photograph':<13}{'resize':>7}{'kept':>9}{'/s':>6}"
        f"{'smallest':>12}{'mean':>12}{'nearest':>10}"
    )
    with tempfile.TemporaryDirectory() as place:
        for number in range(2 * scenes):
            view = draw_view(number // 2, number % 2)
            for width in WIDTHS:
                small = view.resize((width, width * 3 // 4), Image.Resampling.LANCZOS)
                small.save(Path(place) / f"{width}-{number:03}.jpg", quality=90)
        for width in WIDTHS:
            files = sorted(Path(place).glob(f"{width}-*"))
            for resize in CROPS:
                full = embed(network, load(files, resize, FULL)[0])
                for name, side in SIDES.items():
                    images, seconds = load(files, resize, side)
                    rows = embed(network, images)
                    cosines, same = (rows * full).sum(1), np.mean(nearest(rows) == nearest(full))
                    print(
                        f"{f'{width} x {width * 3 // 4}':<13}{resize:>7}{name:>9}"
                        f"{len(files) / seconds:>6.0f}"
                        f"{cosines.min():>12.4f}{cosines.mean():>12.5f}{same:>10.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
