"""`dml embed --shard` and `--join`: parts that resume, and can be joined to the bytes of a single
process.
"""

from __future__ import annotations

import json
import shutil
from itertools import chain

import numpy as np
import pytest
from train_support.photo_world import photo_document, train_on, write_photos

from dml_core import DmlError, InvalidOption
from dml_train.data.preparation import ImageSplit
from dml_train.trained.folder import embed_images
from dml_train.trained.images import list_folder
from dml_train.trained.plan import EmbeddingPlan, ThisProcess
from dml_train.trained.shards import Shard, embed_shard, join_shards


@pytest.fixture
def plan(model, photos):
    """Plan to embed thirty photos in eight chunks of at most four."""
    return EmbeddingPlan(model, list_folder(photos), chunk_size=4)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "parts").mkdir()
    return tmp_path / "parts"


def embed_all(plan, out, count, **options):
    for index in reversed(range(count)):
        embed_shard(plan, out, Shard(index, count), ThisProcess(), **options)


def files(folder):
    """Read the files in a folder by name, except shards."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if "shard" not in path.name}


@pytest.mark.parametrize("count", [1, 3, 11])
@pytest.mark.parametrize("codes", [False, True], ids=["floats", "codes"])
def test_shards_join_to_the_bytes_of_one_process(model, photos, folder, tmp_path, count, codes):
    (photos / "class-1" / "2.png").write_bytes(b"no image")
    plan = EmbeddingPlan(model, list_folder(photos), codes, chunk_size=4)
    (tmp_path / "whole").mkdir()
    whole = tmp_path / "whole"
    embed_images(plan, whole / "e.npy", ThisProcess(), skip=True, labels=whole / "l.npy")
    embed_all(plan, folder / "e.npy", count, skip=True)
    joined = join_shards(plan, folder / "e.npy", labels=folder / "l.npy")
    assert files(folder) == files(whole)
    assert [path for path, _ in joined.skipped] == ["class-1/2.png"]
    assert len(joined.machines) == 1


def test_the_command_shards_a_folder_and_a_split(
    dml, photo_run, registry, photos, folder, tmp_path
):
    (tmp_path / "whole").mkdir()
    for source, name in (((photos,), "e.npy"), (("--split", "test"), "t.npy")):
        whole = tmp_path / "whole" / name
        dml("embed", photo_run, *source, "--out", whole, "--labels", whole.with_stem("labels"))
        for index in range(3):
            part = dml(
                "embed", photo_run, *source, "--out", folder / name, "--shard", f"{index}/3"
            ).stdout
            assert part.startswith(f"{folder / name}".replace(".npy", f".shard-{index}-of-3.npy: "))
        told = dml(
            "embed",
            photo_run,
            *source,
            "--out",
            folder / name,
            "--join",
            "--labels",
            folder / "labels.npy",
        )
        assert told.stdout == f"{folder / name}: {len(np.load(whole))} images\n"
        assert files(folder) == files(whole.parent)
        for path in [*folder.iterdir(), *whole.parent.iterdir()]:
            path.unlink()


class Killed(BaseException):
    """Raised in place of a SIGKILL; no error handling may catch it."""


def test_a_killed_shard_resumes_and_a_finished_one_does_nothing(plan, folder, monkeypatch):
    out, loaded = folder / "e.npy", []
    load = ImageSplit.load

    def counted(self, indices, seeds=None):
        if len(loaded) == 1 and not folder.joinpath("go on").exists():
            raise Killed
        loaded.append(indices.tolist())
        return load(self, indices, seeds)

    monkeypatch.setattr(ImageSplit, "load", counted)
    with pytest.raises(Killed):
        embed_shard(plan, out, Shard(1, 2), ThisProcess())
    assert [path.name for path in folder.iterdir()] == [".e.shard-1-of-2.npy.chunks"]
    with pytest.raises(DmlError, match=r"doesn't contain finished shards of e\.npy"):
        join_shards(plan, out)
    (folder / "go on").touch()
    assert embed_shard(plan, out, Shard(1, 2), ThisProcess()).reused == 4
    assert sorted(chain(*loaded)) == list(range(16, 30))
    assert embed_shard(plan, out, Shard(1, 2), ThisProcess()).reused == 14
    assert len(loaded) == 4


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            {"weights": "0" * 64},
            r"e\.shard-1-of-3\.npy belongs to a different embedding: weights .*at step 3",
        ),
        ({"kind": "codes"}, r"kind is 'codes'; expected 'float32'"),
        (
            {"list of images": "30, SHA-256 00"},
            r"list of images is '30, SHA-256 00'; expected '30, SHA-256 ",
        ),
        ({"shard": "0/3"}, r"-1-of-3\.npy .* shard is '0/3'; expected '1/3'"),
        (
            lambda manifest: manifest.pop("slice"),
            r"e\.shard-1-of-3\.json is corrupt: 'slice' is missing",
        ),
        (lambda manifest: manifest.update(slice="0"), r"changed since .*; embed shard 1/3 again"),
    ],
    ids=["weights", "kind", "list", "renamed", "corrupt", "changed"],
)
def test_a_wrong_shard_is_named_before_anything_is_written(plan, folder, edit, message):
    embed_all(plan, folder / "e.npy", 3)
    path = folder / "e.shard-1-of-3.json"
    manifest = json.loads(path.read_text())
    if callable(edit):
        edit(manifest)
    else:
        manifest["made_by"] |= edit
    path.write_text(json.dumps(manifest))
    with pytest.raises(DmlError, match=message):
        join_shards(plan, folder / "e.npy", labels=folder / "l.npy")
    assert not files(folder)


def test_a_damaged_or_lost_shard_is_named_and_embedded_again(plan, folder):
    out = folder / "e.npy"
    embed_all(plan, out, 3)
    path = folder / "e.shard-1-of-3.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DmlError, match=r"-1-of-3\.npy is damaged"):
        join_shards(plan, out)
    path.unlink()
    with pytest.raises(DmlError, match=r"the rows of shard 1/3, is missing"):
        join_shards(plan, out)
    (folder / "e.shard-0-of-3.json").unlink()
    (folder / "e.shard-2-of-3.json").unlink()
    with pytest.raises(DmlError, match=r"the shards 0/3, 2/3 are missing or unfinished"):
        join_shards(plan, out)
    embed_shard(plan, out, Shard(0, 4), ThisProcess())
    with pytest.raises(
        DmlError, match=r"divisions into 3 and into 4 shards; keep only the shards of one division"
    ):
        join_shards(plan, out)
    assert not files(folder)
    (folder / "e.shard-0-of-4.json").unlink()
    embed_all(plan, out, 3)
    assert len(join_shards(plan, out).paths) == 30


def test_other_images_and_another_run_are_refused(
    dml, photo_run, registry, photos, plan, folder, tmp_path
):
    out = folder / "e.npy"
    embed_shard(plan, out, Shard(0, 1), ThisProcess())
    with pytest.raises(DmlError, match="chunk_size is 4; expected 256"):
        join_shards(EmbeddingPlan(plan.model, plan.images), out)
    content = (photos / "class-0" / "0.png").read_bytes()
    (photos / "class-0" / "0.png").write_bytes(content + b"longer")
    with pytest.raises(DmlError, match=r"changed since .*; embed shard 0/1 again"):
        join_shards(plan, out)
    assert (
        embed_shard(plan, out, Shard(0, 1), ThisProcess()).reused == 0
    )  # replaces the outdated file
    (photos / "class-0" / "0.png").unlink()
    fewer = EmbeddingPlan(plan.model, list_folder(photos), chunk_size=4)
    with pytest.raises(DmlError, match=r"list of images is '30, SHA.*expected '29, SHA"):
        join_shards(fewer, out)
    with pytest.raises(DmlError, match=r"list of images is '30, SHA.*expected '29, SHA"):
        embed_shard(fewer, out, Shard(0, 1), ThisProcess())


def test_mistakes_in_the_options_are_named(dml, photo_run, photos, folder):
    out = folder / "e.npy"

    def refused(*options):
        return dml("embed", photo_run, photos, "--out", out, *options, code=2).stderr

    assert "the shard is '3'; expected I/N" in refused("--shard", "3")
    assert "the shard is 3/3; expected I/N with I from 0 to N - 1" in refused("--shard", "3/3")
    assert "both --shard and --join" in refused("--shard", "0/3", "--join")
    assert "use --labels with --join" in refused("--shard", "0/3", "--labels", folder / "l.npy")
    assert "doesn't contain finished shards of e.npy" in refused("--join")
    assert "--address was given without --engine ray" in refused("--address", "127.0.0.1:6379")
    assert "--engine ray was given with --join" in refused("--join", "--engine", "ray")
    assert "--engine ray was given with --workers" in refused("--workers", "2", "--engine", "ray")
    parquet = dml(
        "embed", photo_run, photos, "--out", folder / "e.parquet", "--shard", "0/2", code=2
    ).stderr
    assert "expected a name that ends in .npy" in parquet
    with pytest.raises(InvalidOption, match="-1/2"):
        Shard(-1, 2)
    assert not list(folder.iterdir())


def test_a_folder_without_the_photos_of_training_needs_no_data_set(
    dml, registry, photos, folder, tmp_path
):
    data = write_photos(tmp_path / "data")
    run = train_on(data, tmp_path / "run", registry)
    assert photo_document(data)["dataset"]["root"] == str(data)
    shutil.rmtree(data)
    dml("embed", run, photos, "--out", folder / "e.npy", "--shard", "0/1")
    dml("embed", run, photos, "--out", folder / "e.npy", "--join")
    refused = dml(
        "embed", run, "--split", "test", "--out", folder / "t.npy", "--shard", "0/1", code=2
    )
    assert str(data) in refused.stderr
