"""Share a trained network as a folder in the form of the Hugging Face Hub, and find such a folder
to open it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import tomli_w

from dml_core import DmlError, Registry
from dml_train.extras import extra
from dml_train.files import partial_path, read_json, report_write_errors
from dml_train.measure.evaluate import build_evaluator, restore_evaluation
from dml_train.measure.listing import LEVEL, Metric, list_metrics
from dml_train.networks.model import EmbeddingModel, Whitening
from dml_train.run_folder import RunFolder

if TYPE_CHECKING:
    from dml_train.trained.model import TrainedModel

LIBRARY = "dml-train"  # the value of "library_name" in config.json
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
HUB = "hf:"  # the prefix of a name on the Hub


def write_hub_folder(model: TrainedModel, out: Path, registry: Registry) -> None:
    """Write config.json, model.safetensors and a model card, README.md, into a new folder.

    Absolute paths in the recipe are replaced by the last component. Raise DmlError if writing
    fails.
    """
    partial = partial_path(out)
    document = _shorten_paths(model.recipe.to_dict())
    document["training"].pop("device", None)
    config = {
        "library_name": LIBRARY,
        "library_version": version(LIBRARY),
        "architecture": model.recipe.backbone["name"],
        "step": model.step,
        "embedding_dim": model.dim,
        "input_shape": model.input_shape,
        "preparation": None if model.reader is None else model.reader.describe(),
        "recipe": document,
    }
    try:
        with report_write_errors(f"write {out}"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            card = _write_card(model, out.resolve().name, document, registry)
            (partial / CARD).write_text(card, encoding="utf-8")
            weights = model.network.state_dict()
            safetensors.torch.save_file(
                {
                    name: tensor.detach().cpu().contiguous().clone()
                    for name, tensor in weights.items()
                },
                partial / WEIGHTS,
                metadata={"format": "pt"},
            )
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _shorten_paths(value: Any) -> Any:
    """Replace absolute paths, which name folders of the machine that trained, by the last
    component.
    """
    if isinstance(value, Mapping):
        return {key: _shorten_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shorten_paths(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def find_hub_folder(source: Path | str) -> Path | None:
    """Return the folder of a shared network, or None if `source` is something else.

    A name that begins with ``hf:`` is downloaded, or read from the Hub client's cache;
    ``hf:OWNER/NAME@REVISION`` chooses a revision. Raise DmlError if the name can't be downloaded or
    read.
    """
    if not str(source).startswith(HUB):
        folder = Path(source)
        try:
            return (
                folder
                if (folder / CONFIG).is_file() and not RunFolder(folder).recipe.is_file()
                else None
            )
        except OSError:  # for example, the name is too long
            return None
    name, _, revision = str(source).removeprefix(HUB).partition("@")
    with extra("hf", f"the network {source}"):
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError
    try:
        for file in (WEIGHTS, CONFIG):
            found = huggingface_hub.hf_hub_download(name, file, revision=revision or None)
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise DmlError(f"can't get {source} from the Hub or from the cache: {error}") from error
    return Path(found).parent


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; raise DmlError if it is corrupt, or a different library wrote it."""
    config = read_json(folder / CONFIG)
    if (library := config.get("library_name")) != LIBRARY:
        raise DmlError(f"{folder / CONFIG} has library_name {library!r}; expected {LIBRARY!r}")
    types = {"recipe": dict, "input_shape": list, "step": int}
    for key, expected in types.items():
        if not isinstance(config.get(key), expected):
            raise DmlError(
                f"{folder / CONFIG} has {key} {config.get(key)!r}; expected a {expected.__name__}"
            )
    return config


def load_hub_weights(folder: Path, network: EmbeddingModel) -> None:
    """Load the weights, and the whitening if there is one; raise DmlError if these don't fit the
    network.
    """
    path = folder / WEIGHTS
    try:
        state = safetensors.torch.load_file(path)
        whitening = [state.pop(f"whitening.{name}", None) for name in ("mean_D", "components_WD")]
        network.load_state_dict(state)
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DmlError(
            f"{path} doesn't contain the network's weights: {str(error).splitlines()[-1]}"
        ) from error
    if None not in whitening:
        network.whitening = Whitening(*whitening)  # type: ignore[arg-type]


def _write_card(
    model: TrainedModel, name: str, document: Mapping[str, Any], registry: Registry
) -> str:
    """Write the model card: how to load, metrics with intervals, data and recipe."""
    recipe, reader = model.recipe, model.reader
    metrics, queries = _measured(model, registry)
    similarity = recipe.evaluation.component().get("similarity", "cosine")
    data, backbone, loss = (
        table["name"] for table in (recipe.dataset, recipe.backbone, recipe.loss)
    )
    backbone = recipe.backbone.get("model", backbone)
    head = {
        "library_name": LIBRARY,
        "pipeline_tag": "image-feature-extraction",
        "tags": ["metric-learning", "image-retrieval", loss, backbone],
    }
    if metrics:
        task = {"type": "image-retrieval"}
        values = [
            {"type": metric.name, "name": metric.title, "value": metric.value} for metric in metrics
        ]
        result = {"task": task, "dataset": {"name": data, "type": data}, "metrics": values}
        head["model-index"] = [{"name": name, "results": [result]}]
    # JSON is YAML, so that names need no escapes.
    front = "\n".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()
    )
    whitened = ""
    if model.network.whitening is not None:
        whitened = (
            f" The last step is a PCA whitening to {model.dim} numbers; the metrics are without it."
        )
    return f"""---
{front}
---
# {name}

Embeds images in {model.dim} numbers, to be compared by {similarity} similarity.
Trained with {loss} on {data}: {backbone}, {model.step} steps.{whitened}

## How to load

```python
import dml_train

model = dml_train.open_model("hf:OWNER/{name}")  # or the path of this folder
embeddings = model.embed_images(["first.jpg", "second.jpg"])  # (2, {model.dim}) float32
```

This needs `pip install "dml-train[all]"`.

## Metrics

{_table(metrics, queries)}

## Data and recipe

{_prepared(None if reader is None else reader.describe())}

```toml
{tomli_w.dumps(dict(document)).strip()}
```
"""


def _measured(model: TrainedModel, registry: Registry) -> tuple[Sequence[Metric], str]:
    """Return the metrics that the run measured with these weights, and the number of queries."""
    folder = model.folder
    if not folder.is_finished or (result := folder.read_evaluation())["step"] != model.step:
        return [], ""
    evaluation = None
    if model.recipe.evaluation.test:
        evaluator = build_evaluator(model.recipe, registry, clustering=False)
        evaluation = restore_evaluation(folder, model.recipe, result, evaluator)
    queries = f"{result['n_queries']:,} queries" if "n_queries" in result else "queries"
    return list_metrics(result, evaluation), queries


def _table(metrics: Sequence[Metric], queries: str) -> str:
    if not metrics:
        return "Not measured."
    lines = [
        (
            f"| {m.title} | {m.value:.4f} | "
            f"{'–' if m.low is None else f'{m.low:.4f} to {m.high:.4f}'} |"
        )
        for m in metrics
    ]
    title = (
        f"Means over {queries} of classes that training never saw, with the {LEVEL:.0%} bootstrap "
        "interval."
    )
    return "\n".join([title, "", "| metric | value | interval |", "|---|---|---|", *lines])


def _prepared(steps: Mapping[str, Any] | None) -> str:
    if steps is None:
        return "The data set doesn't say how images are prepared."
    return "Images are prepared by these steps, see `preparation` in config.json:\n\n" + "\n".join(
        f"- {key}: {value}" for key, value in steps.items()
    )
