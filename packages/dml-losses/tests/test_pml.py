"""The adapter for pytorch-metric-learning returns the library's values."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch

pml = pytest.importorskip(
    "pytorch_metric_learning", reason="the extra dml-losses[pml] is not installed"
)

from pytorch_metric_learning import losses, miners  # noqa: E402

from dml_core import InvalidOption, Plugins, Registry  # noqa: E402
from dml_losses import CrossBatchMemory, plugin  # noqa: E402
from dml_losses import pml as adapter  # noqa: E402

CONTEXT = {"num_classes": 4, "embedding_dim": 6, "steps_per_epoch": 5, "seed": 0}
NEEDED = {"RankedListLoss": {"margin": 0.4, "Tn": 10}}
NEEDS_MORE = {
    "VICRegLoss": "compares two views of the same items, not labels",
    "ManifoldLoss": "draws random proxies at each call",
    "InstanceLoss": "makes its classifier from the first batch",
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    plugins = Plugins()
    plugins.register(plugin, distribution="dml-losses", version="0.1.0")
    return Registry(plugins)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 6, generator=generator), torch.arange(12) % 4


NAMES = sorted(
    component.name for component in plugin.dml_losses() if component.name.startswith("pml/")
)


def test_every_loss_of_the_library_is_registered() -> None:
    known = {
        f"pml/{name}"
        for name, cls in vars(losses).items()
        if isinstance(cls, type)
        and issubclass(cls, losses.BaseMetricLossFunction)
        and name not in ("BaseMetricLossFunction", "GenericPairLoss")
    }
    assert set(NAMES) == known
    assert len(NAMES) >= 30
    for name in ("TripletMargin", "Contrastive", "LiftedStructure", "NPairs", "Angular", "Margin",
        "MultiSimilarity",
                 "Circle", "FastAP", "Histogram"):  # fmt: skip
        assert f"pml/{name}Loss" in NAMES


# The library's code for earlier versions of torch and numpy raises warnings; another is about a
# default.
@pytest.mark.filterwarnings(
    "ignore:Using a non-tuple sequence", "ignore:__array_wrap__", "ignore:Values of Tp"
)
@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_made_by_name_and_backpropagates(registry: Registry, name: str) -> None:
    short = name.removeprefix("pml/")
    if short in NEEDS_MORE:
        pytest.skip(NEEDS_MORE[short])
    torch.manual_seed(0)
    loss = registry.build("losses", {"name": name, **NEEDED.get(short, {})}, CONTEXT)
    x, y = batch()
    x.requires_grad_()
    value = loss(x, y)
    assert value.shape == ()
    value.backward()
    assert torch.isfinite(x.grad).all()


def test_the_value_is_the_librarys() -> None:
    x, y = batch()
    adapted = _factory("TripletMarginLoss")(
        margin=0.2, distance="CosineSimilarity", reducer="MeanReducer"
    )
    direct = losses.TripletMarginLoss(
        margin=0.2, distance=pml.distances.CosineSimilarity(), reducer=pml.reducers.MeanReducer()
    )
    assert torch.equal(adapted(x, y), direct(x, y))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in vars(miners)
        if name.endswith("Miner") and name not in ("BaseMiner", "HDCMiner")
    ],
)
def test_every_miner_picks_for_a_loss(name: str) -> None:
    x, y = batch()
    options = {"UniformHistogramMiner": {"num_bins": 4}}.get(name, {})
    torch.manual_seed(0)
    adapted = _factory("ContrastiveLoss")(miner=name, miner_options=options)(x, y)
    torch.manual_seed(0)
    picked = getattr(miners, name)(**options)(x, y)
    assert torch.equal(adapted, losses.ContrastiveLoss()(x, y, picked))


def test_it_is_a_pair_loss_for_a_memory() -> None:
    memory = CrossBatchMemory(_factory("ContrastiveLoss")(), capacity=24)
    x, y = batch()
    direct = losses.ContrastiveLoss()
    assert torch.equal(memory(x, y), direct(x, y))
    torch.testing.assert_close(memory(x, y), direct(x, y) + direct(x, y, ref_emb=x, ref_labels=y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name", ["Contrastive", "TripletMargin", "MultiSimilarity", "NTXent", "Circle", "SupCon"]
)
def test_a_memory_compares_in_the_batchs_precision_and_in_float32_at_least(
    name: str, dtype: torch.dtype
) -> None:
    loss = _factory(f"{name}Loss")()
    memory = CrossBatchMemory(loss, capacity=24)
    x, y = batch()
    x = x.to(dtype).requires_grad_()
    precision = torch.promote_types(dtype, torch.float32)
    wide = x.detach().to(precision).requires_grad_()
    memory(x, y)
    value, expected = memory(x, y), loss(wide, y) + loss(wide, y, wide.detach(), y.clone())
    assert value.dtype == precision
    assert torch.equal(value, expected)
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.dtype == dtype
    (wanted,) = torch.autograd.grad(expected, wide)
    # Both parts are rounded to the embeddings' dtype before they are added.
    error = 2 * torch.finfo(dtype).eps * float(wanted.abs().max())
    torch.testing.assert_close(gradient, wanted.to(dtype), rtol=0, atol=error)


@pytest.mark.parametrize("miner", [None, "MultiSimilarityMiner"])
def test_a_gallery_of_another_dtype_is_compared_in_the_wider_one(miner: str | None) -> None:
    loss = _factory("ContrastiveLoss")(miner=miner)
    x, y = batch()
    for embeddings, gallery in ((x.double(), x), (x, x.double()), (x.double(), x.bfloat16())):
        expected = loss(embeddings.double(), y, gallery.double(), y)
        assert torch.equal(loss(embeddings, y, gallery, y), expected)


def test_an_unknown_option_or_miner_names_the_nearest(registry: Registry) -> None:
    with pytest.raises(InvalidOption, match="no option 'margn'; did you mean 'margin'"):
        registry.build("losses", {"name": "pml/TripletMarginLoss", "margn": 0.1}, CONTEXT)
    with pytest.raises(
        InvalidOption,
        match=r"miner is 'MultiSimilarity'; expected a class of .*MultiSimilarityMiner",
    ):
        registry.build(
            "losses", {"name": "pml/ContrastiveLoss", "miner": "MultiSimilarity"}, CONTEXT
        )


def test_the_installed_library_is_in_the_range_of_the_extra() -> None:
    major, minor = map(int, importlib.metadata.version("pytorch-metric-learning").split(".")[:2])
    assert (major, minor) >= (2, 9)


def test_constructors_as_version_3_documents_them_have_the_options_that_they_forward() -> None:
    """In version 3, options are keyword-only, and a proxy loss passes the number of proxies to its
    base class.
    """

    class Base(torch.nn.Module):
        def __init__(self, *, distance=None, reducer=None, embedding_reg_weight=1.0) -> None:
            super().__init__()
            self.made = distance, reducer, embedding_reg_weight

        def forward(self, embeddings, labels=None, indices_tuple=None):
            return embeddings.sum() if indices_tuple is None else indices_tuple

    class Proxies(Base):
        def __init__(
            self, num_proxies, embedding_size, *, weight_init_func=None, **options
        ) -> None:
            super().__init__(**options)
            self.shape = num_proxies, embedding_size

    class ArcFaceLoss(Proxies):
        def __init__(self, num_classes, embedding_size, margin=0.5, scale=64, **options) -> None:
            super().__init__(num_classes, embedding_size, **options)
            self.margin = margin

    class Closed(ArcFaceLoss):
        def __init__(self, margin=0.1) -> None:
            super().__init__(3, 4, margin)

    for cls in (Base, Proxies, ArcFaceLoss, Closed):
        cls.__module__ = "pytorch_metric_learning.losses"
    assert list(adapter._parameters(Closed)) == ["margin"]
    assert list(adapter._parameters(ArcFaceLoss)) == [
        "num_classes", "embedding_size", "margin", "scale", "weight_init_func", "distance",
        "reducer",
        "embedding_reg_weight",
    ]  # fmt: skip
    loss = adapter._factory(ArcFaceLoss)(
        num_classes=5, embedding_dim=6, distance="CosineSimilarity", margin=0.2
    )
    assert loss.loss.shape == (5, 6)
    assert loss.loss.margin == 0.2
    assert isinstance(loss.loss.made[0], pml.distances.CosineSimilarity)
    x, y = batch()
    assert torch.equal(loss(x, y), x.sum())  # this loss's forward takes no gallery


def _factory(name: str):
    return next(c.factory for c in plugin.dml_losses() if c.name == f"pml/{name}")
