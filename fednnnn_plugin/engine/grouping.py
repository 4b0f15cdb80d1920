"""Which clients of a round train in one set of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import torch
from torch import nn

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS

#: Clients that train together, or one alone; ranks and threads are dealt these.
Group = tuple[int, ...]

# On a CPU one client at a time, on one thread each, keeps the bits of every other way to run, and
# is the faster for the paper's networks. On a GPU small kernels leave most of it idle.
_GPU_GROUPS = {"NNNNMnist": 100, "NNNNCifar10": 25, "NNNNDigits": 100}


def group_size(
    setting: Literal["auto", "off"] | int, model: nn.Module, device: torch.device, *, known: bool
) -> int:
    """Return how many clients train together: a fixed rule on model and device.

    Args:
        setting: ``train_args.client_batching``.
        model: the network.
        device: where it trains.
        known: the network, data and training are the package's own.

    Raises:
        UserError: a number for a model, data or trainer of the user's.
    """
    if isinstance(setting, int):
        if not known and setting > 1:
            raise UserError(
                f"train_args.client_batching: {setting}: must be auto or off: only the models "
                f"{', '.join(MODELS)} on this package's data train together"
            )
        return setting
    if setting == "off" or not known or device.type == "cpu":
        return 1
    return _GPU_GROUPS.get(type(model).__name__, 1)


def group_clients(
    clients: Sequence[int], sizes: Sequence[int], batch_size: int, most: int
) -> list[Group]:
    """Group clients of equal steps an epoch, at most ``most`` together, longest first.

    It depends on the round's cohort alone, not on how many processes there are. Clients of one
    size are neighbours, which take their last step together whatever the model.
    """
    if most == 1:
        return [(client,) for client in clients]

    def steps(client: int) -> int:
        return -(-sizes[client] // batch_size)

    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    groups = []
    for _, bucket in groupby(ordered, key=steps):
        members = list(bucket)
        groups += [tuple(members[i : i + most]) for i in range(0, len(members), most)]
    return groups
