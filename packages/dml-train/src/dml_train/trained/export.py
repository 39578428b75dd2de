"""A trained network as a file for other programs, checked to give the same embeddings of image files.

Shapes: `N` and `B` images, `C`, `H`, `W` of the network's input, `D` embedding dimension.
"""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import PIL
import torch

from dml_core import DmlError
from dml_train.data import prepare
from dml_train.files import partial_path, write_atomically, write_json
from dml_train.networks.model import EmbeddingModel
from dml_train.trained.export_check import (
    Compute,
    Shape,
    draw_noise,
    embed_photographs,
    largest_angle,
    largest_difference,
    prepares_files,
)
from dml_train.trained.model import TrainedModel

Format = Literal["onnx", "torch-export"]
INPUT, OUTPUT = "images", "embeddings"
# Relative to the embeddings' largest entry: other programs add in other orders, and fold batch norms into weights.
_TOLERANCE = 1e-4
_COSINE_TOLERANCE = 1e-5  # 1 minus the cosine, for image files
_PROGRAM = Path(prepare.__file__)


class Exporter(NamedTuple):
    """How a network is written in one format, and read again."""

    suffix: str  # of the file
    packages: Sequence[str]  # beside torch
    write: Callable[[EmbeddingModel, Shape, Path], None]
    read: Callable[[Path], Compute]


def export(model: TrainedModel, format: Format, out: Path | str) -> float:
    """Write the network, (B, C, H, W) float32 to (B, D) float32 for any B, and describe it in ``OUT.json``.

    ``prepare.py`` in the same folder prepares image files without this package, unless a plugin prepares its images
    differently. To check both, this function draws photographs, prepares them with ``prepare.py`` and embeds them with
    the written file in batches of 1, 2 and 5. `out` appears only if the embeddings agree with the network in float32.
    The exported network computes in float32 on the CPU, whatever the precision of the run.

    Args:
        model: holds the network.
        format: ``"onnx"``: an ONNX model with its weights, checked with ONNX Runtime; ``"torch-export"``: a program
            that ``torch.export.load`` reads, without this package.
        out: the new file.

    Returns:
        The largest difference from ``model.embed_images``: 1 minus the cosine.

    Raises:
        DmlError: an unknown format, missing packages for ONNX, another ``prepare.py`` in the folder, a network that
            can't be exported, an exported one that gives other embeddings, or a disk that refuses to write. Then `out`
            doesn't appear.
    """
    out = Path(out)
    if format not in EXPORTERS:
        raise DmlError(f"unknown export format {format!r}; expected one of: {', '.join(EXPORTERS)}")
    exporter = EXPORTERS[format]
    if missing := [name for name in exporter.packages if importlib.util.find_spec(name) is None]:
        raise DmlError(f"export to {format} needs {', '.join(missing)}; run: pip install 'dml-train[onnx]'")
    program = _find_program(out) if prepares_files(model) else None
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
        photographs = embed_photographs(model)
        compute = exporter.read(partial)
        difference = largest_difference(network, compute, photographs.prepared)
        if not difference <= _TOLERANCE:
            raise DmlError(
                f"the exported network gives other embeddings: they differ by {difference:.2g} of their largest "
                f"entry; expected at most {_TOLERANCE:.0e}. Nothing was written"
            )
        exported_ND = compute(photographs.prepared)
        with torch.no_grad():
            angle = largest_angle(network(photographs.loaded).numpy(), exported_ND)
        if not angle <= _COSINE_TOLERANCE:
            raise DmlError(
                f"{_PROGRAM.name} and the exported network give other embeddings of image files: they differ by "
                f"{angle:.2g} in cosine; expected at most {_COSINE_TOLERANCE:.0e}. Nothing was written"
            )
        angle = largest_angle(
            photographs.embeddings, exported_ND
        )  # larger if the run computes in half precision
        if program is not None:
            write_atomically(program, lambda file: file.write(_PROGRAM.read_bytes()))
        about = _description(model, format, program) | {
            "largest_difference": difference,
            "largest_cosine_difference": angle,
        }
        write_json(out.with_name(f"{out.name}.json"), about)
        partial.replace(out)
    except OSError as error:
        raise DmlError(f"can't write {out}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return angle


def write_torch(network: EmbeddingModel, shape: Shape, path: Path) -> None:
    """Write a ``torch.export`` program."""
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(network, (draw_noise(2, shape),), dynamic_shapes=({0: batch},))
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
        (draw_noise(2, shape),),
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


def _find_program(out: Path) -> Path:
    """Return the path of the program that prepares image files.

    Raises:
        DmlError: if the folder has another version of it.
    """
    program = out.with_name(_PROGRAM.name)
    if program.exists() and program.read_bytes() != _PROGRAM.read_bytes():
        raise DmlError(
            f"{program} exists already and differs from the {_PROGRAM.name} of this version; nothing was touched. "
            "Export into another folder"
        )
    return program


def _description(model: TrainedModel, format: Format, program: Path | None) -> dict[str, object]:
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
