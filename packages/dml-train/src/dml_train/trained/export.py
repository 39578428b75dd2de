"""A trained network as a file for other programs, checked to give the same embeddings.

Shapes: `B` images, `C`, `H`, `W` of the network's input, `D` embedding dimension.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.files import partial_path, write_json
from dml_train.networks.model import EmbeddingModel
from dml_train.trained.model import TrainedModel

Form = Literal["onnx", "torch-export"]
SUFFIXES: dict[Form, str] = {"onnx": ".onnx", "torch-export": ".pt2"}
INPUT, OUTPUT = "images", "embeddings"
# Of the largest entry of the embeddings: other programs add in other orders, and fold batch norms into weights.
_TOLERANCE = 1e-4
_BATCHES = (1, 2, 5)
_ONNX_NEEDS = ("onnx", "onnxscript", "onnxruntime")


def export(trained: TrainedModel, form: Form, out: Path) -> float:
    """Write the network, (B, C, H, W) float32 to (B, D) float32 for any B, and describe it in ``OUT.json``.

    What was written is read again and run on batches of 1, 2 and 5; only if it gives the embeddings of the network
    itself does it come under its name. It computes in float32 on the CPU, whatever the run trained in.

    Args:
        trained: what is exported.
        form: ``"onnx"``: an ONNX model with its weights, checked with ONNX Runtime; ``"torch-export"``: a program
            that ``torch.export.load`` reads, without this package.
        out: the new file.

    Returns:
        The largest difference to the network's own embeddings, as a share of their largest entry.

    Raises:
        DmlError: the packages for ONNX aren't installed, the network can't be exported, what came out gives other
            embeddings, or the disk refuses; nothing is left then.
    """
    if form == "onnx" and (
        missing := [name for name in _ONNX_NEEDS if importlib.util.find_spec(name) is None]
    ):
        raise DmlError(
            f"to export to ONNX, {', '.join(missing)} must be installed: pip install 'dml-train[onnx]'"
        )
    model = trained.model.cpu().to(memory_format=torch.contiguous_format).eval()
    aside = partial_path(out)
    try:
        try:
            (_write_onnx if form == "onnx" else _write_torch)(model, trained.input_shape, aside)
        except OSError:
            raise
        except Exception as error:  # exporters raise whatever they like at what they can't trace
            raise DmlError(
                f"the network can't be exported to {form}: {type(error).__name__}: {error}"
            ) from error
        run = _onnx(aside) if form == "onnx" else _torch(aside)
        difference = _largest_difference(model, run, trained.input_shape)
        if not difference <= _TOLERANCE:
            raise DmlError(
                f"the exported network gives other embeddings: they differ by {difference:.2g} of their largest "
                f"entry; expected at most {_TOLERANCE:.0e}. Nothing was written"
            )
        write_json(out.with_name(f"{out.name}.json"), _description(trained, form, difference))
        aside.replace(out)
    except OSError as error:
        raise DmlError(f"can't write {out}: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)
    return difference


def _write_torch(model: EmbeddingModel, shape: tuple[int, int, int], path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (_images(2, shape),), dynamic_shapes=({0: batch},))
    with path.open("wb") as file:
        torch.export.save(program, file)


def _write_onnx(model: EmbeddingModel, shape: tuple[int, int, int], path: Path) -> None:
    torch.onnx.export(
        model,
        (_images(2, shape),),
        str(path),
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        dynamo=True,
        external_data=False,  # one file
        verbose=False,
    )


def _torch(path: Path) -> Callable[[Tensor], npt.NDArray[np.float32]]:
    with path.open("rb") as file, warnings.catch_warnings():
        # torch 2.11 warns that nobody may write to the tensors that it reads here. Nobody does.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(file).module()
    return lambda images: np.asarray(program(images).detach().numpy(), dtype=np.float32)


def _onnx(path: Path) -> Callable[[Tensor], npt.NDArray[np.float32]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run([OUTPUT], {INPUT: images.numpy()})[0], dtype=np.float32)


@torch.no_grad()
def _largest_difference(
    model: EmbeddingModel, run: Callable[[Tensor], npt.NDArray[np.float32]], shape: tuple[int, int, int]
) -> float:
    """Over all batches, as a share of the largest entry; infinite if the exported network gives other shapes."""
    largest, difference = 0.0, 0.0
    for size in _BATCHES:
        images = _images(size, shape)
        expected, got = model(images).numpy(), run(images)
        if got.shape != expected.shape or not np.isfinite(got).all():
            return float("inf")
        largest = max(largest, float(np.abs(expected).max()))
        difference = max(difference, float(np.abs(expected - got).max()))
    return difference / max(largest, 1e-30)


def _images(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Noise of the spread of normalised images."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


def _description(trained: TrainedModel, form: Form, difference: float) -> dict[str, object]:
    recipe = trained.recipe
    return {
        "format": form,
        "run": trained.folder.path.resolve().name,
        "step": trained.step,
        "weights": trained.weights,
        "input": {"name": INPUT, "dtype": "float32", "shape": ["batch", *trained.input_shape]},
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["batch", trained.model.head.embedding_dim],
            "normalised": False,
            "similarity": recipe.evaluation.component().get("similarity"),
        },
        "preparation": recipe.dataset if trained.reader is None else trained.reader.describe(),
        "largest_difference": difference,
    }
