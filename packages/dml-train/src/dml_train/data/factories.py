"""The factories of the data sets of image files."""

from __future__ import annotations

from dml_train.data.csv_table import read_csv_table
from dml_train.data.file_dataset import FileDatasetFactory
from dml_train.data.image_folder import read_image_folder
from dml_train.data.published.cars196 import read_cars196
from dml_train.data.published.cub import read_cub
from dml_train.data.published.in_shop import read_in_shop
from dml_train.data.published.market1501 import read_market1501
from dml_train.data.published.sop import read_sop
from dml_train.data.published.vehicleid import read_vehicleid
from dml_train.data.published.veri776 import read_veri776

image_folder = FileDatasetFactory(read_image_folder)
csv = FileDatasetFactory(read_csv_table)
cub = FileDatasetFactory(read_cub)
cars196 = FileDatasetFactory(read_cars196)
sop = FileDatasetFactory(read_sop)
in_shop = FileDatasetFactory(read_in_shop)
market1501 = FileDatasetFactory(read_market1501)
veri776 = FileDatasetFactory(read_veri776)
vehicleid = FileDatasetFactory(read_vehicleid)
