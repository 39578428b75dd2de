"""A data set too small for its recipe is refused before training, with the sizes found and the setting to change."""

from __future__ import annotations

import pytest
from train_support.photo_world import write_photos

from dml_core import DmlError
from dml_core import registry as installed
from dml_train.recipe.loading import load_recipe
from dml_train.training.run import train


@pytest.fixture
def start(tmp_path, quiet):
    """Train on so many classes of so many images, with a bundled recipe's keys changed."""

    def start(classes, each, *overrides):
        photos = write_photos(tmp_path / "photos", classes, each)
        settings = ["training.steps=2", "training.device=cpu", f"dataset.root={photos}", *overrides]
        recipe = load_recipe("my-images", settings, installed())
        try:
            return train(recipe, tmp_path / "run", console=quiet)
        except DmlError:
            assert not (tmp_path / "run").exists()
            raise

    return start


def test_two_classes_leave_one_to_train(start):
    found = r"has 5 images of 1 class, and the test split 1 class \(dataset.train_fraction is 0.5\)"
    with pytest.raises(DmlError, match=f"the training split {found}; training needs at least two classes"):
        start(2, 5)


def test_a_batch_larger_than_the_split_is_answered_with_the_setting(start):
    with pytest.raises(DmlError, match=r"has 10 images of 2 classes.*: --set sampler.batch_size=10$"):
        start(4, 5)


def test_more_classes_in_a_batch_than_there_are_is_answered_with_the_setting(start):
    sampler = "sampler={name='class-balanced', classes_per_batch=8, images_per_class=2}"
    with pytest.raises(DmlError, match=r"of 2 classes.*: --set sampler.classes_per_batch=2$"):
        start(4, 5, sampler)


def test_the_setting_works(start):
    assert start(4, 5, "sampler.batch_size=10").evaluation.is_file()


def test_a_test_split_without_any_match_is_refused(start):
    with pytest.raises(
        DmlError, match="the test split has 2 images of 2 classes, one per class, so no query has"
    ):
        start(4, 1, "sampler.batch_size=2")


def test_classes_held_out_for_validation_are_counted(start):
    with pytest.raises(DmlError, match="1 more held out for validation; training needs at least two"):
        start(4, 5, "validation.class_fraction=0.5", "evaluation.every=1.0")
