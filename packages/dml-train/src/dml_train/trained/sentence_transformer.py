"""Write a trained network as a folder that sentence-transformers loads, made of modules of that
library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn

from dml_core import DmlError
from dml_train.networks.model import EmbeddingHead

if TYPE_CHECKING:
    from dml_train.trained.model import TrainedModel

Module = tuple[str, Mapping[str, Any], Mapping[str, Tensor]]  # class, configuration, weights
_CONFIG = "config.json"


def write_sentence_transformer(model: TrainedModel, folder: Path) -> None:
    """Write the network of `model` into a new folder, with a subfolder per module.

    The library prepares images by timm and Pillow, so pixels can differ by a rounding from this
    package's, and large JPEG files aren't decoded at a reduced size. Raise a `DmlError` if a part
    of the network isn't among the library's modules.
    """
    listed: list[dict[str, Any]] = []
    for place, (kind, config, weights) in enumerate(_list_modules(model)):
        path = f"{place}_{kind.rpartition('.')[2]}"
        (folder / path).mkdir(parents=True)
        listed.append(
            {"idx": place, "name": path, "path": path, "type": f"sentence_transformers.{kind}"}
        )
        _write(folder / path / _CONFIG, config)
        if weights:
            copies = {
                name: tensor.detach().cpu().float().clone() for name, tensor in weights.items()
            }
            safetensors.torch.save_file(
                copies, folder / path / "model.safetensors", {"format": "pt"}
            )
    similarity = model.recipe.evaluation.component().get("similarity", "cosine")
    pools = any("Pooling" in module["path"] for module in listed)
    output = "last_hidden_state" if pools else "pooler_output"
    about = {
        "transformer_task": "feature-extraction",
        "modality_config": {"image": {"method": "forward", "method_output_name": output}},
        "module_output_name": "token_embeddings" if pools else "sentence_embedding",
    }
    _write(folder / listed[0]["path"] / "sentence_bert_config.json", about)
    _write(folder / "modules.json", listed)
    about = {"model_type": "SentenceTransformer", "similarity_fn_name": similarity}
    _write(folder / "config_sentence_transformers.json", about)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _list_modules(model: TrainedModel) -> list[Module]:
    head, embedding, table = model.network.head, model.recipe.embedding, model.recipe.backbone
    backbone: Any = model.network.backbone
    steps = {} if model.reader is None else model.reader.describe()
    options = steps.get("options", {})
    if (
        table["name"] != "timm"
        or table["lora_rank"]
        or not isinstance(head, EmbeddingHead)
        or backbone.form == "map, channels last"
        or (backbone.form == "map" and embedding.pooling != "average")
        or embedding.batch_norm
        or steps.get("kind") != "photograph"
        or not all(isinstance(options[name], int) for name in ("resize", "crop"))
        or options["normalize"] == "caffe"
    ):
        raise DmlError(
            "sentence-transformers has no modules for this network; expected a network of timm "
            "without LoRA, levels and batch norm in the head, with features (1, F, h, w) and "
            "average pooling, or a vector, for square photographs in RGB. Export to hub, onnx or "
            "torch-export instead"
        )
    trunk, size = backbone.trunk, int(backbone.num_features)
    weights = {f"timm_model.{name}": tensor for name, tensor in trunk.state_dict().items()}
    config = _describe_trunk(trunk, table["image_size"], steps)
    modules: list[Module] = [("base.modules.Transformer", config, weights)]
    if backbone.form == "map":
        pooling = {"embedding_dimension": size, "pooling_mode": "mean"}
        modules.append(("sentence_transformer.modules.Pooling", pooling, {}))
    if embedding.layer_norm:
        weights = {"norm.weight": torch.ones(size), "norm.bias": torch.zeros(size)}
        modules.append(("sentence_transformer.modules.LayerNorm", {"dimension": size}, weights))
    if isinstance(head.linear, nn.Linear):
        modules.append(_dense(head.linear.weight, head.linear.bias))
    if (whitening := model.network.whitening) is not None:
        modules.append(("base.modules.Normalize", {}, {}))
        components_WD = whitening.components_WD
        modules.append(_dense(components_WD, -components_WD @ whitening.mean_D))
    return modules


def _dense(weight_OI: Tensor, bias_O: Tensor | None) -> Module:
    outputs, inputs = weight_OI.shape
    config = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": bias_O is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    weights = {"linear.weight": weight_OI} | ({} if bias_O is None else {"linear.bias": bias_O})
    return "base.modules.Dense", config, weights


def _describe_trunk(trunk: Any, image_size: int, steps: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a timm network and the preparation of images as transformers' TimmWrapperModel
    does.
    """
    options, scale, offset = steps["options"], steps["scale"], steps["offset"]
    prepared = {
        "input_size": [3, options["crop"], options["crop"]],
        "interpolation": options["interpolation"],
        "crop_pct": options["crop"]
        / (options["resize"] + 0.5),  # timm resizes to floor(crop / crop_pct)
        "crop_mode": "squash" if options["square"] else "center",
        "mean": [-each / (255.0 * factor) for factor, each in zip(scale, offset)],
        "std": [1.0 / (255.0 * factor) for factor in scale],
        "num_classes": 0,
    }
    return {
        "model_type": "timm_wrapper",
        "architectures": ["TimmWrapperModel"],
        "architecture": trunk.default_cfg["architecture"],
        "model_args": {"img_size": image_size} if image_size else {},
        "num_features": trunk.num_features,
        "num_classes": 0,
        "pretrained_cfg": prepared,
    }
