"""With training.compile and torch's default backend, resumed runs must be identical."""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
import torch
from train_support.run_traces import check_same_bits, losses, stopped
from train_support.sharded_ranks import find_in_environment, in_ranks, train_until

from dml_core import DmlError
from dml_train.ranks.ranks import SINGLE_PROCESS
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training.build import build
from dml_train.training.replica import Replica

generates_code = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="needs a C++ compiler, for torch's generated code",
)
# When a batch of eight is split into three micro-batches, the sizes are not equal, so 2 graphs are
# used.
PARTS = {"backbone": {"dropout": 0.0, "norm": False}, "training": {"steps": 6, "micro_batch": 3}}
COMPILED = {**PARTS, "training": {**PARTS["training"], "compile": True}}


@pytest.fixture(autouse=True, scope="module")
def generated_here(tmp_path_factory):
    """Use an empty cache: torch's cache in /tmp may contain code for a different CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    """Forget compiled graphs, as in a new process: torch will compile a function at most eight
    times.
    """
    torch._dynamo.reset()


@pytest.mark.slow
@generates_code
def test_generated_code_matches_the_plain_network_and_resumes_to_the_same_bits(
    run, registry, tmp_path
):
    def run_anew(name, tables, resume=False):
        torch._dynamo.reset()  # forget compiled graphs, as in a new process
        return run(tmp_path / name, resume, **tables, checkpoints={"every": 2})

    plain, whole = run_anew("plain", PARTS), run_anew("whole", COMPILED)
    with stopped(registry, 3):
        run_anew("cut", COMPILED)
    cut = run_anew("cut", COMPILED, resume=True)

    # Generated code sums float32 in a different order, so the losses of the six steps differ by
    # rounding errors.
    assert losses(whole) == pytest.approx(losses(plain), rel=1e-5)
    check_same_bits(whole, cut)


def test_ranks_have_the_code_cache_of_this_process_even_if_their_server_has_another(monkeypatch):
    in_ranks(
        1, find_in_environment, "TORCHINDUCTOR_CACHE_DIR", os.environ["TORCHINDUCTOR_CACHE_DIR"]
    )
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "another")
    in_ranks(1, find_in_environment, "TORCHINDUCTOR_CACHE_DIR", "another")


@generates_code
@pytest.mark.slow
def test_two_ranks_with_generated_code_match_one_without(tiny_document, tmp_path):
    one, two = (tiny_document(**tables) for tables in (PARTS, COMPILED))
    train_until(one, tmp_path / "one", 99)
    in_ranks(2, train_until, two, tmp_path / "two", 99)
    # Generated code and ranks sum float32 in a different order.
    assert losses(RunFolder(tmp_path / "two")) == pytest.approx(
        losses(RunFolder(tmp_path / "one")), rel=1e-5
    )


@pytest.mark.slow
@generates_code
def test_generated_code_draws_the_same_dropout_in_both_passes(registry, tiny_document, monkeypatch):
    document = tiny_document(
        training={"micro_batch": 4, "compile": True}, backbone={"dropout": 0.5, "norm": False}
    )
    experiment = build(parse(document, registry), registry)
    network = Replica(experiment, SINGLE_PROCESS)
    experiment.model.train()
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    embeddings = network.embed(images, step=0)
    embeddings.square().sum().backward()
    again, backward = [], torch.autograd.backward

    def keep(repeated, gradient):
        again.append(repeated.detach())
        backward(repeated, gradient)

    monkeypatch.setattr(torch.autograd, "backward", keep)
    network.finish_backward()
    # Allow rounding: only the second graph stores activations. A different dropout mask would
    # change values far more.
    torch.testing.assert_close(torch.cat(again), embeddings, rtol=1e-5, atol=1e-6)


def test_a_failed_compilation_is_reported_with_a_remedy(run, monkeypatch):
    def backend(graph, inputs):
        raise OSError("no g++ here")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    message = r"(?s)can't compile the network: .*no g\+\+ here.*or omit training.compile"
    with pytest.raises(DmlError, match=message):
        run(training={"compile": True})
