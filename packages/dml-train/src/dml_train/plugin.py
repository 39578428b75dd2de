"""The components of dml-train, provided by the same hooks that plugins use.

Factories are named and not imported, so that listings don't wait for torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from dml_core import Component, hookimpl


@hookimpl
def dml_datasets() -> Iterable[Component]:
    """List the data sets of `dml_train.data`."""
    yield Component(
        "glyphs",
        "dml_train.data.glyphs:Glyphs",
        "characters drawn with matplotlib's fonts or yours, half of the classes unseen; no "
        "download",
    )
    for name, summary, source in (
        (
            "image-folder",
            "a folder of images with one subfolder per class; half of the classes train",
            "",
        ),
        (
            "csv",
            "a CSV file of images with the columns path, label and, optionally, split and group",
            "",
        ),
        (
            "table",
            "Parquet, Arrow or WebDataset files, also of datasets' save_to_disk, with images and "
            "labels",
            "",
        ),
        ("cub", "CUB-200-2011: 200 species of birds; the first 100 train", "Wah et al. 2011"),
        ("cars196", "CARS196: 196 models of cars; the first 98 train", "Krause et al. 2013"),
        ("sop", "Stanford Online Products: 22,634 products; about half train", "Song et al. 2016"),
        (
            "in-shop",
            "In-Shop Clothes: 7,982 items, with separate queries and gallery",
            "Liu et al. 2016",
        ),
        (
            "market1501",
            "Market-1501: 1,501 persons, six cameras; matches are by other cameras",
            "Zheng et al. 2015",
        ),
        (
            "veri776",
            "VeRi-776: 776 vehicles, 20 cameras; matches are by other cameras",
            "Liu et al. 2016",
        ),
        (
            "vehicleid",
            "VehicleID: 800 to 2,400 test vehicles, one gallery image each",
            "Liu et al. 2016",
        ),
    ):
        yield Component(name, f"dml_train.data.factories:{name.replace('-', '_')}", summary, source)


@hookimpl
def dml_backbones() -> Iterable[Component]:
    """List the backbones of `dml_train.networks.backbones`."""
    yield Component(
        "small-conv",
        "dml_train.networks.backbones:SmallConv",
        "a few blocks of convolutions for small images, trained in minutes",
    )
    yield Component(
        "bn-inception",
        "dml_train.networks.backbones:BNInception",
        "BN-Inception (GoogLeNet V2), the papers' backbone, with the file of the published weights",
        source="Ioffe & Szegedy 2015, Batch Normalization, figure 5",
    )
    yield Component(
        "timm",
        "dml_train.networks.backbones:TimmModel",
        "any model of timm by name, without its classifier; needs the extra dml-train[timm]",
        source="https://huggingface.co/docs/timm",
    )
    yield Component(
        "torchvision",
        "dml_train.networks.backbones:TorchvisionModel",
        "any classification model of torchvision by name, without its classifier; your weights or "
        "torchvision's",
        source="https://docs.pytorch.org/vision/stable/models.html",
    )


@hookimpl
def dml_loggers() -> Iterable[Component]:
    """List the loggers of `dml_train.training`."""
    yield Component(
        "jsonl",
        "dml_train.training.loggers:JsonLines",
        "metrics.jsonl, one JSON object per step, in full precision",
    )
    yield Component(
        "tensorboard", "dml_train.training.loggers:TensorBoard", "TensorBoard event files"
    )
    for name, tracker, kept in (
        ("wandb", "WeightsAndBiases", "a run of Weights & Biases, offline by default"),
        ("mlflow", "MlflowRun", "a run of MLflow, by default in the file mlflow.db"),
        ("trackio", "TrackioRun", "a run of Trackio, in its local database"),
    ):
        summary = f"{kept}; needs the extra dml-train[{name}]"
        yield Component(name, f"dml_train.training.trackers:{tracker}", summary)
