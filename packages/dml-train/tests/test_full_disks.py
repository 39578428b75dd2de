"""Disks that are full at any write, or read-only. ``DML_DISKS=100`` sets the number of sizes of each disk."""

from __future__ import annotations

import os

import pytest
from train_support import full_disks
from train_support.photo_world import photo_registry, train_on, write_photos
from train_support.small_disk import on_disk

SIZES = int(os.environ.get("DML_DISKS", "2"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder of images, and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("inputs")
    train_on(write_photos(folder / "photos"), folder / "run", photo_registry())
    return folder


@pytest.mark.parametrize("name", full_disks.COMMANDS)
def test_a_full_disk_at_any_write_is_one_message_and_the_command_resumes(tmp_path, inputs, name):
    on_disk(tmp_path / "disk", full_disks.fill_at_every_write, inputs, name, SIZES)


@pytest.mark.parametrize(
    "work",
    [
        full_disks.refuse_every_command,
        full_disks.resume_read_only_run,
        full_disks.train_until_read_only,
        full_disks.train_on_read_only_images,
    ],
)
def test_a_read_only_disk_is_one_message_and_images_on_it_are_read(tmp_path, inputs, work):
    on_disk(tmp_path / "disk", work, inputs)
