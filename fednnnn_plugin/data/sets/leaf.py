"""A LEAF folder: samples of users, in JSON files."""

import numpy as np

from fednnnn_plugin.data.divided import divided_dataset
from fednnnn_plugin.data.images import ImageDataset, Parts
from fednnnn_plugin.data.labels import class_numbers
from fednnnn_plugin.data.leaf_files import read_leaf
from fednnnn_plugin.data.leaf_samples import as_arrays
from fednnnn_plugin.data.natural import Owners
from fednnnn_plugin.data.own_data import checked_part
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import users_folder
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError


@named_dataset("leaf", arguments=("input_column",))
def _load(spec: DataSpec) -> ImageDataset:
    with users_folder(spec.data_dir) as (folder, where):
        train, test = read_leaf(folder, where)
        first = len(train.labels)
        if not first:
            raise UserError(where, "no user has a sample to train on")
        inputs, labels, names = as_arrays(
            train.inputs + test.inputs, train.labels + test.labels, folder, where, spec
        )
    samples = checked_part((inputs, labels), where, loss=spec.loss)
    names = names or class_numbers([samples.labels], where)
    parts = Parts(samples.at(slice(first)), samples.at(slice(first, None)))
    users = np.asarray(train.users + test.users)
    owners = Owners(users[:first], users[first:])
    return divided_dataset(parts, names, owners, spec)
