"""Baselines: the metrics of raw pixels and of the untrained network."""

from __future__ import annotations

import json

import pytest
import tomli_w
import torch
from train_support.tiny_world import TinyEvaluator

from dml_train.measure.embed import embed
from dml_train.run_folder import RunFolder
from dml_train.training import baselines as module
from dml_train.training.baselines import RAW_PIXELS, UNTRAINED, Baselines, _NetworkAndPixels
from dml_train.training.build import build, build_model
from dml_train.training.run import read_recipe

WITH = {"evaluation": {"baselines": True}}


def test_they_are_the_metrics_of_pixels_and_of_the_initial_weights(run, registry):
    folder = run(**WITH, embedding={"dim": 6})
    recipe = read_recipe(folder, registry)
    experiment = build(recipe, registry)
    test, device = experiment.dataset.test, torch.device("cpu")
    model = build_model(recipe, 1, registry, device)
    expected = {
        RAW_PIXELS: (test.images.reshape(len(test), -1), 16),
        UNTRAINED: (embed(model, test, device=device), 24),
    }
    found = Baselines.read(folder)
    assert found.omitted == ""
    for name, (embeddings, size) in expected.items():
        metrics = TinyEvaluator().evaluate(embeddings, test.labels).to_dict()
        assert found.metrics[name] == {**metrics, "bytes_per_item": size}
    assert found.by_name()[UNTRAINED] == {"recall@1": found.metrics[UNTRAINED]["recall@1"]}


def test_they_change_no_file_of_the_run(run, tmp_path):
    folders = [
        run(where=tmp_path / str(wanted), evaluation={"baselines": wanted})
        for wanted in (True, False)
    ]
    for name in ("metrics.jsonl", "embeddings.npy", "evaluation.json"):
        one, other = ((folder.path / name).read_bytes() for folder in folders)
        assert one == other, name
    assert [folder.baselines.is_file() for folder in folders] == [True, False]


def test_a_resumed_run_keeps_them_and_one_forced_to_another_recipe_measures_again(run, monkeypatch):
    folder = run(**WITH)
    folder.evaluation.unlink()
    kept = {"kept": {"recall@1": 0.5}}
    folder.baselines.write_text(json.dumps(kept))
    run(**WITH, resume=True)
    assert Baselines.read(folder).metrics == kept
    run(**WITH, resume=True, force=True, optimizer={"lr": 0.02})
    assert set(Baselines.read(folder).metrics) == {RAW_PIXELS, UNTRAINED}


def test_a_large_test_split_has_none_and_says_so(run, dml, monkeypatch, out):
    monkeypatch.setattr(module, "MOST_IMAGES", 47)
    folder = run(**WITH)
    assert json.loads(folder.baselines.read_text()) == {
        "omitted": "the test split contains 48 images, more than 47"
    }
    assert Baselines.read(folder).omitted.startswith("the test split contains 48 images")


def test_a_refusal_of_the_evaluator_is_the_reason(run, monkeypatch):
    def refuse(self, embeddings, labels, *gallery):
        if embeddings.shape[1] == 16:
            raise ValueError("16 dimensions")
        return evaluate(self, embeddings, labels, *gallery)

    evaluate = TinyEvaluator.evaluate
    monkeypatch.setattr(TinyEvaluator, "evaluate", refuse)
    assert Baselines.read(run(**WITH)).omitted == "can't evaluate: 16 dimensions"


def test_a_run_without_test_split_has_none(run):
    folder = run(
        evaluation={"baselines": True, "test": False, "every": 1},
        validation={"class_fraction": 0.3, "metric": "recall@1"},
    )
    assert not folder.baselines.exists()


def test_the_command_prints_them_beside_the_metrics(tmp_path, dml, tiny_document, monkeypatch):
    monkeypatch.setattr("dml_train.report.write_report", lambda *arguments: "a report")
    (tmp_path / "tiny.toml").write_bytes(tomli_w.dumps(tiny_document(**WITH)).encode())
    printed = dml("train", tmp_path / "tiny.toml", "--out", tmp_path / "run").stdout.splitlines()
    columns = Baselines.read(RunFolder(tmp_path / "run")).by_name()
    assert printed[0].split() == ["trained", *RAW_PIXELS.split(), *UNTRAINED.split()]
    (line,) = [line for line in printed if line.startswith("Recall@1")]
    assert line.split()[2:] == [
        f"{columns[name]['recall@1']:.4f}" for name in (RAW_PIXELS, UNTRAINED)
    ]


@pytest.mark.parametrize(
    ("shape", "side"),
    [((1, 32, 32), (32, 32)), ((3, 18, 18), (18, 18)), ((3, 224, 224), (17, 17)),
     ((3, 300, 20), (17, 1)),
     ((2048, 2, 2), (1, 1))],
)  # fmt: skip
def test_pixels_are_means_over_squares(shape, side):
    images = torch.randn(2, *shape)

    class NoNetwork(torch.nn.Module):
        embedding_dim = 1

        def forward(self, images):
            return images.flatten(1)[:, :1]

    both = _NetworkAndPixels(NoNetwork(), images.shape[1:])
    found = both(images)[:, 1:].reshape(2, shape[0], *side)
    assert found[0].numel() == both.embedding_dim - 1 <= max(1024, shape[0])
    square = both.square
    first = images[:, :, :square, :square].mean(dim=(2, 3))
    torch.testing.assert_close(found[:, :, 0, 0], first)
