"""Which clients of a round train in one set of kernels."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.local_sgd import LocalSGD

#: Clients that train together, or one alone; ranks and threads are dealt these.
Group = tuple[int, ...]


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
    """Group at most ``most`` clients that train together: neighbours in size, the largest first.

    There are ``least`` groups, so that no rank goes without, where there are as many clients, and
    about equally many samples in each as far as ``most`` allows. With ``most`` 1 each is alone, in
    the order given. ``sizes`` are the numbers of samples of every client, by its number, at least 1
    each: then no group takes a client that a later one needs, as none of those is larger.
    """
    if most == 1:
        return [(client,) for client in clients]
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    samples, lacking = sum(sizes[client] for client in ordered), least
    groups: list[Group] = []
    start = 0
    while start < len(ordered):
        end, taken = start + 1, sizes[ordered[start]]
        share = samples / max(lacking, 1)
        last = min(start + most, len(ordered))
        while end < last and taken + sizes[ordered[end]] / 2 <= share:
            taken += sizes[ordered[end]]
            end += 1
        groups.append(tuple(ordered[start:end]))
        start, samples, lacking = end, samples - taken, lacking - 1
    return groups
