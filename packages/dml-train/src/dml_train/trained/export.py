"""A trained network as a file for other programs, checked to give the same embeddings.

Shapes: `B` images, `C`, `H`, `W` of the network's input, `D` embedding dimension.
"""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.files import partial_path, write_json
from dml_train.networks.model import EmbeddingModel
from dml_train.trained.model import TrainedModel

Format = Literal["onnx", "torch-export"]
Shape = tuple[int, int, int]  # C, H, W
Compute = Callable[[Tensor], npt.NDArray[np.float32]]  # (B, C, H, W) to (B, D)
INPUT, OUTPUT = "images", "embeddings"
# Relative to the embeddings' largest entry: other programs add in other orders, and fold batch norms into weights.
_TOLERANCE = 1e-4
_BATCHES = (1, 2, 5)


class Exporter(NamedTuple):
    """How a network is written in one format, and read again."""

    suffix: str  # of the file
    packages: Sequence[str]  # beside torch
    write: Callable[[EmbeddingModel, Shape, Path], None]
    read: Callable[[Path], Compute]


def export(model: TrainedModel, format: Format, out: Path | str) -> float:
    """Write the network, (B, C, H, W) float32 to (B, D) float32 for any B, and describe it in ``OUT.json``.

    It reads the written file again and runs it on batches of 1, 2 and 5; `out` appears only if they give the network's
    own embeddings. The exported network computes in float32 on the CPU, whatever the precision of the run.

    Args:
        model: holds the network.
        format: ``"onnx"``: an ONNX model with its weights, checked with ONNX Runtime; ``"torch-export"``: a program
            that ``torch.export.load`` reads, without this package.
        out: the new file.

    Returns:
        The largest difference to the network's own embeddings, relative to their largest entry.

    Raises:
        DmlError: an unknown format, missing packages for ONNX, a network that can't be exported, an exported one that
            gives other embeddings, or a disk that refuses to write. Then there is no new file.
    """
    out = Path(out)
    if format not in EXPORTERS:
        raise DmlError(f"unknown export format {format!r}; expected one of: {', '.join(EXPORTERS)}")
    exporter = EXPORTERS[format]
    if missing := [name for name in exporter.packages if importlib.util.find_spec(name) is None]:
        raise DmlError(f"export to {format} needs {', '.join(missing)}; run: pip install 'dml-train[onnx]'")
    network = copy.deepcopy(model.network).cpu().to(memory_format=torch.contiguous_format).eval()
    partial = partial_path(out)
    try:
        try:
            exporter.write(network, model.input_shape, partial)
        except OSError:
            raise
        except Exception as error:  # exporters raise any exception at code that they can't trace
            raise DmlError(
                f"the network can't be exported to {format}: {type(error).__name__}: {error}"
            ) from error
        difference = _largest_difference(network, exporter.read(partial), model.input_shape)
        if not difference <= _TOLERANCE:
            raise DmlError(
                f"the exported network gives other embeddings: they differ by {difference:.2g} of their largest "
                f"entry; expected at most {_TOLERANCE:.0e}. Nothing was written"
            )
        write_json(out.with_name(f"{out.name}.json"), _description(model, format, difference))
        partial.replace(out)
    except OSError as error:
        raise DmlError(f"can't write {out}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return difference


def write_torch(network: EmbeddingModel, shape: Shape, path: Path) -> None:
    """Write a ``torch.export`` program."""
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(network, (_images(2, shape),), dynamic_shapes=({0: batch},))
    with path.open("wb") as file:
        torch.export.save(program, file)


def read_torch(path: Path) -> Compute:
    """Load a ``torch.export`` program."""
    with path.open("rb") as file, warnings.catch_warnings():
        # torch 2.11 warns that nobody may write to the tensors that it reads here. Nobody does.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(file).module()
    return lambda images: np.asarray(program(images).detach().numpy(), dtype=np.float32)


def write_onnx(network: EmbeddingModel, shape: Shape, path: Path) -> None:
    """Write an ONNX model, with its weights in the same file."""
    torch.onnx.export(
        network,
        (_images(2, shape),),
        str(path),
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        dynamo=True,
        external_data=False,  # one file
        verbose=False,
    )


def read_onnx(path: Path) -> Compute:
    """Load an ONNX model in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run([OUTPUT], {INPUT: images.numpy()})[0], dtype=np.float32)


EXPORTERS: dict[Format, Exporter] = {
    "onnx": Exporter(".onnx", ("onnx", "onnxscript", "onnxruntime"), write_onnx, read_onnx),
    "torch-export": Exporter(".pt2", (), write_torch, read_torch),
}


@torch.no_grad()
def _largest_difference(network: EmbeddingModel, exported: Compute, shape: Shape) -> float:
    """Measure it over all batches, relative to the largest entry; infinite for other shapes or non-finite entries."""
    largest, difference = 0.0, 0.0
    for size in _BATCHES:
        images = _images(size, shape)
        expected, got = network(images).numpy(), exported(images)
        if got.shape != expected.shape or not np.isfinite(got).all():
            return float("inf")
        largest = max(largest, float(np.abs(expected).max()))
        difference = max(difference, float(np.abs(expected - got).max()))
    return difference / max(largest, 1e-30)


def _images(count: int, shape: Shape) -> Tensor:
    """Return noise with the variance of normalised images."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


def _description(model: TrainedModel, format: Format, difference: float) -> dict[str, object]:
    recipe = model.recipe
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
            "similarity": recipe.evaluation.component().get("similarity"),
        },
        "preparation": recipe.dataset if model.reader is None else model.reader.describe(),
        "largest_difference": difference,
    }
