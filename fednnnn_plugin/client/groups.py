"""Which clients of a round train in one set of kernels."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS

#: Clients that train together, or one alone; ranks and threads are dealt these.
Group = tuple[int, ...]

#: The part of a GPU's free memory that a group's clients may take.
MEMORY = 0.8


def widest_group(
    setting: Literal["auto", "off"] | int,
    model: nn.Module,
    sgd: LocalSGD,
    inputs: Tensor,
    samples: int,
    *,
    known: bool,
    free: int | None,
) -> int:
    """Return how many clients train together at most: a fixed rule on model and device.

    One by one on a CPU: on one thread each, a client keeps the bits of every other way to run, and
    that is the faster for the paper's networks. On a GPU, where small kernels leave most of it
    idle, as many as fit in ``MEMORY`` of what is free.

    Args:
        setting: ``train_args.client_batching``; a number is what it says.
        model: the network.
        sgd: its training.
        inputs: ``[n, …]``, of the shape of the data's.
        samples: of the largest client.
        known: the network, data and training are the package's own.
        free: a GPU's free bytes; None on a CPU.

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
    if setting == "off" or not known or free is None:
        return 1
    return max(1, int(MEMORY * free) // client_bytes(model, sgd, inputs, samples))


def client_bytes(model: nn.Module, sgd: LocalSGD, inputs: Tensor, samples: int) -> int:
    """Return the memory that a client of a group takes, at most.

    For each parameter its weight, its gradient in parts and as a whole, a kernel's copy, and the
    difference to ``w_t`` in float64, twice. For the largest batch twice what autograd keeps of a
    forward pass, whose shapes alone are computed.
    """
    trial = copy.deepcopy(model).to("meta", sgd.dtype).train()
    shape = (min(sgd.batch_of(samples), samples), *inputs.shape[1:])
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trial(torch.empty(shape, device="meta", dtype=sgd.dtype))
    weights = sum(parameter.numel() for parameter in trial.parameters())
    return weights * (4 * sgd.dtype.itemsize + 2 * torch.float64.itemsize) + 2 * sum(kept)


def plan_groups(
    clients: Sequence[int], sizes: Sequence[int], sgd: LocalSGD, most: int, ranks: int = 1
) -> list[Group]:
    """Group clients that train together: neighbours in size, the largest first.

    Every rank gets a group, where there are as many clients, and the groups have about equal steps
    as far as ``most`` allows.

    Args:
        clients: of the round.
        sizes: number of samples of every client, by its number.
        sgd: the training, which gives their steps.
        most: clients in a group; 1 leaves each alone, in the order given.
        ranks: processes that share the groups; 1 on a CPU, where groups depend on the cohort alone.
    """
    if most == 1:
        return [(client,) for client in clients]
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    steps = [sgd.steps(sizes[client]) for client in ordered]
    left, lacking = sum(steps), min(ranks, len(ordered))
    groups: list[Group] = []
    start = 0
    while start < len(ordered):
        end, taken = start + 1, steps[start]
        share = left / max(lacking, 1)
        most_here = min(start + most, len(ordered) - max(lacking - 1, 0))
        while end < most_here and taken + steps[end] / 2 <= share:
            taken += steps[end]
            end += 1
        groups.append(tuple(ordered[start:end]))
        start, left, lacking = end, left - taken, lacking - 1
    return groups


def sequential_steps(groups: Sequence[Group], sizes: Sequence[int], sgd: LocalSGD) -> int:
    """Return the steps of a round where each group steps at once, one group after another."""
    return sgd.epochs * sum(sgd.steps(max(sizes[client] for client in group)) for group in groups)
