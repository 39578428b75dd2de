"""Factories for data sets of image files."""

from __future__ import annotations

from dml_train.data.csv_table import read_csv_table
from dml_train.data.file_dataset import FileDatasetFactory
from dml_train.data.image_folder import read_image_folder
from dml_train.data.image_table import read_image_table
from dml_train.data.published.reidentification import read_vehicleid
from dml_train.data.published.sets import OFFICIAL

image_folder = FileDatasetFactory(read_image_folder)
csv = FileDatasetFactory(read_csv_table)
table = FileDatasetFactory(read_image_table)
cub = FileDatasetFactory(OFFICIAL["cub"].read)
cars196 = FileDatasetFactory(OFFICIAL["cars196"].read)
sop = FileDatasetFactory(OFFICIAL["sop"].read)
in_shop = FileDatasetFactory(OFFICIAL["in-shop"].read)
market1501 = FileDatasetFactory(OFFICIAL["market1501"].read)
veri776 = FileDatasetFactory(OFFICIAL["veri776"].read)
vehicleid = FileDatasetFactory(read_vehicleid)
