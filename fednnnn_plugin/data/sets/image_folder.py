"""A folder of the user's own images, with a folder for each class."""

from fednnnn_plugin.data.divided import divided_dataset
from fednnnn_plugin.data.image_tree import read_tree
from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import users_folder
from fednnnn_plugin.data.spec import DataSpec


@named_dataset("image_folder")
def _load(spec: DataSpec) -> ImageDataset:
    with users_folder(spec.data_dir) as (folder, where):
        parts, classes = read_tree(folder, spec.data_cache_dir, where, spec.image_size)
    return divided_dataset(parts, classes, None, spec, "image folder split")
