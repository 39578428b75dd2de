"""If a data set is too small for a recipe, an error before training names the sizes and the setting
to change.
"""

from __future__ import annotations

import pytest
from train_support.photo_world import write_photos

from dml_core import DmlError
from dml_core import registry as installed
from dml_train.recipe.loading import load_recipe
from dml_train.training.run import train


@pytest.fixture
def start(tmp_path, quiet):
    """Train a bundled recipe on `classes` classes with `each` images, with some keys changed."""

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


@pytest.mark.parametrize(
    ("classes", "each", "overrides", "message"),
    [
        (2, 5, [], r"the training split has 5 images of 1 class, and the test split 1 class "
                   r"\(dataset.train_fraction "
                   "is 0.5\\); training needs at least two classes"),
        (4, 5, [], r"has 10 images of 2 classes.*: --set sampler.batch_size=10$"),
        (4, 5, ["sampler={name='class-balanced', classes_per_batch=8, images_per_class=2}"],
         r"of 2 classes.*: --set sampler.classes_per_batch=2$"),
        (4, 1, ["sampler.batch_size=2"],
         "the test split has 2 images of 2 classes, one per class, so no query has"),
        (4, 5, ["validation.class_fraction=0.5", "evaluation.every=1.0"],
         "1 more held out for validation; training needs at least two"),
    ],
    ids=["one class trains", "large batch", "many classes in a batch", "no match", "held out"],
)  # fmt: skip
def test_a_data_set_too_small_is_refused_with_its_sizes_or_the_setting(
    start, classes, each, overrides, message
):
    with pytest.raises(DmlError, match=message):
        start(classes, each, *overrides)


def test_the_setting_works(start):
    assert start(4, 5, "sampler.batch_size=10").evaluation.is_file()
