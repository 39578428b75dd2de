"""Use the functions of the command `dml` in Python: train, evaluate, embed, search, export, report.

The recipe trains for some seconds on rendered characters, so you don't need to download data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import dml_train

# Load a recipe by bundled name or from a file, and change keys.
recipe = dml_train.load_recipe("glyphs-tiny", {"training.steps": 20, "dataset.max_classes": 100})
run = dml_train.train(recipe, "runs/tiny")

# Open the run again, also in another program.
run = dml_train.open_run("runs/tiny")
print(f"Recall@1 {run.read_evaluation()['recall@1']:.3f}")
print(f"loss after the last step {run.read_metrics()[-2]['loss']:.3f}")

# Evaluate the run with different options.
print(
    dml_train.evaluate_run(
        run.path, options={"metrics": ["recall@1", "recall@5"], "ties": "expected"}
    )
)

# Open the trained network, and embed prepared inputs, images in memory, image files, and a folder.
model = dml_train.open_model(run.path)
print(f"{model.dim} dimensions; an input has the shape {model.input_shape}")
inputs = np.zeros((3, *model.input_shape), dtype=np.float32)
print(model.embed(inputs).shape)
picture = np.full((40, 30), 255, dtype=np.uint8)  # grey; (height, width, 3) is RGB
picture[10:30, 12:18] = 0
folder = Path("pictures")
folder.mkdir()
for name, angle in (("upright", 0), ("tilted", 20), ("lying", 90)):
    Image.fromarray(picture).rotate(angle, expand=True, fillcolor=255).save(folder / f"{name}.png")
print(model.embed_images([picture, folder / "upright.png"]).shape)
embedded = dml_train.embed_folder(model, folder, "pictures.npy")
print(f"{len(embedded.paths)} images in pictures.npy")

# Search a file of embeddings. You can also search a folder, or the images on which the run was
# evaluated.
gallery = dml_train.Gallery.of_index(model, Path("pictures.npy"))
(result,) = dml_train.search(model, gallery, [folder / "upright.png"], k=2)
for index, score in zip(result.indices, result.scores, strict=True):
    print(f"{gallery.names[index]}: {score:.3f}")

# Export the network, and write the run's report.
dml_train.export(model, "torch-export", "tiny.pt2")
print(dml_train.write_report(run.path))
