"""Folders for sentence-transformers give the run's embeddings, in that library and in a reference
that reads them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from torch.nn import functional as F
from train_support.photo_world import photo_document

from dml_core import DmlError, registry
from dml_train.recipe.checking import parse
from dml_train.trained.evaluation import evaluate_run
from dml_train.trained.export import export
from dml_train.trained.model import open_model
from dml_train.trained.sentence_transformer import write_sentence_transformer
from dml_train.training.run import train

pytest.importorskip("timm", reason="the extra dml-train[timm] isn't installed")
transformers = pytest.importorskip("transformers", reason="loads the network")

NETWORKS = {
    "maps": {"backbone": {"name": "timm", "model": "test_resnet"}},
    "a vector": {
        "backbone": {"name": "timm", "model": "test_vit", "image_size": 32},
        "embedding": {"dim": 64, "linear": False, "layer_norm": False},
    },
    "a square": {
        "backbone": {"name": "timm", "model": "test_resnet"},
        "dataset": {"square": True, "interpolation": "bicubic", "normalize": "half"},
    },
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Write smooth squares: the library rounds the sides of other images down, and then crops other
    pixels.
    """
    folder = tmp_path_factory.mktemp("photos")
    for i in range(16):
        coarse = np.random.default_rng(i).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        file = folder / f"class-{i % 4}" / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(coarse).resize((60, 60), Image.Resampling.BICUBIC).save(file)
    return folder


def open_trained(photos: Path, out: Path, changes: dict, whiten: int = 0):
    document = photo_document(photos)
    document["loss"] = {"name": "norm-softmax"}
    document["training"]["steps"] = 1
    document["dataset"] |= {"resize": 37, "crop": 32}
    for table, values in changes.items():
        document[table] |= values
    if "backbone" in changes:
        document["backbone"] = changes["backbone"]
    document["evaluation"] = {"baselines": False}
    run = train(parse(document, registry()), out, console=Console(quiet=True)).path
    if whiten:
        evaluate_run(run, whiten=whiten)
    return open_model(run)


def embed_by_modules(folder: Path, files: list[Path]) -> np.ndarray:
    """Embed with transformers and with the modules that the folder lists, written out."""
    listed = json.loads((folder / "modules.json").read_text())
    first = folder / listed[0]["path"]
    prepare = transformers.AutoImageProcessor.from_pretrained(first)
    network = transformers.AutoModel.from_pretrained(first).eval()
    with torch.no_grad():
        output = network(**prepare([Image.open(file) for file in files], return_tensors="pt"))
        about = json.loads((first / "sentence_bert_config.json").read_text())
        rows = getattr(output, about["modality_config"]["image"]["method_output_name"])
        for module in listed[1:]:
            weights = {}
            if (file := folder / module["path"] / "model.safetensors").exists():
                weights = load_file(file)
            match module["type"].rpartition(".")[2]:
                case "Pooling":
                    rows = rows.mean((2, 3))
                case "LayerNorm":
                    rows = F.layer_norm(
                        rows, rows.shape[1:], weights["norm.weight"], weights["norm.bias"]
                    )
                case "Dense":
                    rows = F.linear(rows, weights["linear.weight"], weights.get("linear.bias"))
                case "Normalize":
                    rows = F.normalize(rows)
    return rows.numpy()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_modules_give_the_embeddings_of_the_run(name, photos, tmp_path):
    model = open_trained(
        photos, tmp_path / "run", NETWORKS[name], whiten=5 if name == "maps" else 0
    )
    write_sentence_transformer(model, tmp_path / "shared")
    files = sorted(photos.rglob("*.png"))
    expected, found = model.embed_images(files), embed_by_modules(tmp_path / "shared", files)
    assert found.shape == expected.shape
    # Pillow and torch round the weights of integer arithmetic differently.
    assert (F.cosine_similarity(torch.tensor(expected), torch.tensor(found)) > 0.999).all()
    pytest.importorskip("sentence_transformers", reason="loads the folder")
    assert export(model, "sentence-transformers", tmp_path / "exported") < 0.01


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"backbone": {"name": "timm", "model": "test_resnet", "levels": ["layer1", "layer2"]}},
        {"backbone": NETWORKS["maps"]["backbone"], "embedding": {"pooling": "gem"}},
        {"backbone": NETWORKS["maps"]["backbone"], "dataset": {"crop": [32, 16]}},
        {"backbone": NETWORKS["maps"]["backbone"], "dataset": {"normalize": "caffe"}},
    ],
    ids=["not timm", "levels", "pooling", "upright", "BGR"],
)
def test_other_networks_are_refused(changes, photos, tmp_path):
    model = open_trained(photos, tmp_path / "run", changes)
    with pytest.raises(
        DmlError, match="has no modules for this network; expected a network of timm"
    ):
        write_sentence_transformer(model, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()
