"""From a specification to what clients hold: loaded, normalised, divided."""

from dataclasses import replace

import pytest

from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.errors import UserError

from .conftest import DIGITS


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
