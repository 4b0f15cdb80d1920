"""From a specification to what clients hold: loaded, normalised, divided."""

from dataclasses import replace

import pytest
import torch

from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.errors import UserError

from ..support.clients import client_data
from .conftest import DIGITS


def test_federated_digits_of_20_clients() -> None:
    data = load_federated(DIGITS)
    assert (data.num_clients, data.num_classes) == (20, 10)
    assert data.class_names == tuple("0123456789")
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.test_images.shape == (360, 1, 8, 8)
    assert data.train_images.dtype == data.test_images.dtype == torch.uint8
    whole = data.normalised(data.train_images)
    moments = torch.stack(torch.var_mean(whole, correction=0)).tolist()
    assert moments == pytest.approx([1, 0], abs=1e-5)
    for client in range(20):
        images, labels = client_data(data, client)
        assert len(labels) == len(images) == data.client_size(client)
        assert len(labels.unique()) == 2
        assert torch.equal(images[5], whole[data.client_indices[client][5]])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_clients": 4}, "train_args.client_num_in_total: 4: with data_args.classes_per_cl"),
        ({"partition_method": "dirichlet", "partition_alpha": 0}, "data_args.partition_alpha: 0: "),
    ],
)
def test_federated_data_that_cannot_be_made_is_refused(
    changed: dict[str, object], named: str
) -> None:
    """By the recipe's keys."""
    with pytest.raises(UserError, match=f"^{named}"):
        load_federated(replace(DIGITS, **changed))
