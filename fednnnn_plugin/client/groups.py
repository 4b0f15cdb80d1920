"""Which clients of a round train in one set of kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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
    setting: Literal["auto", "off"] | int, free: int, needs: Callable[[], int] | None
) -> int:
    """Return how many clients train together at most: a fixed rule on model and device.

    One by one on a CPU: on one thread each, a client keeps the bits of every other way to run, and
    that is the faster for the paper's networks. On a GPU, where small kernels leave most of it
    idle, as many as fit in ``MEMORY`` of what is free.

    Args:
        setting: ``train_args.client_batching``; a number is what it says.
        free: bytes that are free on the GPU; 0 on a CPU.
        needs: returns what a client takes (:func:`client_bytes`); None for a model, data or
            trainer of the user's.

    Raises:
        UserError: a number for what is the user's.
    """
    if isinstance(setting, int):
        if needs is None and setting > 1:
            raise UserError(
                f"train_args.client_batching: {setting}: must be auto or off: only the models "
                f"{', '.join(MODELS)} on this package's data train together"
            )
        return setting
    if setting == "off" or needs is None or not free:
        return 1
    return max(1, int(MEMORY * free) // needs())


def client_bytes(model: nn.Module, sgd: LocalSGD, shape: Sequence[int]) -> int:
    """Return the memory that a client of a group takes, at most.

    For each parameter its weight, its gradient in parts and as a whole, a kernel's copy, and the
    difference to ``w_t`` in float64, twice. For the largest batch, inputs of ``shape`` ``[B, …]``,
    twice what autograd keeps of a forward pass, of which only the shapes are computed.
    """
    trial = copy.deepcopy(model).to("meta", sgd.dtype).train()
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trial(torch.empty(*shape, device="meta", dtype=sgd.dtype))
    weights = sum(parameter.numel() for parameter in trial.parameters())
    return weights * (4 * sgd.dtype.itemsize + 2 * torch.float64.itemsize) + 2 * sum(kept)


def plan_groups(
    clients: Sequence[int], sizes: Sequence[int], most: int, least: int = 1
) -> list[Group]:
    """Group clients that train together: neighbours in size, the largest first.

    There are ``least`` groups where there are as many clients, and about equally many samples in
    each as far as ``most`` allows.

    Args:
        clients: of the round.
        sizes: number of samples of every client, by its number.
        most: clients in a group; 1 leaves each alone, in the order given.
        least: groups, so that no rank goes without; 1 leaves them to depend on the cohort alone.
    """
    if most == 1:
        return [(client,) for client in clients]
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    samples, lacking = sum(sizes[client] for client in ordered), min(least, len(ordered))
    groups: list[Group] = []
    start = 0
    while start < len(ordered):
        end, taken = start + 1, sizes[ordered[start]]
        share = samples / max(lacking, 1)
        last = min(start + most, len(ordered) - max(lacking - 1, 0))
        while end < last and taken + sizes[ordered[end]] / 2 <= share:
            taken += sizes[ordered[end]]
            end += 1
        groups.append(tuple(ordered[start:end]))
        start, samples, lacking = end, samples - taken, lacking - 1
    return groups
