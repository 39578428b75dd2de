"""Export a trained network to a file for other programs, and check that it embeds image files
identically.

Shapes: `N` and `B` images, `C`, `H`, `W` channels, height and width of images, `D` embedding
dimension.
"""

from __future__ import annotations

import copy
import importlib
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image
from torch import Tensor

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.data import prepare
from dml_train.extras import extra
from dml_train.files import partial_path, report_write_errors, write_atomically, write_json
from dml_train.networks.model import EmbeddingModel
from dml_train.trained.hub import write_hub_folder
from dml_train.trained.model import TrainedModel, open_model
from dml_train.trained.sentence_transformer import write_sentence_transformer

Format = Literal["onnx", "torch-export", "hub", "sentence-transformers"]
Shape = tuple[int, int, int]  # C, H, W
Compute = Callable[[Tensor], npt.NDArray[np.float32]]  # (B, C, H, W) to (B, D)

INPUT, OUTPUT = "images", "embeddings"
# Largest error relative to the largest entry; needed since programs may reorder sums, or fold batch
# norms.
_TOLERANCE = 1e-4
_COSINE_TOLERANCE = 1e-5  # maximum of 1 minus the cosine between embeddings of an image file
_LOOSE_TOLERANCE = 0.02  # the same, if a different library prepares the image
_PROGRAM = Path(prepare.__file__)
_BATCHES = (1, 2, 5)
# Heights and widths of the test photographs. Most data sets decode the first (a phone's size) at
# reduced size.
_SIDES = ((3000, 4000), (1600, 1200), (768, 1024), (480, 640), (90, 120))


class Exporter(NamedTuple):
    """The functions that write and read a format."""

    suffix: str  # the suffix of the file
    packages: Sequence[str]  # the packages that are needed in addition to torch
    write: Callable[[EmbeddingModel, Shape, Path], None]
    read: Callable[[Path], Compute]


def export(
    model: TrainedModel, format: Format, out: Path | str, registry: Registry | None = None
) -> float:
    """Export the network, (B, C, H, W) float32 to (B, D) float32 for any B, and describe it in
    ``OUT.json``.

    For ``"hub"``, only write a folder for the Hugging Face Hub (`write_hub_folder`), and open it
    again as a check; for ``"sentence-transformers"``, a folder that this library, which must be
    installed, loads without code from here.

    Also write ``prepare.py`` to the same folder, to prepare images where this package isn't
    installed, unless a plugin prepares images differently. To check both files, photographs are
    drawn, prepared using ``prepare.py`` and embedded using the exported network in batches of 1, 2
    and 5; `out` is only created if these embeddings agree with those of the original network in
    float32. The exported network always computes in float32 on the CPU. Return the largest
    difference from ``model.embed_images``, as 1 minus the cosine.

    Raise DmlError if the format is unknown, a package for ONNX is missing, the folder contains a
    different ``prepare.py``, the network can't be exported, the embeddings differ, or writing
    fails.

    Args:
        model, out: the network, and the file or folder to create.
        format: ``"onnx"`` for an ONNX model with weights, checked with ONNX Runtime;
            ``"torch-export"`` for a program that ``torch.export.load`` can load when this package
            isn't installed; ``"hub"`` for a folder that `open_model` can open;
            ``"sentence-transformers"`` for a folder that `SentenceTransformer` can load.
        registry: for ``"hub"``, provides the components; default: all installed ones.
    """
    out = Path(out)
    if format == "hub":
        registry = registry or installed()
        _, loaded, embeddings_ND = _embed_photographs(model)
        write_hub_folder(model, out, registry)
        return _largest_angle(embeddings_ND, open_model(out, registry).embed(loaded))
    if format == "sentence-transformers":
        return _export_sentence_transformer(model, out)
    if format not in EXPORTERS:
        raise DmlError(
            f"unknown export format {format!r}; expected one of: {', '.join(get_args(Format))}"
        )
    exporter = EXPORTERS[format]
    with extra("onnx", f"export to {format}"):
        for name in exporter.packages:
            importlib.import_module(name)
    program = out.with_name(_PROGRAM.name) if _prepares_files(model) else None
    if program is not None and program.exists() and program.read_bytes() != _PROGRAM.read_bytes():
        raise DmlError(
            f"{program} exists already and differs from the {_PROGRAM.name} of this version; files "
            "were not written. Export to a different folder"
        )
    network = copy.deepcopy(model.network).cpu().to(memory_format=torch.contiguous_format).eval()
    partial = partial_path(out)
    try:
        with report_write_errors(f"write {out}"):
            try:
                exporter.write(network, model.input_shape, partial)
            except OSError:
                raise
            except (
                Exception
            ) as error:  # exporters may raise any exception when the network can not be traced
                reason = f"{type(error).__name__}: {error}"
                raise DmlError(f"the network can't be exported to {format}: {reason}") from error
            difference, angle = _compare(model, network, exporter.read(partial))
            if program is not None:
                write_atomically(program, lambda file: file.write(_PROGRAM.read_bytes()))
            differences = {"largest_difference": difference, "largest_cosine_difference": angle}
            write_json(
                out.with_name(f"{out.name}.json"), _describe(model, format, program) | differences
            )
            partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return angle


def _write_torch(network: EmbeddingModel, shape: Shape, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(network, (_draw_noise(2, shape),), dynamic_shapes=({0: batch},))
    with path.open("wb") as file:
        torch.export.save(program, file)


def _read_torch(path: Path) -> Compute:
    with path.open("rb") as file, warnings.catch_warnings():
        # torch 2.11 warns that the tensors that it loads here aren't writable. Nothing writes to
        # them.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(file).module()
    return lambda images: np.asarray(program(images).detach().numpy(), dtype=np.float32)


def _write_onnx(network: EmbeddingModel, shape: Shape, path: Path) -> None:
    torch.onnx.export(
        network,
        (_draw_noise(2, shape),),
        str(path),
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        dynamo=True,
        external_data=False,  # write a single file
        verbose=False,
    )


def _read_onnx(path: Path) -> Compute:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(
        session.run([OUTPUT], {INPUT: images.numpy()})[0], dtype=np.float32
    )


EXPORTERS: dict[Format, Exporter] = {
    "onnx": Exporter(".onnx", ("onnx", "onnxscript", "onnxruntime"), _write_onnx, _read_onnx),
    "torch-export": Exporter(".pt2", (), _write_torch, _read_torch),
}


def _export_sentence_transformer(model: TrainedModel, out: Path) -> float:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise DmlError(
            f"export to sentence-transformers needs the library, to check the folder ({error}); "
            "install it: pip install sentence-transformers"
        ) from error
    partial = partial_path(out)
    try:
        with report_write_errors(f"write {out}"):
            shutil.rmtree(partial, ignore_errors=True)
            write_sentence_transformer(model, partial)
            with tempfile.TemporaryDirectory() as place:
                files = _draw_photographs(Path(place), prepare.MAX_PIXELS)
                images = [Image.open(file) for file in files]
                found = SentenceTransformer(str(partial), device="cpu").encode(images)
                angle = _largest_angle(model.embed_images(files), found)
            if not angle <= _LOOSE_TOLERANCE:
                raise DmlError(
                    "sentence-transformers gives different embeddings of image files: they differ "
                    f"by {angle:.2g} in cosine; expected at most {_LOOSE_TOLERANCE}. Files were "
                    "not written"
                )
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return angle


def _prepares_files(model: TrainedModel) -> bool:
    """Return whether ``prepare.py``, and not only the reader of a plugin, can prepare image files
    for the network.
    """
    return model.reader is not None and model.reader.describe().get("kind") in prepare.KINDS


def _describe(model: TrainedModel, format: Format, program: Path | None) -> dict[str, object]:
    return {
        "format": format,
        "run": model.folder.path.resolve().name,
        "step": model.step,
        "weights": model.weights,
        "input": {"name": INPUT, "dtype": "float32", "shape": ["batch", *model.input_shape]},
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["batch", model.dim],
            "normalised": False,
            "similarity": model.recipe.evaluation.component().get("similarity"),
        },
        "preparation": model.recipe.dataset if model.reader is None else model.reader.describe(),
        "program": None if program is None else {"name": program.name, "pillow": PIL.__version__},
    }


@torch.no_grad()
def _compare(
    model: TrainedModel, network: EmbeddingModel, exported: Compute
) -> tuple[float, float]:
    """Embed photographs with the network, the exported network and the run, and compare.

    Return the largest differences of the exported network: from the network in float32, relative to
    the largest entry; and from the run, as 1 minus the cosine, which is larger if the run computes
    in half precision.
    """
    prepared, loaded, embeddings_ND = _embed_photographs(model)
    largest, difference = 1e-30, 0.0
    for size in _BATCHES:
        expected, found = network(prepared[:size]).numpy(), exported(prepared[:size])
        if found.shape != expected.shape or not np.isfinite(found).all():
            difference = math.inf
            break
        largest = max(largest, float(np.abs(expected).max()))
        difference = max(difference, float(np.abs(expected - found).max()))
    difference /= largest
    if not difference <= _TOLERANCE:
        raise DmlError(
            f"the exported network gives different embeddings: they differ by {difference:.2g} of "
            f"the largest entry; expected at most {_TOLERANCE:.0e}. Files were not written"
        )
    exported_ND = exported(prepared)
    angle = _largest_angle(network(loaded).numpy(), exported_ND)
    if not angle <= _COSINE_TOLERANCE:
        raise DmlError(
            f"{_PROGRAM.name} and the exported network give different embeddings of image files: "
            f"they differ by {angle:.2g} in cosine; expected at most {_COSINE_TOLERANCE:.0e}. "
            "Files were not written"
        )
    return difference, _largest_angle(embeddings_ND, exported_ND)


def _embed_photographs(model: TrainedModel) -> tuple[Tensor, Tensor, npt.NDArray[np.float32]]:
    """Draw photographs (or noise); return inputs by ``prepare.py`` and by the data set, and
    embeddings.
    """
    if model.reader is None:
        images = _draw_noise(max(_BATCHES), model.input_shape)
        return images, images, model.embed(images)
    steps = model.reader.describe()
    with tempfile.TemporaryDirectory() as folder:
        max_pixels = steps.get("options", {}).get("max_pixels", prepare.MAX_PIXELS)
        files = _draw_photographs(Path(folder), max_pixels)
        loaded = model.reader.of_images(files).load(np.arange(len(files)))
        prepared = (
            torch.from_numpy(prepare.prepare(files, steps)) if _prepares_files(model) else loaded
        )
        return prepared, loaded, model.embed_images(files)


def _draw_photographs(folder: Path, max_pixels: int) -> list[Path]:
    """Write JPEG files of smooth colours with grain, of at most `max_pixels` pixels."""
    random = np.random.default_rng(0)
    files = [folder / f"{number}.jpg" for number in range(len(_SIDES))]
    for file, (height, width) in zip(files, _SIDES):
        factor = min(1.0, math.sqrt(max_pixels / (height * width)))
        size = max(1, int(width * factor)), max(1, int(height * factor))
        smooth, grain = (
            Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize(size)
            for side in (12, 600)
        )
        Image.blend(smooth, grain, 0.3).save(file, quality=90)
    return files


def _draw_noise(count: int, shape: Shape) -> Tensor:
    """Return noise with the variance of normalised images."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


def _largest_angle(rows_ND: npt.NDArray[np.float32], others_ND: npt.NDArray[np.float32]) -> float:
    """Return the largest value of 1 minus the cosine of corresponding rows."""
    a, b = rows_ND.astype(np.float64), others_ND.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float((1.0 - (a * b).sum(axis=1) / np.maximum(norms, 1e-30)).clip(0.0).max())
